"""Process groups within and between the servers of a placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist

from communication.espresso.options import Level
from communication.profiles.placement import PlacementShape


@dataclass(frozen=True)
class PlacementGroups:
    """This rank's place, and the groups with which it exchanges.

    Attributes:
        server, gpu: the rank's numbers.
        by_level: its group of each level; of a level on which it is alone, none.
    """

    shape: PlacementShape
    server: int
    gpu: int
    by_level: dict[Level, dist.ProcessGroup]

    @classmethod
    def open(cls, shape: PlacementShape, group: dist.ProcessGroup | None = None) -> PlacementGroups:
        """Make the groups, once for all gradients; all ranks of the group call this together.

        Args:
            group: of all ranks, by server and then by GPU; the whole generation where there is none.

        Raises:
            ValueError: the group has another number of ranks than the placement.
        """
        everybody = dist.group.WORLD if group is None else group
        ranks = dist.get_process_group_ranks(everybody)
        if len(ranks) != shape.workers:
            raise ValueError(f"{len(ranks)} ranks are no {shape.servers} x {shape.gpus_per_server} GPUs")
        number = ranks.index(dist.get_rank())
        server, gpu = divmod(number, shape.gpus_per_server)
        found: dict[Level, dist.ProcessGroup] = {}
        if shape.workers > 1:
            found[Level.FLAT] = everybody
        servers = [
            ranks[at : at + shape.gpus_per_server] for at in range(0, len(ranks), shape.gpus_per_server)
        ]
        same_gpus = [ranks[at :: shape.gpus_per_server] for at in range(shape.gpus_per_server)]
        for level, members, mine in ((Level.INTRA, servers, server), (Level.INTER, same_gpus, gpu)):
            if len(members[0]) == len(ranks) > 1:
                found[level] = everybody
            elif len(members[0]) > 1:
                found[level] = _opened(members, mine)
        return cls(shape, server, gpu, found)

    def close(self) -> None:
        """Take down the groups that were made."""
        for group in {id(each): each for each in self.by_level.values()}.values():
            if group is not self.by_level[Level.FLAT]:
                dist.destroy_process_group(group)


def _opened(members: Sequence[Sequence[int]], mine: int) -> dist.ProcessGroup:
    """The group of number ``mine``. Its ranks alone take part in its making."""
    return dist.new_group(list(members[mine]), use_local_synchronization=True)
