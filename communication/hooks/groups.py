"""Process groups within and between the servers of a placement, one for each step of an exchange."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count, product

import torch
import torch.distributed as dist

from communication.espresso.operations import Operation, operations
from communication.espresso.options import Level, Option
from communication.profiles.placement import PlacementShape

#: A level, and whether it is its second step.
LevelStep = tuple[Level, bool]
#: What its groups carry, broadcasts included, as those ask who tell traffic apart.
GRADIENTS = "gradients"
FIRST_FLAT: LevelStep = (Level.FLAT, False)
ALL_STEPS: tuple[LevelStep, ...] = tuple(product(Level, (False, True)))
#: That this rank has given to groups.
_names = 0


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
        made: dict[tuple[tuple[int, ...], bool], dist.ProcessGroup] = {}
        found: dict[LevelStep, dist.ProcessGroup] = {}
        with _names_of_their_own(everybody):
            for level, second in ALL_STEPS:
                if (level, second) not in steps or len(members[level]) == 1:
                    continue
                key = (tuple(members[level]), second)
                if key not in made:
                    # Its ranks alone take part in its making.
                    made[key] = dist.new_group(
                        list(members[level]), use_local_synchronization=True, group_desc=GRADIENTS
                    )
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


def open_group(
    description: str,
    group: dist.ProcessGroup | None = None,
    *,
    backend: str | None = None,
    timeout: timedelta | None = None,
) -> dist.ProcessGroup:
    """Make another group of the same ranks, for collectives in an order of their own. All ranks of `group`
    call this together.

    Args:
        description: what the group carries, as those ask who tell traffic apart.
        group: the whole generation if None.
        backend: the default one if None.
        timeout: of its collectives; the backend's own if None.
    """
    everybody = range(dist.get_world_size(group))
    made = open_subgroup(description, everybody, group, backend=backend, timeout=timeout)
    assert made is not None
    return made


def open_subgroup(
    description: str,
    members: Sequence[int],
    group: dist.ProcessGroup | None = None,
    *,
    backend: str | None = None,
    timeout: timedelta | None = None,
) -> dist.ProcessGroup | None:
    """Make a group of some ranks of another one; None on ranks that are not in it. All ranks of `group` call
    this together.

    Args:
        description: what the new group carries, as those ask who tell traffic apart.
        members: ranks of `group`, ascending.
        group: the whole generation if None.
        backend: the default one if None.
        timeout: of its collectives; the backend's own if None.
    """
    everybody = dist.group.WORLD if group is None else group
    with _names_of_their_own(everybody):
        ranks = dist.get_process_group_ranks(everybody)
        inside = [ranks[member] for member in members]
        if dist.get_rank() not in inside:
            return None
        return dist.new_group(
            inside, timeout, backend, use_local_synchronization=True, group_desc=description
        )


@contextmanager
def _names_of_their_own(everybody: dist.ProcessGroup) -> Iterator[None]:
    """Groups that are made here have names that no group had before, the same on all ranks.

    Torch names a group that its ranks alone make after the number of groups that each of them has. That
    differs where one was in fewer, and falls when some are taken down: then a name comes again under which
    the store still has the addresses of those.
    """
    global _names
    most = torch.tensor([_names])
    if everybody.size() > 1:
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=everybody)
    first, made = int(most), count()
    _names = first + len(ALL_STEPS)
    usual = dist.distributed_c10d._hash_ranks_to_str

    def name(ranks: list[int]) -> str:
        told = f"{sorted(ranks)} {first} {next(made)}"
        return hashlib.sha1(told.encode(), usedforsecurity=False).hexdigest()

    dist.distributed_c10d._hash_ranks_to_str = name
    try:
        yield
    finally:
        dist.distributed_c10d._hash_ranks_to_str = usual


def _members(ranks: Sequence[int], shape: PlacementShape, server: int, gpu: int) -> dict[Level, list[int]]:
    """With whom a rank exchanges on each level. Ranks are by server and then by GPU."""
    first = server * shape.gpus_per_server
    return {
        Level.FLAT: list(ranks),
        Level.INTRA: list(ranks[first : first + shape.gpus_per_server]),
        Level.INTER: list(ranks[gpu :: shape.gpus_per_server]),
    }
