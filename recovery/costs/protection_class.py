"""The protection of a job's state that a promise may rely on: a bound on the work lost with one server.

A *safe* state survives the loss of any single server: a durable state, or one in memory with all its copies.
Whenever the newest safe state is older than the bound of the job's class, the workers store a durable one.
So the bound holds whether or not copies in memory work, and nothing is stored while they do.
"""

from __future__ import annotations

from dataclasses import dataclass

from recovery.costs.failures import FailureCost, failures_cost_seconds

#: Least bound on the age of the safe state when the age of points in memory has not been measured.
LEAST_SAFE_SECONDS = 15.0
#: While copies in memory are missing, storing durable states stops training for at most 1 / this of the time.
LARGEST_SHARE_OF_COPYING = 50
#: Copies in memory, including the local one.
REPLICAS = 2
#: Iterations from when a state is too old until it is captured: the iteration in progress, and the one by
#: which all ranks have agreed.
ITERATIONS_TO_CAPTURE = 2


@dataclass(frozen=True, slots=True)
class StateFigures:
    """Measured times of storing one durable state of a job.

    ``copy_seconds``: how long training stops. ``storing_seconds``: from then until all parts are stored.
    ``point_seconds``: greatest age of the newest point in memory with all its copies; None when none was
    seen.
    """

    copy_seconds: float
    storing_seconds: float
    point_seconds: float | None = None


def point_age_iterations(
    every: int, iterations: int, iteration_seconds: float, copy_seconds: float, extension_seconds: float
) -> float:
    """Return the greatest age of the newest complete point in memory, in iterations.

    A point counts once its copies have arrived and the next vote has confirmed it. It stays the newest until
    its successor is confirmed. ``every``: iterations between points. ``iterations``: over which its copies
    are spread. ``copy_seconds``: network time of the copies. ``extension_seconds``: time that they add to an
    iteration.
    """
    copying = max(float(iterations), copy_seconds / iteration_seconds)
    return every + copying + 1.0 + extension_seconds / iteration_seconds


@dataclass(frozen=True, slots=True)
class ProtectionClass:
    """What is promised about a job's state.

    ``replicas``: copies in memory, including the local one; 1 when memory does not count. ``safe_seconds``:
    after this long without a safe state the workers store a durable one. ``durable_seconds``: the same for
    durable states, regardless of memory.
    """

    replicas: int
    safe_seconds: float
    durable_seconds: float

    def __post_init__(self) -> None:
        if self.replicas < 1 or not 0.0 < self.safe_seconds <= self.durable_seconds < float("inf"):
            raise ValueError(f"no protection: {self}")

    @property
    def in_memory(self) -> bool:
        """Whether the class relies on copies in memory."""
        return self.replicas > 1


def durable_class(durable_seconds: float) -> ProtectionClass:
    """Return a class that relies on durable states alone."""
    return ProtectionClass(1, durable_seconds, durable_seconds)


def chosen_class(
    figures: StateFigures | None,
    servers_with_room: int,
    durable_seconds: float,
    *,
    replicas: int = REPLICAS,
    points_seconds: float = 0.0,
) -> ProtectionClass:
    """Return the class that may be promised to a job that has not trained yet.

    ``figures``: of states like the job's; None when none has been stored. ``servers_with_room``: servers with
    memory for the job's state besides what they hold. ``durable_seconds``: longest interval between durable
    states. ``replicas``: copies asked for, including the local one; limited by ``servers_with_room``.
    ``points_seconds``: longest interval between points in memory that the owner asked for.

    Copies in memory count if there is room and their bound is below ``durable_seconds``. The bound is long
    enough that storing durable states while copies are missing stops training for at most a fiftieth of the
    time, and that each durable state is stored before the next is due.
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
    """Return the most work lost when a state is captured ``between_seconds`` after the previous one.

    A state counts once it is stored. The next one begins an iteration later, when that is known. Until then
    the previous one is the newest.
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
    """Return the most that one lost server costs a job of this class: O in λ·O. Arguments as below."""
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
    """Return the most that ``failures`` lost servers cost a job of this class: the slack of its promise.

    ``repair_seconds``: of one failure: until the server is given up, from then until other GPUs are
    available, and from then until training resumes. ``iteration_seconds``: longest iteration.
    """
    fence, resources, recovery = repair_seconds
    durable = lost_work_seconds(chosen.durable_seconds, storing_seconds, iteration_seconds)
    return failures_cost_seconds(
        failures,
        FailureCost(fence, resources, recovery, durable),
        replicas=chosen.replicas,
        lost_in_memory_seconds=lost_work_seconds(chosen.safe_seconds, storing_seconds, iteration_seconds),
    )
