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

#: A level, and whether the step is its second.
LevelStep = tuple[Level, bool]
#: Description of the groups' traffic, including broadcasts, for code that distinguishes traffic.
GRADIENTS = "gradients"
ALL_STEPS: tuple[LevelStep, ...] = tuple(product(Level, (False, True)))
#: Number of names that this rank has given to groups.
_names = 0


@dataclass(frozen=True)
class PlacementGroups:
    """This rank's place, and its groups for exchanges.

    Each step of a level has its own group, because collectives of one group must begin in the same order on
    all ranks, while steps of different gradients overtake each other. No step uses the group of the whole
    generation, because others exchange there as well, for example DDP at the end of its backward pass.

    Attributes:
        server, gpu: the rank's numbers.
        everybody: all ranks, for agreements while no exchange is in progress; None for a single rank.
        by_step: the group of each step; none for a level on which the rank is alone.
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
        """Create the groups, once for all gradients. All ranks of the group call this together.

        Args:
            group: all ranks, by server and then by GPU; by default the whole generation.
            steps: those in use.

        Raises:
            ValueError: the group has another number of ranks than the placement.
        """
        everybody = dist.group.WORLD if group is None else group
        ranks = dist.get_process_group_ranks(everybody)
        if len(ranks) != shape.workers:
            raise ValueError(
                f"there are {len(ranks)} ranks; {shape.servers} x {shape.gpus_per_server} GPUs need one each"
            )
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
                    # Only its own ranks take part in creating it.
                    made[key] = dist.new_group(
                        list(members[level]), use_local_synchronization=True, group_desc=GRADIENTS
                    )
                found[level, second] = made[key]
        return cls(shape, server, gpu, everybody if shape.workers > 1 else None, found)

    def of(self, operation: Operation) -> dist.ProcessGroup:
        """Return the group of an exchange."""
        assert operation.step.level is not None
        return self.by_step[operation.step.level, operation.second_step]

    def close(self) -> None:
        """Destroy the groups."""
        for group in {id(each): each for each in self.by_step.values()}.values():
            dist.destroy_process_group(group)


def steps_of(options: Iterable[Option], shape: PlacementShape) -> set[LevelStep]:
    """Return the steps that options take on a placement."""
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
    """Create another group of the same ranks, for collectives in an independent order. All ranks of `group`
    call this together.

    Args:
        description: of the group's traffic, for code that distinguishes traffic.
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
    """Create a group of some ranks of another one; None on ranks outside it. All ranks of `group` call this
    together.

    Args:
        description: of the new group's traffic, for code that distinguishes traffic.
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
    """Give groups created in this context fresh names that are equal on all ranks.

    Torch names a locally created group by the number of groups that its rank has. That number differs between
    ranks with different groups, and falls when groups are destroyed. A reused name would find the old group's
    addresses in the store.
    """
    global _names
    most = torch.tensor([_names])
    if everybody.size() > 1:
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=everybody)
    first, made = int(most), count()
    _names = first + len(ALL_STEPS)
    usual = dist.distributed_c10d._hash_ranks_to_str

    def name(ranks: list[int]) -> str:
        description = f"{sorted(ranks)} {first} {next(made)}"
        return hashlib.sha1(description.encode(), usedforsecurity=False).hexdigest()

    dist.distributed_c10d._hash_ranks_to_str = name
    try:
        yield
    finally:
        dist.distributed_c10d._hash_ranks_to_str = usual


def _members(ranks: Sequence[int], shape: PlacementShape, server: int, gpu: int) -> dict[Level, list[int]]:
    """Return this rank's peers on each level. Ranks are ordered by server and then by GPU."""
    first = server * shape.gpus_per_server
    return {
        Level.FLAT: list(ranks),
        Level.INTRA: list(ranks[first : first + shape.gpus_per_server]),
        Level.INTER: list(ranks[gpu :: shape.gpus_per_server]),
    }
