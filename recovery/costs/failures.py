"""What failures cost a job: phase by phase for one, for as many as the reserve covers, and as a share of
time.

Admission, live and simulated, and the reproduction of the paper call the same functions.
"""

from __future__ import annotations

from dataclasses import dataclass

SECONDS_PER_DAY = 86_400.0
#: Share of a day's machines that fail, as published for large clusters (Gemini, section 7).
PUBLISHED_FAILURES_A_DAY = 0.015


@dataclass(frozen=True, slots=True)
class FailureCost:
    """The phases of one failure, in seconds. Bounds in, a bound out; means in, a mean out.

    ``fence_seconds``: until the lost server is given up, its margin included. ``resources_seconds``: until
    other GPUs are there. ``recovery_seconds``: until training goes on: state loaded, workers started.
    ``lost_work_seconds``: work since the recovery point that is used. Raises ValueError for negative times.
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
    """What ``failures`` failures, one after the other, cost a job at most: the failure slack of a promise.

    ``cost``: one failure from which the last durable state is loaded. ``replicas``: copies of the state in
    memory, the local one included; 1 survives no loss of a server. With more, a failure costs
    ``lost_in_memory_seconds`` of work. As many failures as replicas may lose all copies: the last of them
    goes back to the durable state, and those before it have cost their part by then.
    """
    fall_backs = failures // replicas
    repairs = failures * (cost.seconds - cost.lost_work_seconds)
    lost_in_memory = min(lost_in_memory_seconds, cost.lost_work_seconds)
    return repairs + fall_backs * cost.lost_work_seconds + (failures - fall_backs) * lost_in_memory


def lost_share(failures_a_day: float, cost: FailureCost) -> float:
    """λ·O: the share of a day that failures take, to first order, at most all of it.

    ``failures_a_day``: of all machines of the job together.
    """
    return min(1.0, failures_a_day * cost.seconds / SECONDS_PER_DAY)


def effective_share(failures_a_day: float, cost: FailureCost, base: float = 1.0) -> float:
    """The share of time in which a job trains: ``base`` without failures, less λ·O (the published
    formula)."""
    return max(0.0, base - lost_share(failures_a_day, cost))


def renewed_share(failures_a_day: float, cost: FailureCost, base: float = 1.0) -> float:
    """The same where failures strike productive time alone: ``base`` / (1 + λ·O)."""
    return base / (1.0 + failures_a_day * cost.seconds / SECONDS_PER_DAY)
