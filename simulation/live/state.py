"""The live cluster at one moment in plain values: how a study stores it, and the workload made from it.

Times are seconds from that moment; earlier submissions have a negative time.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np

from scheduling.core.question.curves import share_on_empty_cluster
from scheduling.core.question.snapshot import ScalingCurve, ServiceClass
from simulation.workloads.workload import MeasuredThroughput, ModelProfile, Workload

FORMAT = 1


@dataclass(frozen=True, slots=True)
class LiveJob:
    """One job at that moment. ``levels``: GPU count, iterations per second as measured, pause in seconds.

    ``finishing_seconds``: time to store the final weights, which is part of meeting a deadline.
    ``deadline_at`` is None without a deadline. ``placement``: server (numbered as in `LiveState`) and GPU of
    each rank; empty if it holds none. ``flexible``: for each of these GPUs, whether a flexible worker holds
    it; empty means none. ``lent_levels``: as ``levels``, on the study's inference kind of GPU. ``plan``:
    start, end and GPUs of each piece of its stored plan. ``newcomer``: it waits for its verdict.
    ``asks_again``: it was declined, and the study decides on it again.
    """

    id: str
    model: str
    global_batch_size: int
    service_class: str
    submitted_at: float
    deadline_at: float | None
    remaining_iterations: float
    levels: tuple[tuple[int, float, float], ...]
    placement: tuple[tuple[int, int], ...] = ()
    plan: tuple[tuple[float, float, int], ...] = ()
    planned_finish_at: float | None = None
    started_at: float | None = None
    pause_left_seconds: float = 0.0
    promised: bool = False
    at_risk: bool = False
    newcomer: bool = False
    asks_again: bool = False
    finishing_seconds: float = 0.0
    flexible: tuple[bool, ...] = ()
    lent_levels: tuple[tuple[int, float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class LiveInference:
    """The inference cluster of a study that lends. ``name``: of the live one it is based on, "" without one.

    ``usage``: measured means over periods of ``period_seconds``, repeated from the study's moment on; empty
    if there are too few. ``forecast_margin``: share of the cluster added to forecasts. ``hysteresis``,
    ``hold_seconds``: rules against moving servers back and forth.
    """

    gpu_kind: str
    name: str = ""
    usage: tuple[float, ...] = ()
    period_seconds: float = 300.0
    forecast_margin: float = 0.0
    hysteresis: float = 0.0
    hold_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LiveState:
    """One pool of the live cluster: its usable servers and its unfinished jobs. ``taken_at``: RFC 3339, UTC.

    ``servers``: number of the cluster's own. In placements own servers come first; borrowed ones are numbered
    from ``servers`` on: first the ``servers_on_loan`` that simulated servers can represent, then the rest.
    """

    taken_at: str
    gpu_kind: str
    servers: int
    gpus_per_server: int
    jobs: tuple[LiveJob, ...]
    notes: tuple[str, ...] = ()
    servers_on_loan: int = 0
    inference: LiveInference | None = None


def pack(state: LiveState) -> bytes:
    """Return the state as bytes, as a study stores it."""
    return zlib.compress(json.dumps({"format": FORMAT, **asdict(state)}, allow_nan=False).encode(), 6)


def unpack(packed: bytes) -> LiveState:
    """Reverse `pack`. Raises ValueError for another format."""
    stored = json.loads(zlib.decompress(packed))
    if stored.pop("format", None) != FORMAT:
        raise ValueError("the stored state of the cluster is of another version; make the study again")
    jobs = tuple(_job(job) for job in stored.pop("jobs"))
    # States stored before servers could be lent have no such entry.
    inference = stored.pop("inference", None)
    return LiveState(
        jobs=jobs,
        notes=tuple(stored.pop("notes")),
        inference=None
        if inference is None
        else LiveInference(**inference | {"usage": tuple(inference["usage"])}),
        **stored,
    )


def _job(stored: dict[str, Any]) -> LiveJob:
    pairs = {
        name: tuple(map(tuple, stored.get(name, ())))
        for name in ("levels", "placement", "plan", "lent_levels")
    }
    return LiveJob(**{**stored, **pairs, "flexible": tuple(stored.get("flexible", ()))})


def workload_of(state: LiveState) -> Workload:
    """Return the jobs as a workload, decided jobs before those that wait for a verdict.

    Deadlines are earlier by the time to store the final weights. Requested GPUs, for schedulers without
    elasticity, are not recorded: they are the smallest level that meets the deadline on an empty cluster,
    and without a deadline the level with the highest throughput per GPU.
    """
    jobs = in_order(state)
    curves = [_curve(job.levels) for job in jobs]
    requests = [_requested(job, curve) for job, curve in zip(jobs, curves, strict=True)]
    taken = datetime.fromisoformat(state.taken_at)
    return Workload(
        name=f"live cluster, {taken:%Y-%m-%d %H:%M:%S} UTC",
        source=f"the live cluster at {state.taken_at}, {state.gpu_kind}",
        job_id=tuple(job.id for job in jobs),
        service_class=tuple(ServiceClass(job.service_class) for job in jobs),
        submitted_at=np.array([_submitted_at(job) for job in jobs], dtype=np.float64),
        deadline_at=np.array([_deadline_at(job) for job in jobs], dtype=np.float64),
        iterations=np.array([job.remaining_iterations for job in jobs], dtype=np.float64),
        profile_of=np.arange(len(jobs), dtype=np.int64),
        requested_gpus=np.array([gpus for gpus, _ in requests], dtype=np.int64),
        requested_seconds=np.array([seconds for _, seconds in requests], dtype=np.float64),
        profiles=tuple(_profile(job, curve, state) for job, curve in zip(jobs, curves, strict=True)),
        notes=state.notes,
    )


def in_order(state: LiveState) -> list[LiveJob]:
    """Return the jobs in the order of the workload."""
    return sorted(state.jobs, key=_order)


def _order(job: LiveJob) -> tuple[float, str]:
    return _submitted_at(job), job.id


def _submitted_at(job: LiveJob) -> float:
    return 0.0 if job.newcomer or job.asks_again else min(job.submitted_at, -1e-3)


def _deadline_at(job: LiveJob) -> float:
    return math.inf if job.deadline_at is None else job.deadline_at - job.finishing_seconds


def _curve(levels: tuple[tuple[int, float, float], ...]) -> ScalingCurve:
    return ScalingCurve(
        levels=np.array([gpus for gpus, _, _ in levels], dtype=np.int64),
        throughput=np.array([rate for _, rate, _ in levels], dtype=np.float64),
        pause_seconds=np.array([pause for _, _, pause in levels], dtype=np.float64),
    )


def _profile(job: LiveJob, curve: ScalingCurve, state: LiveState) -> ModelProfile:
    by_kind = {state.gpu_kind: curve}
    if job.lent_levels and state.inference is not None:
        by_kind[state.inference.gpu_kind] = _curve(job.lent_levels)
    points = {
        kind: MeasuredThroughput(measured.levels, measured.throughput, measured.pause_seconds)
        for kind, measured in by_kind.items()
    }
    return ModelProfile(job.model, job.global_batch_size, points)


def _requested(job: LiveJob, curve: ScalingCurve) -> tuple[int, float]:
    """Return the GPUs that a user would request, and the seconds that the rest of the job takes on them."""
    gpus = None
    if job.deadline_at is not None:
        gpus = share_on_empty_cluster(curve, job.remaining_iterations, _deadline_at(job))
        gpus = gpus if gpus is not None else int(curve.levels[-1])
    else:
        gpus = int(curve.levels[np.argmax(curve.throughput / curve.levels)])
    rate = float(curve.throughput[np.searchsorted(curve.levels, gpus)])
    return gpus, job.remaining_iterations / rate


def sentences(left_out: Sequence[tuple[int, str]]) -> tuple[str, ...]:
    """Return notes on jobs that a study leaves out."""
    return tuple(f"{count} job{'' if count == 1 else 's'} {why}" for count, why in left_out if count)
