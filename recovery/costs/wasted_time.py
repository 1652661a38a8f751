"""Wasted time: training time lost to one failure, repairs excluded (Gemini 6.1)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """A checkpointing scheme, in seconds.

    ``checkpoint_seconds``: until a checkpoint is complete. ``period_seconds``: from one to the next.
    ``retrieval_seconds``: to fetch the latest complete one. Raises ValueError for negative times and a period
    shorter than a checkpoint.
    """

    checkpoint_seconds: float
    period_seconds: float
    retrieval_seconds: float

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a number that is not negative, not {getattr(self, name)}")
        if self.period_seconds < self.checkpoint_seconds:
            raise ValueError(
                f"a checkpoint takes {self.checkpoint_seconds:g} s, so one every {self.period_seconds:g} s "
                "cannot be"
            )

    @property
    def wasted_seconds(self) -> float:
        """Mean over failures that are uniformly distributed between two checkpoints."""
        return self.checkpoint_seconds + self.period_seconds / 2.0 + self.retrieval_seconds

    @property
    def least_wasted_seconds(self) -> float:
        """Wasted time when the failure comes right after a checkpoint is complete."""
        return self.checkpoint_seconds + self.retrieval_seconds

    @property
    def most_wasted_seconds(self) -> float:
        """Wasted time when the failure comes right before a checkpoint is complete."""
        return self.checkpoint_seconds + self.period_seconds + self.retrieval_seconds


def in_memory(
    iteration_seconds: float, every_iterations: int = 1, retrieval_seconds: float = 0.0
) -> Checkpointing:
    """Return the scheme of recovery points in memory, each usable at the end of the iteration of its traffic.

    Raises ValueError for less than one iteration between two points.
    """
    if every_iterations < 1:
        raise ValueError(f"points are at least one iteration apart, not {every_iterations}")
    return Checkpointing(iteration_seconds, every_iterations * iteration_seconds, retrieval_seconds)


def iterations_between(checkpoint_seconds: float, iteration_seconds: float) -> int:
    """Return the fewest iterations between checkpoints of this length (HighFreq in the evaluation)."""
    return max(1, ceil(checkpoint_seconds / iteration_seconds - 1e-9))
