"""Residuals of error feedback by parameter, so that another number of ranks or another plan can resume them.

Encoded gradients are flat: one parameter's, or those of a group in sequence. A row of residuals belongs to an
encoder of a gradient, its compression point, and to the part of the gradient that a rank encodes there. A
state stores it by parameters, whose names outlast groups, options and placements.

Ranks that encode the same sums keep the same rows, which count once: the first rank's are stored as
residuals, the others' as copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: Kinds of state: what was not sent yet, and the momentum of codecs that keep one.
RESIDUAL, VELOCITY = "residual", "velocity"
RESIDUAL_COPY, VELOCITY_COPY = "residual-copy", "velocity-copy"
KINDS = frozenset({RESIDUAL, VELOCITY, RESIDUAL_COPY, VELOCITY_COPY})


@dataclass(frozen=True, slots=True)
class Row:
    """A place where a rank encodes: ``start`` to ``start + count`` of a gradient, at one of its points."""

    gradient: int
    point: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A parameter within a flat gradient: ``count`` elements from ``offset`` on."""

    parameter: str
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A piece of state: elements of a parameter from ``start`` on. ``kind``: one of `KINDS`."""

    kind: str
    parameter: str
    point: int
    start: int
    values: Tensor


Rows = Mapping[Row, Tensor]


def told_by_parameter(kind: str, rows: Rows, layout: Sequence[Sequence[Segment]]) -> list[Kept]:
    """Return rows as views, cut at parameter boundaries. ``layout``: the segments of each gradient."""
    found = []
    for row, values in rows.items():
        for segment in layout[row.gradient]:
            low, high = _overlap(row, segment)
            if low < high:
                part = values[low - row.start : high - row.start]
                found.append(Kept(kind, segment.parameter, row.point, low - segment.offset, part))
    return found


def recut(
    kept: Iterable[Kept], rows: Iterable[Row], layout: Sequence[Sequence[Segment]]
) -> tuple[dict[Row, Tensor], list[Kept]]:
    """Distribute state from any ranks to the rows of one rank.

    Every element goes to the first row that covers it at the same compression point, and to no other. Several
    values for one element, as when the number of ranks falls, are summed.

    Returns:
        The rows that received something, on the CPU; and the state that fits no row. Their total equals
        the input's.
    """
    filled: dict[Row, Tensor] = {}
    left = list(kept)
    for row in rows:
        segments = {segment.parameter: segment for segment in layout[row.gradient]}
        still_left = []
        for each in left:
            segment = segments.get(each.parameter)
            if segment is None or each.point != row.point:
                still_left.append(each)
                continue
            still_left += _put(each, row, segment, filled)
        left = still_left
    return filled, left


def _put(each: Kept, row: Row, segment: Segment, filled: dict[Row, Tensor]) -> list[Kept]:
    """Add what overlaps a row to it; return the rest."""
    begin = segment.offset + each.start
    end = begin + len(each.values)
    low, high = max(begin, row.start, segment.offset), min(end, row.start + row.count, _end(segment))
    if low >= high:
        return [each]
    if row not in filled:
        filled[row] = torch.zeros(row.count)
    filled[row][low - row.start : high - row.start] += each.values[low - begin : high - begin]
    before, after = each.values[: low - begin], each.values[high - begin :]
    return [
        Kept(each.kind, each.parameter, each.point, start, values)
        for start, values in ((each.start, before), (each.start + high - begin, after))
        if len(values)
    ]


def to_state(kept: Iterable[Kept]) -> dict[str, Tensor]:
    """Return state as named flat tensors. Values of the same name are summed."""
    state: dict[str, Tensor] = {}
    for each in kept:
        name = f"{each.kind}/{each.point}/{each.start}/{len(each.values)}/{each.parameter}"
        state[name] = state[name] + each.values if name in state else each.values
    return state


def from_state(state: Mapping[str, Tensor]) -> list[Kept]:
    """Parse the names of `to_state`.

    Raises ValueError for other names, and tensors other than flat FP32 ones of their length.
    """
    return [_from_name(name, values) for name, values in state.items()]


def _from_name(name: str, values: Tensor) -> Kept:
    parts = name.split("/", 4)
    if len(parts) != 5 or parts[0] not in KINDS or not all(map(str.isdecimal, parts[1:4])):
        raise ValueError(f"error feedback keeps nothing with the name {name!r}")
    point, start, count = map(int, parts[1:4])
    if values.dtype != torch.float32 or values.shape != (count,):
        raise ValueError(
            f"{name!r} has the shape {tuple(values.shape)} and the type "
            f"{values.dtype}; it must have {count} elements of FP32"
        )
    return Kept(parts[0], parts[4], point, start, values)


def _end(segment: Segment) -> int:
    return segment.offset + segment.count


def _overlap(row: Row, segment: Segment) -> tuple[int, int]:
    return max(row.start, segment.offset), min(row.start + row.count, _end(segment))
