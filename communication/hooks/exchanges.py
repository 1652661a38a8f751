"""Collectives on flat tensors. Each returns the started work and how to obtain its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

#: The root is the first rank of its group.
_ROOT = 0


@dataclass(frozen=True)
class Exchange:
    """A collective in progress.

    Attributes:
        result: returns this rank's result after the end; None on a rank without one.
        received_bytes: from other ranks, including padding.
    """

    work: dist.Work
    result: Callable[[], Tensor | None]
    received_bytes: int


def all_reduce(values: Tensor, group: dist.ProcessGroup) -> Exchange:
    """Sum over all ranks, in place."""
    received = 2 * (group.size() - 1) * values.nbytes // group.size()
    return Exchange(dist.all_reduce(values, group=group, async_op=True), lambda: values, received)


def reduce(values: Tensor, group: dist.ProcessGroup) -> Exchange:
    """Sum on the root, overwriting its values."""
    work = dist.reduce(values, group=group, group_dst=_ROOT, async_op=True)
    # The root of a tree receives as many messages as the tree has levels.
    received = values.nbytes * (group.size() - 1).bit_length() if _is_root(group) else 0
    return Exchange(work, lambda: values if _is_root(group) else None, received)


def reduce_scatter(values: Tensor, width: int, mine: int, group: dist.ProcessGroup) -> Exchange:
    """Give every rank the sum of its part; all parts have ``width`` elements except the last ones. ``mine``:
    elements of this rank's part."""
    part = values.new_empty(width)
    given = _padded(values, width * group.size())
    work = dist.reduce_scatter_single(part, given, group=group, async_op=True)
    return Exchange(work, lambda: part[:mine], (group.size() - 1) * part.nbytes)


def broadcast(values: Tensor, group: dist.ProcessGroup) -> Exchange:
    """Overwrite all ranks' values with the root's."""
    work = dist.broadcast(values, group=group, group_src=_ROOT, async_op=True)
    return Exchange(work, lambda: values, 0 if _is_root(group) else values.nbytes)


def gather(values: Tensor, group: dist.ProcessGroup) -> Exchange:
    """Concatenate all ranks' values, of equal length, on the root."""
    if not _is_root(group):
        return Exchange(dist.gather(values, group=group, group_dst=_ROOT, async_op=True), lambda: None, 0)
    gathered = values.new_empty(group.size() * len(values))
    rows = list(gathered.split(len(values))) if len(values) else [values] * group.size()
    work = dist.gather(values, rows, group=group, group_dst=_ROOT, async_op=True)
    return Exchange(work, lambda: gathered, (group.size() - 1) * values.nbytes)


def all_gather(values: Tensor, lengths: Sequence[int], group: dist.ProcessGroup) -> Exchange:
    """Concatenate all ranks' values, of these lengths, on all ranks. The first ones are the longest."""
    width = lengths[0]
    gathered = values.new_empty(width * len(lengths))
    work = dist.all_gather_single(gathered, _padded(values, width), group=group, async_op=True)

    def result() -> Tensor:
        *before, _ = [length for length in lengths if length] or [0]
        if all(length == width for length in before):
            return gathered[: sum(lengths)]
        return torch.cat([row[:length] for row, length in zip(gathered.split(width), lengths, strict=True)])

    return Exchange(work, result, (group.size() - 1) * width * values.itemsize)


def all_to_all(values: Tensor, sent: Sequence[int], received_each: int, group: dist.ProcessGroup) -> Exchange:
    """Concatenate what all ranks have for this one. ``sent``: lengths of what this rank has for each."""
    received = values.new_empty(received_each * group.size())
    lengths = [received_each] * group.size()
    work = dist.all_to_all_single(received, values, lengths, list(sent), group=group, async_op=True)
    return Exchange(work, lambda: received, (group.size() - 1) * received_each * values.itemsize)


def _is_root(group: dist.ProcessGroup) -> bool:
    return bool(group.rank() == _ROOT)


def _padded(values: Tensor, length: int) -> Tensor:
    if len(values) == length:
        return values
    padded = values.new_zeros(length)
    padded[: len(values)] = values
    return padded
