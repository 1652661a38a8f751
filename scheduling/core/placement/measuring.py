"""Where a new function is measured: the largest aligned block that is free or held by best effort (contracts
5)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from scheduling.core.question.worker_counts import gpus_held, measurable_levels

#: What a GPU is to a measurement: in use or unusable, held by a best-effort job, or free.
TAKEN, BEST_EFFORT, FREE = 0, 1, 2


def measuring_blocks(
    server_gpus: Sequence[int], standing: NDArray[np.int8], levels: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Candidate blocks, the largest first; among equals the one that displaces fewest best-effort GPUs.

    ``server_gpus``: GPUs of each server in topology order. ``standing``: TAKEN, BEST_EFFORT or FREE by
    address. A block larger than a server is made of whole servers. Yields the addresses of at most one block
    for each number of GPUs that the levels hold.
    """
    for size in sorted({gpus_held(level) for level in levels}, reverse=True):
        blocks = [block for block in _blocks(server_gpus, size) if (standing[list(block)] != TAKEN).all()]
        if blocks:
            yield min(blocks, key=lambda block: (int((standing[list(block)] == BEST_EFFORT).sum()), block))


def levels_to_come(
    global_batch_size: int,
    server_gpus: Sequence[int],
    usable: NDArray[np.bool_],
    above: int,
    worker_counts: Collection[int] = (),
) -> list[int]:
    """Levels above one that could be measured here, were all usable GPUs free; ascending.

    ``usable``: by address in topology order. ``above``: the largest level that is known, or known not to fit.
    """
    total = int(usable.sum())
    levels = [level for level in measurable_levels(global_batch_size, total, worker_counts) if level > above]
    standing = np.where(usable, FREE, TAKEN).astype(np.int8)
    sizes = {len(block) for block in measuring_blocks(server_gpus, standing, levels)}
    return [level for level in levels if gpus_held(level) in sizes]


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
        run: tuple[int, ...] = ()
        for addresses in servers[start:]:
            run += addresses
            if len(run) >= size:
                break
        if len(run) == size and size > len(servers[start]):
            yield run
