"""How a job's state is protected, as far as a promise may count on it: a bound on the work that one lost
server costs.

A *safe* state is one that the loss of any single server leaves: a durable one, or one in memory with all its
copies. The workers keep it young: whenever the newest safe state is older than the bound of their class, they
store a durable one. So the bound holds whether copies in memory work or not; where they do, nothing is
stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from recovery.costs.failures import FailureCost, failures_cost_seconds

#: No safe state has to be younger than that where nobody has seen how young points in memory are.
LEAST_SAFE_SECONDS = 15.0
#: While copies in memory are missing, storing durable states stops training for a part in so many.
LARGEST_SHARE_OF_COPYING = 50
#: Copies in memory, the local one included.
REPLICAS = 2
#: From a state being too old until it is captured: the iteration in progress, and the one by which all ranks
#: have agreed.
ITERATIONS_TO_CAPTURE = 2


@dataclass(frozen=True, slots=True)
class StateFigures:
    """What storing one durable state of a job takes, as measured. ``copy_seconds``: for so long training
    stops. ``storing_seconds``: from then on until every part of it is stored.

    ``point_seconds``: the greatest age of the newest point in memory that has all its copies; None where none
    was seen.
    """

    copy_seconds: float
    storing_seconds: float
    point_seconds: float | None = None


def point_age_iterations(
    every: int, iterations: int, iteration_seconds: float, copy_seconds: float, extension_seconds: float
) -> float:
    """The greatest age of the newest complete point in memory, in iterations.

    A point counts once its copies are there and the next vote has said so; until the one after it does, it is
    the newest. ``every``: iterations from one point to the next. ``iterations``: over which its copies are
    spread. ``copy_seconds``: on the network. ``extension_seconds``: by which they lengthen an iteration.
    """
    copying = max(float(iterations), copy_seconds / iteration_seconds)
    return every + copying + 1.0 + extension_seconds / iteration_seconds


@dataclass(frozen=True, slots=True)
class ProtectionClass:
    """What is promised of a job's state.

    ``replicas``: copies in memory, the local one included; 1 for none that counts. ``safe_seconds``: after so
    long without a safe state the workers store one. ``durable_seconds``: the same for durable states,
    whatever is in memory.
    """

    replicas: int
    safe_seconds: float
    durable_seconds: float

    def __post_init__(self) -> None:
        if self.replicas < 1 or not 0.0 < self.safe_seconds <= self.durable_seconds < float("inf"):
            raise ValueError(f"no protection: {self}")

    @property
    def in_memory(self) -> bool:
        """Whether it counts on copies in memory."""
        return self.replicas > 1


def durable_class(durable_seconds: float) -> ProtectionClass:
    """A class that counts on durable states alone."""
    return ProtectionClass(1, durable_seconds, durable_seconds)


def chosen_class(
    figures: StateFigures | None,
    servers_with_room: int,
    durable_seconds: float,
    *,
    replicas: int = REPLICAS,
    points_seconds: float = 0.0,
) -> ProtectionClass:
    """The class that may be promised to a job that has not trained yet.

    ``figures``: of states like its own; None where nobody has stored one. ``servers_with_room``: servers
    whose memory takes its state beside what is there. ``durable_seconds``: how far apart durable states are
    at most. ``replicas``: copies asked for, the local one included; as many as have room count.
    ``points_seconds``: how far apart points in memory may be, as the owner asked for.

    Copies in memory count where there is room for them and the bound is worth anything: it is never so short
    that durable states, while copies are missing, would stop training for more than a fiftieth of the time,
    or have to be stored before the last one is.
    """
    durable = durable_class(durable_seconds)
    replicas = min(replicas, servers_with_room)
    if figures is None or replicas < REPLICAS:
        return durable
    least = LEAST_SAFE_SECONDS
    if figures.point_seconds is not None:
        least = min(least, figures.point_seconds)
    safe_seconds = max(
        least,
        LARGEST_SHARE_OF_COPYING * figures.copy_seconds,
        figures.storing_seconds,
        points_seconds,
    )
    return (
        ProtectionClass(replicas, safe_seconds, durable_seconds)
        if safe_seconds < durable_seconds
        else durable
    )


def lost_work_seconds(between_seconds: float, storing_seconds: float, iteration_seconds: float) -> float:
    """The most work that is lost where a state is captured ``between_seconds`` after the one before it.

    A state counts once it is stored, and the next one is begun after that is known, an iteration later: until
    then the one before it is the newest.
    """
    captured_seconds = max(between_seconds, storing_seconds + iteration_seconds)
    return captured_seconds + ITERATIONS_TO_CAPTURE * iteration_seconds + storing_seconds


def one_failure(
    chosen: ProtectionClass,
    *,
    repair_seconds: tuple[float, float, float],
    storing_seconds: float,
    iteration_seconds: float,
) -> FailureCost:
    """What one lost server costs a job of that class at most: the O of λ·O. As below."""
    lost = lost_work_seconds(chosen.safe_seconds, storing_seconds, iteration_seconds)
    return FailureCost(*repair_seconds, lost)


def failure_slack_seconds(
    failures: int,
    chosen: ProtectionClass,
    *,
    repair_seconds: tuple[float, float, float],
    storing_seconds: float,
    iteration_seconds: float,
) -> float:
    """What ``failures`` lost servers cost a job of that class at most: the slack of its promise.

    ``repair_seconds``: of one failure, until the server is given up, until other GPUs are there, and until
    training goes on. ``iteration_seconds``: the longest of its iterations.
    """
    fence, resources, recovery = repair_seconds
    durable = lost_work_seconds(chosen.durable_seconds, storing_seconds, iteration_seconds)
    return failures_cost_seconds(
        failures,
        FailureCost(fence, resources, recovery, durable),
        replicas=chosen.replicas,
        lost_in_memory_seconds=lost_work_seconds(chosen.safe_seconds, storing_seconds, iteration_seconds),
    )
