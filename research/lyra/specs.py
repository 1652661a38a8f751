"""One run of Lyra's evaluation: its identity, and how it is made."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from research.lyra import results
from research.runs import simulated
from research.sources import code_digest
from research.store import RunResult
from scheduling.core.lyra.reclaiming.methods import ReclaimMethod
from scheduling.core.question.options import options_of
from scheduling.core.question.two_phase_options import TwoPhaseOptions
from simulation.engine.asked.lending import Lending
from simulation.engine.asked.pauses import Pauses
from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.engine.asked.sharing import SharingSettings
from simulation.engine.run import Progress
from simulation.inference.catalogue import read_usage
from simulation.workloads.catalogue import load_workload
from simulation.workloads.linear import TRAINING_GPU, as_linear
from simulation.workloads.scenarios import RULES, Scenario, ScenarioRules
from simulation.workloads.synthetic_lyra import with_large_jobs
from simulation.workloads.workload import Workload

FORMAT = 2
GPUS_PER_SERVER = 8
SHORTEST_SECONDS = 60.0
DAYS, DAY_SECONDS = 15.0, 86_400.0
Override = tuple[str, float]


@dataclass(frozen=True, slots=True)
class Size:
    """A training and an inference cluster, and their workload."""

    servers: int
    inference_servers: int
    #: Name of the workload.
    trace: str

    @property
    def gpus(self) -> int:
        """GPUs of the training cluster."""
        return self.servers * GPUS_PER_SERVER


@dataclass(frozen=True, slots=True)
class LyraSpec:
    """One policy in one scenario on one pair of clusters.

    ``rules``, ``two_phase`` and ``lending``: fields of `ScenarioRules`, `TwoPhaseOptions` and `Lending` that
    differ from the scenario's, with their values (booleans as 0 or 1). ``days``: the days of the trace, in
    order, that make up the jobs; empty is the whole trace. ``slot_seconds``: the scheduler's period.
    ``large_jobs``: share of the training cluster that one job of a hundred asks for; 0 leaves jobs unchanged.
    """

    #: Name of the policy.
    policy: str
    size: Size
    seed: int = 0
    scenario: Scenario = Scenario.BASIC
    #: Whether servers are lent to training.
    loaning: bool = False
    #: Whether jobs are elastic.
    scaling: bool = False
    reclaim: ReclaimMethod = ReclaimMethod.LYRA
    rules: tuple[Override, ...] = ()
    two_phase: tuple[Override, ...] = ()
    expansion: int = 3
    slot_seconds: float = 30.0
    #: Name of the inference cluster's usage curve.
    usage: str = "daily"
    days: tuple[int, ...] = ()
    lending: tuple[Override, ...] = ()
    large_jobs: float = 0.0

    @property
    def trace(self) -> str:
        """The workload's name."""
        return self.size.trace

    @property
    def name(self) -> str:
        """The policy and the workload."""
        return f"{self.policy} on {self.trace}"

    @property
    def place(self) -> tuple[str, int]:
        """Workload and seed: one workload."""
        return self.trace, self.seed

    def described(self) -> str:
        """Return the origin of this run's numbers, in one line."""
        loans = f"on, {self.reclaim.value}" if self.loaning else "off"
        parts = [
            f"simulated, policy {self.policy}", f"workload {self.trace}", f"seed {self.seed}",
            f"{self.size.servers} + {self.size.inference_servers} servers of {GPUS_PER_SERVER} GPUs",
            f"scenario {self.scenario.value}", f"loaning {loans}",
            f"scaling {'on' if self.scaling else 'off'}",
            f"slot {self.slot_seconds:g} s",
            *(f"{name} {value:g}" for name, value in (*self.rules, *self.two_phase, *self.lending)),
        ]  # fmt: skip
        if self.expansion != 3:
            parts.append(f"expansion {self.expansion}")
        if self.days:
            parts.append(f"days {', '.join(map(str, self.days))}")
        if self.large_jobs:
            parts.append(f"one job of a hundred on {self.large_jobs:.0%} of the cluster")
        return "; ".join(parts)

    def as_json(self) -> dict[str, object]:
        """Return the fields as plain values."""
        return asdict(self)

    def key(self) -> str:
        """Return the result's key: equal for equal jobs, settings and program. Raises TraceError for a
        missing trace."""
        usage = read_usage(self.usage, seed=self.seed) if self.loaning else None
        determined = {
            "format": FORMAT,
            "spec": self.as_json(),
            "workload": _digest(workload_of(self)),
            "usage": "" if usage is None else hashlib.sha256(usage.usage.tobytes()).hexdigest(),
            "code": code_digest(self.policy, results.__name__),
        }
        return hashlib.sha256(json.dumps(determined, sort_keys=True).encode()).hexdigest()[:24]

    def run(self, progress: Progress | None = None) -> RunResult:
        """Run to the end. Raises KeyboardInterrupt if it was ended early, TraceError for a missing trace."""
        outcome = simulated(workload_of(self), settings_of(self), progress)
        usage = read_usage(self.usage, seed=self.seed).usage
        return results.result_of(outcome, inference_servers=self.size.inference_servers, usage=usage)


def settings_of(spec: LyraSpec) -> SimulationSettings:
    """Return the settings of the simulator."""
    rules = replace(RULES[spec.scenario], **values_of(spec.rules, ScenarioRules))
    lending = None
    if spec.loaning:
        usage = read_usage(spec.usage, seed=spec.seed)
        lending = Lending(spec.size.inference_servers, usage, reclaim=spec.reclaim)
        lending = replace(lending, **values_of(spec.lending, Lending))
    return SimulationSettings(
        policy=spec.policy,
        pools=(PoolSize(TRAINING_GPU, spec.size.servers, GPUS_PER_SERVER),),
        slot_seconds=spec.slot_seconds,
        pauses=Pauses.NONE,
        seed=spec.seed,
        sharing=SharingSettings(
            rules=rules,
            scaling=spec.scaling,
            lending=lending,
            expansion=spec.expansion,
            two_phase=TwoPhaseOptions(**values_of(spec.two_phase, TwoPhaseOptions)),
        ),
    )


def values_of(overrides: tuple[Override, ...], dataclass_type: type) -> dict[str, Any]:
    """Convert numbers to the fields' types: booleans, counts, shares."""
    told = {one.name: one for one in options_of(dataclass_type).values()}
    return {name: told[name].read(value) for name, value in overrides}


def workload_of(spec: LyraSpec) -> Workload:
    """Return the jobs of a run. Raises TraceError if the trace is missing or unreadable."""
    workload = _loaded(spec.trace, spec.seed, spec.size.gpus)
    if spec.large_jobs:
        servers = max(1, round(spec.large_jobs * spec.size.servers))
        workload = with_large_jobs(workload, servers * GPUS_PER_SERVER, spec.seed)
    return resampled(workload, spec.days) if spec.days else workload


@lru_cache(maxsize=4)
def _loaded(trace: str, seed: int, gpus: int) -> Workload:
    name, _, load = trace.partition("@")
    workload = load_workload(name, seed=seed, allow_paths=False)
    return fitted(as_linear(workload), float(load), gpus) if load else workload


def fitted(workload: Workload, load: float, gpus: int, days: float = DAYS) -> Workload:
    """Return the first jobs of a public trace, of a minute or more and that fit the cluster, which ask for
    ``load`` of its GPUs over ``days``; the times between submissions are scaled for that."""
    kept = (workload.requested_seconds >= SHORTEST_SECONDS) & (workload.requested_gpus <= gpus)
    workload = workload.take(np.flatnonzero(kept))
    work = np.cumsum(workload.requested_gpus * workload.requested_seconds)
    wanted = load * gpus * days * DAY_SECONDS
    count = min(workload.jobs, int(np.searchsorted(work, wanted)) + 1)
    workload = workload.first(count)
    seconds = days * DAY_SECONDS * min(1.0, float(work[count - 1]) / wanted)
    at = workload.submitted_at - workload.submitted_at[0]
    return replace(workload, submitted_at=at * (seconds / max(1.0, float(at[-1]))))


def resampled(workload: Workload, days: tuple[int, ...]) -> Workload:
    """Return the trace made of some of its days in sequence, possibly with repetition."""
    day = (workload.submitted_at // DAY_SECONDS).astype(np.int64)
    rows = [np.flatnonzero(day == one) for one in days]
    shift = [
        np.full(part.size, DAY_SECONDS * (place - one))
        for place, (one, part) in enumerate(zip(days, rows, strict=True))
    ]
    taken = workload.take(np.concatenate(rows))
    names = tuple(f"{name}-{number}" for number, name in enumerate(taken.job_id))
    return replace(taken, submitted_at=taken.submitted_at + np.concatenate(shift), job_id=names)


def _digest(workload: Workload) -> str:
    digest = hashlib.sha256()
    for column in (workload.submitted_at, workload.requested_gpus, workload.requested_seconds):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()
