"""Which ranks host which experts of a layer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExpertPlacement:
    """The hosts of a layer's experts. An expert has one host or several; a rank hosts any number of experts.

    Attributes:
        hosts: for each expert its ranks, ascending.
        ranks: size of the process group.
    """

    hosts: tuple[tuple[int, ...], ...]
    ranks: int

    def __post_init__(self) -> None:
        for expert, hosts in enumerate(self.hosts):
            if not hosts or list(hosts) != sorted(set(hosts)):
                raise ValueError(f"hosts of expert {expert} are {hosts}; they must be ascending ranks.")
            if not 0 <= hosts[0] <= hosts[-1] < self.ranks:
                raise ValueError(f"hosts of expert {expert} are {hosts}; ranks are 0 to {self.ranks - 1}.")

    @classmethod
    def even(cls, experts: int, ranks: int) -> ExpertPlacement:
        """Give each rank a run of consecutive experts. Run lengths differ by at most one; with fewer experts
        than ranks, some ranks have none."""
        return cls(tuple((expert * ranks // experts,) for expert in range(experts)), ranks)

    def hosted_by(self, rank: int) -> tuple[int, ...]:
        """Return the ids of the experts that a rank hosts, ascending."""
        return tuple(expert for expert, hosts in enumerate(self.hosts) if rank in hosts)

    def destination(self, source: int, expert: int) -> int:
        """Return the rank to which `source` sends its rows of `expert`.

        It is `source` itself if it hosts the expert. Otherwise the hosts divide the ranks among them in runs.
        """
        hosts = self.hosts[expert]
        return source if source in hosts else hosts[source * len(hosts) // self.ranks]
