"""Where a function is measured: the largest buddy block that is free or whose jobs make way."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from scheduling.core.placement.buddy_blocks import aligned_cuts
from scheduling.core.question.worker_counts import gpus_held, measurable_levels

#: Standing of a GPU for a measurement: in use or unusable, held by a grown job with a deadline, held by a
#: best-effort job, or free.
TAKEN, GROWN, BEST_EFFORT, FREE = 0, 1, 2, 3


def measuring_blocks(
    server_gpus: Sequence[int], standing: NDArray[np.int8], levels: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Candidate blocks for a measurement, the largest first, one for each size that ``levels`` need.

    Of the blocks of one size, the one with the fewest GPUs of grown jobs is taken, and among these the one
    with the fewest best-effort GPUs. ``server_gpus``: GPUs of each server in topology order. ``standing``:
    TAKEN, GROWN, BEST_EFFORT or FREE by address. A block larger than a server consists of whole servers, or
    of their largest buddy blocks where their GPUs do not add up to it (two fours for an eight on servers of
    six). Yields the addresses of each block.
    """
    for size in sorted({gpus_held(level) for level in levels}, reverse=True):
        blocks = [block for block in _blocks(server_gpus, size) if (standing[list(block)] != TAKEN).all()]
        if blocks:
            yield min(blocks, key=lambda block: (*_held(standing[list(block)]), block))


def levels_to_come(
    global_batch_size: int,
    server_gpus: Sequence[int],
    usable: NDArray[np.bool_],
    above: int,
    worker_counts: Collection[int] = (),
) -> list[int]:
    """Levels greater than ``above`` that could be measured if all usable GPUs were free; ascending.

    ``usable``: True for each usable GPU, in topology order. ``above``: the largest level that is measured or
    known not to fit. ``worker_counts``: worker counts that the function declares, if any.
    """
    total = int(usable.sum())
    levels = [level for level in measurable_levels(global_batch_size, total, worker_counts) if level > above]
    standing = np.where(usable, FREE, TAKEN).astype(np.int8)
    sizes = {len(block) for block in measuring_blocks(server_gpus, standing, levels)}
    return [level for level in levels if gpus_held(level) in sizes]


def _held(standing: NDArray[np.int8]) -> tuple[int, int]:
    """GPUs of grown jobs and of best-effort jobs."""
    return int((standing == GROWN).sum()), int((standing == BEST_EFFORT).sum())


def _blocks(server_gpus: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    first = 0
    servers = []
    for count in server_gpus:
        servers.append(tuple(range(first, first + count)))
        first += count
    for addresses in servers:
        for start in range(0, len(addresses) - size + 1, size):
            yield addresses[start : start + size]
    for start in range(len(servers)):
        run: list[tuple[int, ...]] = []
        total = 0
        for addresses in servers[start:]:
            run.append(addresses)
            total += len(addresses)
            if total >= size:
                break
        if total == size and size > len(servers[start]):
            yield tuple(chain.from_iterable(run))
        elif total > size:
            yield from _of_largest_parts(run, size)


def _of_largest_parts(servers: Sequence[tuple[int, ...]], size: int) -> Iterator[tuple[int, ...]]:
    """The largest buddy blocks of the servers that add up to ``size``, as a job is placed that is larger than
    each of them. Nothing where one block is as large.

    Six workers on two servers of six are so measured as four and two, and not all on one server, which a
    later place need not give.
    """
    parts = [
        addresses[offset : offset + gpus]
        for addresses in servers
        for offset, gpus in aligned_cuts(len(addresses))
    ]
    chosen: list[tuple[int, ...]] = []
    left = size
    for part in sorted(parts, key=len, reverse=True):
        if len(part) <= left:
            chosen.append(part)
            left -= len(part)
    if left == 0 and max(map(len, parts)) < size:
        yield tuple(sorted(chain.from_iterable(chosen)))
