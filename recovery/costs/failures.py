"""The cost of failures to a job: the phases of one failure, the slack for several, and the lost share of
time.

Live and simulated admission and the reproduction of the paper call the same functions.
"""

from __future__ import annotations

from dataclasses import dataclass

SECONDS_PER_DAY = 86_400.0
#: Share of the machines that fail in a day, as published for large clusters (Gemini, section 7).
PUBLISHED_FAILURES_A_DAY = 0.015


@dataclass(frozen=True, slots=True)
class FailureCost:
    """The phases of one failure, in seconds. Bounds give a bound, means a mean.

    ``fence_seconds``: until the lost server is given up, including the margin. ``resources_seconds``: until
    other GPUs are available. ``recovery_seconds``: until training resumes, with workers started and state
    loaded. ``lost_work_seconds``: work since the recovery point that is used. Raises ValueError for negative
    times.
    """

    fence_seconds: float
    resources_seconds: float
    recovery_seconds: float
    lost_work_seconds: float

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a number that is not negative, not {getattr(self, name)}")

    @property
    def seconds(self) -> float:
        """All phases together."""
        return self.fence_seconds + self.resources_seconds + self.recovery_seconds + self.lost_work_seconds


def failures_cost_seconds(
    failures: int, cost: FailureCost, *, replicas: int = 1, lost_in_memory_seconds: float = 0.0
) -> float:
    """Return the most that ``failures`` successive failures cost a job: the failure slack of a promise.

    ``cost``: one failure after which the last durable state is loaded. ``replicas``: copies of the state in
    memory, including the local one; 1 survives no loss of a server. With more, a failure costs
    ``lost_in_memory_seconds`` of work. Of ``replicas`` failures, which together may lose all copies, the last
    one falls back to the durable state.
    """
    fall_backs = failures // replicas
    repairs = failures * (cost.seconds - cost.lost_work_seconds)
    lost_in_memory = min(lost_in_memory_seconds, cost.lost_work_seconds)
    return repairs + fall_backs * cost.lost_work_seconds + (failures - fall_backs) * lost_in_memory


def lost_share(failures_a_day: float, cost: FailureCost) -> float:
    """Return λ·O, the share of a day lost to failures, to first order and at most 1.

    ``failures_a_day``: of all machines of the job together.
    """
    return min(1.0, failures_a_day * cost.seconds / SECONDS_PER_DAY)


def effective_share(failures_a_day: float, cost: FailureCost, base: float = 1.0) -> float:
    """Return the share of time in which a job trains: ``base``, the share without failures, less λ·O (the
    published formula)."""
    return max(0.0, base - lost_share(failures_a_day, cost))


def renewed_share(failures_a_day: float, cost: FailureCost, base: float = 1.0) -> float:
    """Return the same when failures strike only productive time: ``base`` / (1 + λ·O)."""
    return base / (1.0 + failures_a_day * cost.seconds / SECONDS_PER_DAY)
