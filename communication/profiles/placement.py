"""The shape of a placement: the number of a job's servers, and of its workers on each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlacementShape:
    """``servers`` with ``gpus_per_server`` workers each. Raises ValueError for less than one of either."""

    servers: int
    gpus_per_server: int

    def __post_init__(self) -> None:
        if self.servers < 1 or self.gpus_per_server < 1:
            raise ValueError(
                f"a placement has at least one GPU on one server, not {self.gpus_per_server} on each of "
                f"{self.servers}"
            )

    @property
    def workers(self) -> int:
        """Total number of workers."""
        return self.servers * self.gpus_per_server

    @property
    def spread(self) -> bool:
        """Whether they are on several servers; otherwise packed."""
        return self.servers > 1
