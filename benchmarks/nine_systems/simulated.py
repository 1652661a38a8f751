"""Simulated days: one mix of jobs with all systems, and with each system switched off in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np

from benchmarks.nine_systems.curves import GPUS_PER_SERVER, KINDS, System, curve
from benchmarks.nine_systems.tables import Table, count
from scheduling.core.question.snapshot import ServiceClass
from simulation.engine.asked.lending import Lending
from simulation.engine.asked.settings import Imperfections, PoolSize, Recovery, SimulationSettings
from simulation.engine.asked.sharing import SharingSettings
from simulation.engine.outside.failures import reserve_slack_seconds
from simulation.engine.outside.happenings import Happening, HappeningKind
from simulation.engine.run import Simulation
from simulation.engine.world.memory_points import Loss
from simulation.inference.catalogue import read_usage
from simulation.outcome import JobEnd, RunOutcome
from simulation.reports.summary import summary
from simulation.workloads.workload import ModelProfile, Workload

KIND = "V100"
HOUR, DAY = 3600.0, 86_400.0
#: Running time of a job on its drawn GPUs without any system, and its deadline in multiples of that.
LEAST_SECONDS, MOST_SECONDS = 0.5 * HOUR, 6 * HOUR
TIGHTEST, LOOSEST = 0.5, 1.5
BEST_EFFORT_SHARE = 0.3
#: Time until a lost server is back; one is lost at a time, which the reserve covers.
REPAIR_SECONDS = 4 * HOUR
#: `punctual` joins two systems, so switching one off leaves the other.
_POLICIES: Mapping[System | None, str] = {System.ELASTICFLOW: "lyra", System.LYRA: "elasticflow"}


@dataclass(frozen=True)
class DaySize:
    """Size of a simulated day."""

    servers: int = 16
    inference_servers: int = 8
    jobs: int = 240
    failures: int = 4
    seconds: float = DAY
    kinds: tuple[str, ...] = KINDS


@dataclass
class DayResult:
    """Tables of the day, and the promises that were missed."""

    heading: str
    tables: list[Table]
    missed: list[str] = field(default_factory=list)


def simulate_day(
    seeds: Sequence[int], size: DaySize | None = None, off: Sequence[System] = tuple(System)
) -> DayResult:
    """Simulate a day of each seed with all systems, and without each of `off`."""
    size = size or DaySize()
    rows, missed = [], []
    for system in (None, *off):
        name = "all nine" if system is None else f"without {system}"
        outcomes = [simulate(seed, size, system) for seed in seeds]
        rows.append((name, *_cells(outcomes)))
        missed += [f"{name}: {job}, {why}" for each in outcomes for job, why in each.broken.items()]
        print(" | ".join(rows[-1]), flush=True)
    hours, lent = size.seconds / HOUR, size.inference_servers
    heading = (
        f"{count(len(seeds), 'simulated day')} (seeds {', '.join(map(str, seeds))}) of {hours:g} hours, each "
        f"with {size.jobs} jobs on {size.servers} servers of {GPUS_PER_SERVER} GPUs and up to {lent} "
        f"borrowed servers; {count(size.failures, 'server')} fail each day. Counts are summed over the days, "
        f"other figures are means."
    )
    return DayResult(heading, [Table("All days", COLUMNS, rows)], missed)


def simulate(seed: int, size: DaySize, off: System | None) -> RunOutcome:
    """Return the outcome of the day without one system, or with all of them."""
    workload = draw(seed, size, off)
    settings = settings_of(seed, size, off, workload)
    return Simulation(workload, settings, failures(seed, size)).run()


def settings_of(seed: int, size: DaySize, off: System | None, workload: Workload) -> SimulationSettings:
    """Return the settings of a run."""
    lending = Lending(size.inference_servers, read_usage("daily", seed=seed), inference_gpu_type=KIND)
    sharing = SharingSettings(rules=None, lending=lending)
    settings = SimulationSettings(
        policy=_POLICIES.get(off, "punctual"),
        pools=(PoolSize(KIND, size.servers, GPUS_PER_SERVER),),
        slot_seconds=60.0,
        reserve_servers=1,
        seed=seed,
        imperfections=Imperfections(profile_error=0.03, promise_margin=0.05),
        sharing=None if off is System.LYRA else sharing,
        recovery=Recovery.DURABLE if off is System.GEMINI else Recovery.MEMORY,
        failures_per_server_day=size.failures / size.servers * DAY / size.seconds,
    )
    return replace(settings, reserve_slack_seconds=reserve_slack_seconds(settings, workload))


def draw(seed: int, size: DaySize, off: System | None) -> Workload:
    """Return the jobs of a seed. Their requests are the same for all systems: they are based on the
    throughput without any system."""
    random = np.random.default_rng(seed)
    plain = [_without_any(kind) for kind in size.kinds]
    of = random.integers(len(size.kinds), size=size.jobs)
    seconds = np.exp(random.uniform(np.log(LEAST_SECONDS), np.log(MOST_SECONDS), size=size.jobs))
    submitted = np.sort(random.uniform(0.0, size.seconds, size=size.jobs))
    submitted[0] = 0.0
    factors = random.uniform(TIGHTEST, LOOSEST, size=size.jobs)
    best_effort = random.random(size.jobs) < BEST_EFFORT_SHARE
    asked = np.array(
        [_drawn_level(plain[row], draw) for row, draw in zip(of, random.random(size.jobs), strict=True)]
    )
    rates = np.array([plain[row][level] for row, level in zip(of, asked, strict=True)])
    return Workload(
        name="nine systems",
        source=f"drawn by seed {seed}",
        job_id=tuple(f"{size.kinds[row]} {number}" for number, row in enumerate(of)),
        service_class=tuple(ServiceClass.BEST_EFFORT if each else ServiceClass.SLO for each in best_effort),
        submitted_at=submitted,
        deadline_at=np.where(best_effort, np.inf, submitted + factors * seconds),
        iterations=np.ceil(seconds * rates),
        profile_of=of.astype(np.int64),
        requested_gpus=np.array(asked, dtype=np.int64),
        requested_seconds=seconds,
        profiles=tuple(ModelProfile(kind, 1024, {KIND: curve(kind, off)}) for kind in size.kinds),
    )


def _without_any(kind: str) -> dict[int, float]:
    """Return the lowest throughput by GPUs over all systems that are switched off."""
    found: dict[int, float] = {}
    for off in (None, *System):
        measured = curve(kind, off)
        for gpus, rate in zip(measured.gpus.tolist(), measured.iterations_per_second.tolist(), strict=True):
            found[gpus] = min(rate, found.get(gpus, rate))
    least = max(int(curve(kind, off).gpus[0]) for off in System)
    return {gpus: rate for gpus, rate in found.items() if gpus >= least}


def _drawn_level(rates: dict[int, float], draw: float) -> int:
    """Return a level of at most two servers, uniformly, or the smallest level if there is none."""
    levels = [gpus for gpus in rates if gpus <= 2 * GPUS_PER_SERVER] or [min(rates)]
    return levels[int(draw * len(levels))]


def failures(seed: int, size: DaySize) -> list[Happening]:
    """Return servers that are lost one after another and come back."""
    random = np.random.default_rng((seed, 1))
    spacing = size.seconds / size.failures
    happenings = []
    for number in range(size.failures):
        room = max(0.0, spacing - REPAIR_SECONDS)
        at = number * spacing + float(random.uniform(0.0, room))
        server = int(random.integers(size.servers))
        happenings.append(Happening(at, HappeningKind.SERVER_LOST, server))
        happenings.append(Happening(at + min(REPAIR_SECONDS, spacing), HappeningKind.SERVER_BACK, server))
    return happenings


COLUMNS = (
    "", "deadlines met", "promises, missed", "completion, best effort", "completion, all", "completed",
    "GPUs in use", "recoveries from memory, durable", "servers on loan", "periods with too few servers",
)  # fmt: skip


def _cells(outcomes: Sequence[RunOutcome]) -> tuple[str, ...]:
    """Return counts summed, and means averaged, over runs."""
    facts = [summary(each) for each in outcomes]

    def total(name: str) -> int:
        return sum(each[name] for each in facts)

    def mean(name: str) -> float:
        return fmean(each[name] or 0.0 for each in facts)

    promised = sum(sum(each.jobs.promised) for each in outcomes)
    broken = sum(len(each.broken) for each in outcomes)
    completed = sum(end is JobEnd.COMPLETED for each in outcomes for end in each.jobs.end)
    recovered = [sum(each.counts.get(loss, 0) for each in outcomes) for loss in (Loss.MEMORY, Loss.DURABLE)]
    return (
        f"{total('deadlines_met')} of {total('slo_jobs')}",
        f"{promised}, {broken}",
        f"{mean('best_effort_mean_jct_seconds') / HOUR:.2f} h",
        f"{mean('mean_jct_seconds') / HOUR:.2f} h",
        f"{completed} of {total('jobs')}",
        f"{mean('mean_gpu_utilisation'):.0%}",
        f"{recovered[0]}, {recovered[1]}",
        f"{mean('servers_on_loan_mean'):.1f}",
        str(total("shortfall_periods")),
    )
