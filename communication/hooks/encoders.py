"""Where a rank encodes under an option, and which other ranks encode the same there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from communication.espresso.operations import Operation, operations, part_bounds
from communication.espresso.options import Level, Option
from communication.hooks.groups import PlacementGroups
from communication.hooks.residuals import Row


@dataclass(frozen=True, slots=True)
class Encoder:
    """A compression point of a rank.

    Attributes:
        replicated: whether other ranks encode the same sums, and so have to keep the same bits.
        first: whether this rank is the first of these.
    """

    row: Row
    replicated: bool
    first: bool


def encoders(option: Option, gradient: int, elements: int, groups: PlacementGroups) -> list[Encoder]:
    """Return this rank's encoders for a gradient of ``elements`` elements."""
    found = []
    path = operations(option, groups.shape)
    for number, operation in enumerate(path):
        if operation.point is None or not operation.takes_part(groups.server, groups.gpu):
            continue
        part = part_bounds(elements, operation.cuts, groups.server, groups.gpu, groups.shape)
        row = Row(gradient, operation.point, part.start, len(part))
        numbers = _numbers_among_equals(path[:number], operation, groups)
        found.append(Encoder(row, bool(numbers), not any(numbers)))
    return found


def _numbers_among_equals(
    before: Sequence[Operation], encoder: Operation, groups: PlacementGroups
) -> list[int]:
    """Return this rank's numbers within its server and among servers, as far as those hold the same sums.

    They do if the gradient was summed over them, no remaining cut separates them, and no root holds all of
    it alone.
    """
    summed = {each.step.level for each in before if each.step.level is not None and not each.second_step}
    cut = {each.level for each in encoder.cuts}
    return [
        number
        for number, level, size, alone in (
            (groups.gpu, Level.INTRA, groups.shape.gpus_per_server, encoder.first_gpu_alone),
            (groups.server, Level.INTER, groups.shape.servers, encoder.first_server_alone),
        )
        if size > 1 and not alone and summed & {level, Level.FLAT} and not cut & {level, Level.FLAT}
    ]
