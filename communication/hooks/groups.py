"""Process groups within and between the servers of a placement, one for each step of an exchange."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
import torch.distributed as dist

from communication.espresso.operations import Operation, operations
from communication.espresso.options import Level, Option
from communication.profiles.placement import PlacementShape

#: A level, and whether it is its second step.
LevelStep = tuple[Level, bool]
FIRST_FLAT: LevelStep = (Level.FLAT, False)
ALL_STEPS: tuple[LevelStep, ...] = tuple(product(Level, (False, True)))


@dataclass(frozen=True)
class PlacementGroups:
    """This rank's place, and the groups with which it exchanges.

    Each step of a level has a group of its own, since collectives of one group must begin in the same order
    on all ranks, while steps of different gradients overtake each other. None of them is that of the whole
    generation, in which others exchange as well: DDP, for example, at the end of its backward pass.

    Attributes:
        server, gpu: the rank's numbers.
        everybody: all ranks, for what is agreed upon when nothing is on its way; None of a rank alone.
        by_step: its group of each step; of a level on which it is alone, none.
    """

    shape: PlacementShape
    server: int
    gpu: int
    everybody: dist.ProcessGroup | None
    by_step: dict[LevelStep, dist.ProcessGroup]

    @classmethod
    def open(
        cls,
        shape: PlacementShape,
        group: dist.ProcessGroup | None = None,
        steps: Collection[LevelStep] = ALL_STEPS,
    ) -> PlacementGroups:
        """Make the groups, once for all gradients; all ranks of the group call this together.

        Args:
            group: of all ranks, by server and then by GPU; the whole generation where there is none.
            steps: that are taken.

        Raises:
            ValueError: the group has another number of ranks than the placement.
        """
        everybody = dist.group.WORLD if group is None else group
        ranks = dist.get_process_group_ranks(everybody)
        if len(ranks) != shape.workers:
            raise ValueError(f"{len(ranks)} ranks are no {shape.servers} x {shape.gpus_per_server} GPUs")
        server, gpu = divmod(ranks.index(dist.get_rank()), shape.gpus_per_server)
        members = _members(ranks, shape, server, gpu)
        _count_alike(everybody)
        made: dict[tuple[tuple[int, ...], bool], dist.ProcessGroup] = {}
        found: dict[LevelStep, dist.ProcessGroup] = {}
        for level, second in ALL_STEPS:
            if (level, second) not in steps or len(members[level]) == 1:
                continue
            key = (tuple(members[level]), second)
            if key not in made:
                # Its ranks alone take part in its making.
                made[key] = dist.new_group(list(members[level]), use_local_synchronization=True)
            found[level, second] = made[key]
        return cls(shape, server, gpu, everybody if shape.workers > 1 else None, found)

    def of(self, operation: Operation) -> dist.ProcessGroup:
        """In which an exchange takes place."""
        assert operation.step.level is not None
        return self.by_step[operation.step.level, operation.second_step]

    def close(self) -> None:
        """Take down the groups that were made."""
        for group in {id(each): each for each in self.by_step.values()}.values():
            dist.destroy_process_group(group)


def steps_of(options: Iterable[Option], shape: PlacementShape) -> set[LevelStep]:
    """The steps that options take on a placement."""
    return {
        (each.step.level, each.second_step)
        for option in set(options)
        for each in operations(option, shape)
        if each.step.level is not None
    }


def _count_alike(everybody: dist.ProcessGroup) -> None:
    """Torch names a group that its ranks alone make after the number of groups that each of them has: one
    that was in fewer before makes some of its own. They are never used."""
    own = len(dist.distributed_c10d._world.pg_names)
    most = torch.tensor([own])
    if everybody.size() > 1:
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=everybody)
    for _ in range(int(most) - own):
        dist.new_group([dist.get_rank()], use_local_synchronization=True)


def _members(ranks: Sequence[int], shape: PlacementShape, server: int, gpu: int) -> dict[Level, list[int]]:
    """With whom a rank exchanges on each level. Ranks are by server and then by GPU."""
    first = server * shape.gpus_per_server
    return {
        Level.FLAT: list(ranks),
        Level.INTRA: list(ranks[first : first + shape.gpus_per_server]),
        Level.INTER: list(ranks[gpu :: shape.gpus_per_server]),
    }
