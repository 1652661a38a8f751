"""What error feedback keeps, told by parameter, so that ranks of another number or plan can go on with it.

Gradients that are encoded are flat: one parameter's, or those of a group behind each other. A row of what was
not sent belongs to an encoder of a gradient, its compression point, and to the part of the gradient that a
rank encodes there. In a state it is told by parameters, whose names outlast groups, options and placements.

Where several ranks encode the same sums, they keep the same rows, which count once: the first one's are told
as what they are, the others' as copies of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: What is kept: what was not sent yet, and the momentum of codecs that keep one.
RESIDUAL, VELOCITY = "residual", "velocity"
RESIDUAL_COPY, VELOCITY_COPY = "residual-copy", "velocity-copy"
KINDS = frozenset({RESIDUAL, VELOCITY, RESIDUAL_COPY, VELOCITY_COPY})


@dataclass(frozen=True, slots=True)
class Row:
    """Where a rank encodes: part ``start`` to ``start + count`` of a gradient, at one of its points."""

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
    """Some of what was kept: elements of a parameter from ``start`` on. ``kind``: one of `KINDS`."""

    kind: str
    parameter: str
    point: int
    start: int
    values: Tensor


Rows = Mapping[Row, Tensor]


def told_by_parameter(kind: str, rows: Rows, layout: Sequence[Sequence[Segment]]) -> list[Kept]:
    """Rows, as views, cut where parameters begin and end. ``layout``: the segments of each gradient."""
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
    """What was kept anywhere, for the rows of one rank.

    Every element comes into the first row that has it at the same compression point, and into none twice. Of
    several that were kept of one element, as when there are fewer ranks now, it is the sum.

    Returns:
        The rows that have got something, on the CPU; and what no row has a place for. Together they sum up to
        what was kept.
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
    """Add what overlaps a row to it; returns the rest."""
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
    """What was kept as named flat tensors. What has one name is added up."""
    state: dict[str, Tensor] = {}
    for each in kept:
        name = f"{each.kind}/{each.point}/{each.start}/{len(each.values)}/{each.parameter}"
        state[name] = state[name] + each.values if name in state else each.values
    return state


def from_state(state: Mapping[str, Tensor]) -> list[Kept]:
    """What `to_state` named.

    Raises ValueError for other names, and tensors that are not flat FP32 ones of their length.
    """
    return [_from_name(name, values) for name, values in state.items()]


def _from_name(name: str, values: Tensor) -> Kept:
    parts = name.split("/", 4)
    if len(parts) != 5 or parts[0] not in KINDS or not all(map(str.isdecimal, parts[1:4])):
        raise ValueError(f"{name!r} names nothing that error feedback keeps")
    point, start, count = map(int, parts[1:4])
    if values.dtype != torch.float32 or values.shape != (count,):
        raise ValueError(f"{name!r} is {tuple(values.shape)} of {values.dtype}: no {count} elements of FP32")
    return Kept(parts[0], parts[4], point, start, values)


def _end(segment: Segment) -> int:
    return segment.offset + segment.count


def _overlap(row: Row, segment: Segment) -> tuple[int, int]:
    return max(row.start, segment.offset), min(row.start + row.count, _end(segment))
