"""One run of a figure: its identity, and its workload."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from research.elasticflow import generator, results
from research.runs import simulated
from research.sources import code_digest
from research.store import RunResult
from scheduling.core.question.snapshot import AdmissionRule, FloatArray
from simulation.engine.asked.pauses import Pauses
from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.engine.run import Progress
from simulation.workloads.catalogue import load_workload, reference_gpu_type
from simulation.workloads.public_traces import traces_folder
from simulation.workloads.synthetic import PROFILES
from simulation.workloads.throughputs import read_throughputs
from simulation.workloads.workload import Workload

FORMAT = 2
"""Version of stored results; changes with their contents."""

SYNTHETIC_TABLE = "elasticflow/throughput.csv"
"""In the traces folder: the measured throughputs of the models that the published generator draws."""

STANDS_IN = "elasticflow"
"""The synthetic profile used instead of the published generator if that table is missing."""


@dataclass(frozen=True, slots=True)
class ElasticFlowSpec:
    """One policy on one workload and cluster.

    ``trace``: a public trace, or a synthetic profile or the published generator (`generator.NAME`) with its
    options (`simulation.workloads.options`). ``begin_at`` (seconds of the trace) and ``jobs`` select the
    first ``jobs`` submissions from that time on; 0 keeps all. ``hold_arrivals``: submissions wait for the
    next planning instant, at least a slot after the last, as in the published simulator; deadlines are
    unchanged. ``deadline_draw``: number of the draw of what the published generator does not seed.
    """

    policy: str
    trace: str
    servers: int
    gpus_per_server: int
    slot_seconds: float
    seed: int = 0
    pauses: Pauses = Pauses.MEASURED
    admission: AdmissionRule = AdmissionRule.PER_JOB
    hold_arrivals: bool = False
    begin_at: float = 0.0
    jobs: int = 0
    deadline_draw: int = 0

    @property
    def name(self) -> str:
        """The policy and the trace."""
        return f"{self.policy} on {self.trace}"

    @property
    def place(self) -> tuple[str, int]:
        """Trace and seed: one workload."""
        return self.trace, self.seed

    @property
    def gpus(self) -> int:
        """GPUs of the cluster."""
        return self.servers * self.gpus_per_server

    @property
    def synthetic(self) -> bool:
        """Whether the workload is drawn by seed and needs no trace file."""
        return _name(self.trace) in (*PROFILES, generator.NAME)

    def described(self) -> str:
        """Return the origin of this run's numbers, in one line."""
        kind = "synthetic workload" if self.synthetic else "trace"
        parts = [
            f"simulated, policy {self.policy}",
            f"{kind} {self.trace}"
            + (f", {self.jobs} jobs from {self.begin_at:,.0f} s on" if self.jobs else ""),
            f"seed {self.seed}" + (f", draw {self.deadline_draw} of deadlines" if self.deadline_draw else ""),
            f"{self.servers} x {self.gpus_per_server} GPUs",
            f"slot {self.slot_seconds:g} s",
            f"pauses {self.pauses.value}",
        ]
        if self.admission is not AdmissionRule.PER_JOB:
            parts.append("newcomers of an instant admitted together or not at all")
        if self.hold_arrivals:
            parts.append("arrivals wait for the next planning instant")
        return "; ".join(parts)

    def as_json(self) -> dict[str, str | int | float | bool]:
        """Return the fields as plain values."""
        return asdict(self) | {"pauses": self.pauses.value, "admission": self.admission.value}

    def key(self) -> str:
        """Return the result's key: equal for equal jobs, settings and program. Raises TraceError as
        `workload_of` does."""
        determined = {
            "format": FORMAT,
            "spec": self.as_json() | {"trace": _name(self.trace)},
            "workload": _workload_digest(replace(self, policy="", hold_arrivals=False), traces_folder()),
            "code": code_digest(self.policy, results.__name__),
        }
        return hashlib.sha256(json.dumps(determined, sort_keys=True).encode()).hexdigest()[:24]

    def run(self, progress: Progress | None = None) -> RunResult:
        """Run to the end. Raises KeyboardInterrupt if ended early, TraceError as `workload_of` does."""
        workload = workload_of(self)
        outcome = simulated(workload, settings_of(self, workload), progress)
        bounds = {
            "slo_jobs_possible_alone": slo_jobs_possible_alone(self, workload),
            "slo_jobs_possible_as_requested": slo_jobs_possible_as_requested(workload),
        }
        return results.result_of(outcome, bounds)


def settings_of(spec: ElasticFlowSpec, workload: Workload) -> SimulationSettings:
    """Return the settings of the simulator."""
    pool = PoolSize(reference_gpu_type(workload), spec.servers, spec.gpus_per_server)
    return SimulationSettings(
        policy=spec.policy,
        pools=(pool,),
        slot_seconds=spec.slot_seconds,
        pauses=spec.pauses,
        admission=spec.admission,
        seed=spec.seed,
    )


def workload_of(spec: ElasticFlowSpec) -> Workload:
    """Return the jobs of a run. Raises TraceError if the trace is missing or unreadable."""
    workload = _loaded(spec.trace, spec.seed, spec.deadline_draw, traces_folder())
    if spec.begin_at or spec.jobs:
        rows = np.flatnonzero(workload.submitted_at >= spec.begin_at)
        workload = workload.take(rows[: spec.jobs] if spec.jobs else rows)
    if spec.hold_arrivals:
        workload = replace(
            workload, submitted_at=held_until_instants(workload.submitted_at, spec.slot_seconds)
        )
    return workload


@lru_cache(maxsize=3)
def _loaded(trace: str, seed: int, draw: int, folder: Path | None) -> Workload:
    if _name(trace) != generator.NAME:
        return load_workload(trace, seed=seed, allow_paths=False)
    if folder is not None and (folder / SYNTHETIC_TABLE).is_file():
        return generator.generated(trace, read_throughputs(folder / SYNTHETIC_TABLE), seed, draw)
    # Without the measured models, draw the same distributions for built-in ones.
    return load_workload(trace.replace(generator.NAME, STANDS_IN, 1), seed=seed + draw, allow_paths=False)


def _name(trace: str) -> str:
    """Return a trace's name without its options."""
    return trace.partition(":")[0]


def held_until_instants(submitted_at: FloatArray, slot_seconds: float) -> FloatArray:
    """Return when submissions are seen if planning instants are at least a slot apart.

    Only arrivals count as instants here; the published simulator also counts completions.
    """
    seen, last = [], -np.inf
    for at in submitted_at.tolist():
        if at > last:
            last = max(at, last + slot_seconds)
        seen.append(last)
    return np.array(seen, dtype=np.float64)


def slo_jobs_possible_alone(spec: ElasticFlowSpec, workload: Workload) -> int:
    """Return how many jobs could meet their deadline alone on the empty cluster, a bound for all policies."""
    kind = reference_gpu_type(workload)
    fastest = []
    for profile in workload.profiles:
        points = profile.by_kind[kind]
        fits = (points.gpus <= spec.gpus) & (points.gpus <= profile.global_batch_size)
        fastest.append(float(points.iterations_per_second[fits].max()) if fits.any() else 0.0)
    rate = np.array(fastest)[workload.profile_of]
    seconds = np.divide(workload.iterations, rate, out=np.full(rate.size, np.inf), where=rate > 0)
    dated = np.isfinite(workload.deadline_at)
    return int((dated & (seconds <= workload.deadline_at - workload.submitted_at)).sum())


def slo_jobs_possible_as_requested(workload: Workload) -> int:
    """Return how many jobs could meet their deadline on their requested GPUs without ever waiting."""
    dated = np.isfinite(workload.deadline_at)
    return int((dated & (workload.requested_seconds <= workload.deadline_at - workload.submitted_at)).sum())


@cache
def _workload_digest(spec: ElasticFlowSpec, folder: Path | None) -> str:
    workload = workload_of(spec)
    digest = hashlib.sha256("\n".join(workload.job_id).encode())
    digest.update("\n".join(map(str, workload.service_class)).encode())
    for column in (
        "submitted_at",
        "deadline_at",
        "iterations",
        "profile_of",
        "requested_gpus",
        "requested_seconds",
    ):
        digest.update(np.ascontiguousarray(getattr(workload, column)).tobytes())
    for profile in workload.profiles:
        for curves in (profile.by_kind, profile.adapted):
            for kind, points in sorted(curves.items()):
                digest.update(f"{profile.model} {profile.global_batch_size} {kind}".encode())
                digest.update(points.gpus.tobytes() + points.iterations_per_second.tobytes())
    return digest.hexdigest()
