"""Failures of servers: read from a file, or drawn by seed from a mean rate."""

from __future__ import annotations

import csv
from dataclasses import replace
from math import isfinite
from pathlib import Path

import numpy as np

from recovery.costs.failures import FailureCost, failures_cost_seconds
from scheduling.core.elasticflow.pause_budget import published_pause_seconds
from scheduling.core.plans.reserve import seconds_to_place_again
from simulation.engine.asked.pauses import Pauses
from simulation.engine.asked.settings import Recovery, SimulationSettings
from simulation.engine.outside.happenings import Happening, HappeningKind
from simulation.workloads.workload import Workload

SECONDS_PER_DAY = 86_400.0
MEAN_REPAIR_SECONDS = 4 * 3600.0
LARGEST_LEVEL = 64
"""GPUs of the largest job whose restart the reserve's slack pays for."""
COLUMNS = ("at_seconds", "server", "event")
EVENTS = {
    "lost": HappeningKind.SERVER_LOST,
    "back": HappeningKind.SERVER_BACK,
    "silent": HappeningKind.AGENT_SILENT,
    "heard": HappeningKind.AGENT_HEARD,
}


def read_failures(given: str | None, settings: SimulationSettings, workload: Workload) -> list[Happening]:
    """Return failures as the command line gives them: a file, or a mean number per server and day.

    Raises ValueError with one line that says what is wrong and what would be right.
    """
    if given is None:
        return []
    rate = rate_of_failures(given)
    if rate is None:
        return _from_file(Path(given), settings.pools[0].servers + _inference_servers(settings))
    return drawn_failures(rate, settings, workload)


def rate_of_failures(given: str | None) -> float | None:
    """Return the mean number of failures per server and day of the command line; None for a file or nothing.

    Raises ValueError as `read_failures` does.
    """
    if given is None:
        return None
    try:
        rate = float(given)
    except ValueError:
        return None
    if not isfinite(rate) or rate < 0:
        raise ValueError(f"--failures: a rate is a number of failures a server and day, not {given}")
    return rate


def drawn_failures(
    failures_a_day: float,
    settings: SimulationSettings,
    workload: Workload,
    *,
    mean_repair_seconds: float = MEAN_REPAIR_SECONDS,
) -> list[Happening]:
    """Draw failures by seed: times to a failure and times to repair are exponentially distributed.

    Servers of a lending inference cluster fail too. Failures are drawn until one day after the last deadline
    or submission.
    """
    if failures_a_day <= 0 or not workload.jobs:
        return []
    end = end_of_trace(workload) + SECONDS_PER_DAY
    happenings = []
    for number, pool in enumerate(settings.pools):
        servers = pool.servers + (0 if number else _inference_servers(settings))
        seeds = np.random.SeedSequence([settings.seed, number, 7]).spawn(servers)
        for server in range(servers):
            rng = np.random.default_rng(seeds[server])
            at = float(workload.submitted_at[0]) + rng.exponential(SECONDS_PER_DAY / failures_a_day)
            while at < end:
                happenings.append(Happening(at, HappeningKind.SERVER_LOST, server, number))
                at += settings.imperfections.fence_seconds + rng.exponential(mean_repair_seconds)
                happenings.append(Happening(at, HappeningKind.SERVER_BACK, server, number))
                at += rng.exponential(SECONDS_PER_DAY / failures_a_day)
    return sorted(happenings)


def end_of_trace(workload: Workload) -> float:
    """Return the last submission or deadline, in seconds of the trace."""
    finite = workload.deadline_at[np.isfinite(workload.deadline_at)]
    return float(max(workload.submitted_at[-1], finite.max(initial=0.0)))


def _inference_servers(settings: SimulationSettings) -> int:
    lending = settings.sharing.lending if settings.sharing is not None else None
    return 0 if lending is None else lending.servers


#: Iterations that a recovery point in memory may lack: the one in progress, and the one during which it was
#: sent.
ITERATIONS_BEHIND = 2.0


def reserve_slack_seconds(settings: SimulationSettings, workload: Workload) -> float:
    """Return the seconds that each promise keeps for the failures covered by the reserve."""
    if not settings.reserve_servers:
        return 0.0
    cost = failure_cost(settings)
    if settings.recovery is Recovery.DURABLE:
        return failures_cost_seconds(settings.reserve_servers, cost)
    return failures_cost_seconds(
        settings.reserve_servers,
        cost,
        replicas=_replicas(settings),
        lost_in_memory_seconds=ITERATIONS_BEHIND * longest_iteration_seconds(settings, workload),
    )


def one_failure(settings: SimulationSettings, workload: Workload) -> FailureCost:
    """Return the cost of one failure to a job: O in λ·O."""
    cost = failure_cost(settings)
    if settings.recovery is Recovery.DURABLE or _replicas(settings) < 2:
        return cost
    lost = ITERATIONS_BEHIND * longest_iteration_seconds(settings, workload)
    return replace(cost, lost_work_seconds=min(lost, cost.lost_work_seconds))


def failure_cost(settings: SimulationSettings) -> FailureCost:
    """Return the phases of one failure after which the last durable state is loaded."""
    largest = max(pool.gpus for pool in settings.pools)
    pause = 0.0
    if settings.pauses is Pauses.MEASURED:
        pause = published_pause_seconds(min(LARGEST_LEVEL, largest), cluster_gpus=largest)
    imperfections = settings.imperfections
    return FailureCost(
        fence_seconds=imperfections.fence_seconds,
        resources_seconds=seconds_to_place_again(settings.slot_seconds),
        recovery_seconds=pause,
        lost_work_seconds=imperfections.checkpoint_seconds,
    )


def _replicas(settings: SimulationSettings) -> int:
    """Return the copies still on servers when the reserve is used up; copies are on different servers."""
    return min(settings.replicas, max(1, _fewest_servers(settings) - settings.reserve_servers + 1))


def _fewest_servers(settings: SimulationSettings) -> int:
    return min(pool.servers for pool in settings.pools)


def longest_iteration_seconds(settings: SimulationSettings, workload: Workload) -> float:
    """Return the longest iteration of any job on any number of GPUs of the pools' kinds; 0 without jobs."""
    kinds = {pool.kind for pool in settings.pools}
    slowest = min(
        (
            float(measured.iterations_per_second.min())
            for profile in workload.profiles
            for kind, measured in profile.by_kind.items()
            if kind in kinds and measured.iterations_per_second.size
        ),
        default=float("inf"),
    )
    return 1.0 / (slowest * (1.0 - settings.imperfections.profile_error))


def _from_file(path: Path, servers: int) -> list[Happening]:
    if not path.exists():
        raise ValueError(f"--failures: {path} is neither a file nor a number of failures a server and day")
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or [])]
        if missing:
            raise ValueError(f"{path}: no column {missing[0]}; a file of failures has {', '.join(COLUMNS)}")
        return sorted(_row(path, line, row, servers) for line, row in enumerate(reader, start=2))


def _row(path: Path, line: int, row: dict[str, str], servers: int) -> Happening:
    where = f"{path}, line {line}"
    if row["event"] not in EVENTS:
        raise ValueError(f"{where}: event is one of {', '.join(EVENTS)}, not {row['event']!r}")
    try:
        at, server = float(row["at_seconds"]), int(row["server"])
    except (TypeError, ValueError):
        raise ValueError(f"{where}: at_seconds is a number and server a whole number") from None
    if not 0 <= server < servers or not isfinite(at) or at < 0:
        raise ValueError(f"{where}: server lies between 0 and {servers - 1}, and at_seconds is not negative")
    return Happening(at, EVENTS[row["event"]], server)
