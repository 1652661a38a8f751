"""The live cluster at one moment, in plain values: how a study keeps it, and the workload that it makes.

Times are seconds from that moment: what was submitted before has a negative time.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

import numpy as np

from scheduling.core.curves import share_on_empty_cluster
from scheduling.core.snapshot import ScalingCurve, ServiceClass, StoredPlan
from simulation.engine.beginning import UnderWay
from simulation.workloads.workload import MeasuredThroughput, ModelProfile, Workload

FORMAT = 1


@dataclass(frozen=True, slots=True)
class LiveJob:
    """One job at that moment. ``levels``: GPU count, iterations per second as measured, pause in seconds.

    ``finishing_seconds``: time to store the final weights, which is part of meeting a deadline. ``deadline_at`` is
    None without a deadline. ``placement``: server (numbered among those counted) and GPU of each rank; empty while it
    holds none. ``plan``: start, end and GPUs of each piece of its stored plan. ``newcomer``: it waits for its verdict;
    ``asks_again``: it was declined, and the study asks what it would be told now.
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


@dataclass(frozen=True, slots=True)
class LiveState:
    """One pool of the live cluster: its usable servers and its unfinished jobs. ``taken_at``: RFC 3339, UTC."""

    taken_at: str
    gpu_kind: str
    servers: int
    gpus_per_server: int
    jobs: tuple[LiveJob, ...]
    notes: tuple[str, ...] = ()


def pack(state: LiveState) -> bytes:
    """The state as a study keeps it."""
    return zlib.compress(json.dumps({"format": FORMAT, **asdict(state)}, allow_nan=False).encode(), 6)


def unpack(packed: bytes) -> LiveState:
    """The reverse of `pack`. Raises ValueError for another format."""
    stored = json.loads(zlib.decompress(packed))
    if stored.pop("format", None) != FORMAT:
        raise ValueError("the stored state of the cluster is of another version; make the study again")
    jobs = tuple(
        LiveJob(**{**job, **{name: tuple(map(tuple, job[name])) for name in ("levels", "placement", "plan")}})
        for job in stored.pop("jobs")
    )
    return LiveState(jobs=jobs, notes=tuple(stored.pop("notes")), **stored)


def workload_of(state: LiveState) -> Workload:
    """The jobs as a workload. Whoever was asked before comes before whoever waits for a verdict.

    Deadlines are earlier by the time that storing the final weights takes. What a user of a scheduler without
    elasticity would ask for, nobody said: it is the smallest size that meets the deadline on an empty cluster,
    and for a job without a deadline the size on which a GPU gives most.
    """
    jobs = _in_order(state)
    curves = [_curve(job) for job in jobs]
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
        profiles=tuple(_profile(job, curve, state.gpu_kind) for job, curve in zip(jobs, curves, strict=True)),
        notes=state.notes,
    )


def under_way(state: LiveState, servers: int, gpus_per_server: int) -> list[UnderWay]:
    """How the workload's first jobs begin on a cluster of so many servers: as they are, where their GPUs are there.

    Jobs on servers that this cluster has not begin without GPUs. So do all of them when its servers are of another size.
    """
    same_size = gpus_per_server == state.gpus_per_server
    return [
        UnderWay(
            promised=job.promised,
            at_risk=job.at_risk,
            addresses=(addresses := _addresses(job, servers, gpus_per_server) if same_size else ()),
            pause_left_seconds=job.pause_left_seconds if addresses else 0.0,
            started_at=math.nan if job.started_at is None else job.started_at,
            planned_finish_at=math.nan if job.planned_finish_at is None else job.planned_finish_at,
            plan=_stored_plan(job),
        )
        for job in _in_order(state)
        if not (job.newcomer or job.asks_again)
    ]


def _addresses(job: LiveJob, servers: int, gpus_per_server: int) -> tuple[int, ...]:
    if any(server >= servers for server, _ in job.placement):
        return ()
    return tuple(server * gpus_per_server + gpu for server, gpu in job.placement)


def _stored_plan(job: LiveJob) -> StoredPlan | None:
    if not job.plan:
        return None
    return StoredPlan(
        start=np.array([start for start, _, _ in job.plan], dtype=np.float64),
        end=np.array([end for _, end, _ in job.plan], dtype=np.float64),
        gpus=np.array([gpus for _, _, gpus in job.plan], dtype=np.int64),
        finish_at=math.inf if job.planned_finish_at is None else job.planned_finish_at,
    )


def _in_order(state: LiveState) -> list[LiveJob]:
    return sorted(state.jobs, key=_order)


def _order(job: LiveJob) -> tuple[float, str]:
    return _submitted_at(job), job.id


def _submitted_at(job: LiveJob) -> float:
    return 0.0 if job.newcomer or job.asks_again else min(job.submitted_at, -1e-3)


def _deadline_at(job: LiveJob) -> float:
    return math.inf if job.deadline_at is None else job.deadline_at - job.finishing_seconds


def _curve(job: LiveJob) -> ScalingCurve:
    return ScalingCurve(
        levels=np.array([gpus for gpus, _, _ in job.levels], dtype=np.int64),
        throughput=np.array([rate for _, rate, _ in job.levels], dtype=np.float64),
        pause_seconds=np.array([pause for _, _, pause in job.levels], dtype=np.float64),
    )


def _profile(job: LiveJob, curve: ScalingCurve, kind: str) -> ModelProfile:
    points = MeasuredThroughput(curve.levels, curve.throughput, curve.pause_seconds)
    return ModelProfile(job.model, job.global_batch_size, {kind: points})


def _requested(job: LiveJob, curve: ScalingCurve) -> tuple[int, float]:
    """GPUs that a person would have asked for, and the seconds that the rest of the job takes on them."""
    gpus = None
    if job.deadline_at is not None:
        gpus = share_on_empty_cluster(curve, job.remaining_iterations, _deadline_at(job))
        gpus = gpus if gpus is not None else int(curve.levels[-1])
    else:
        gpus = int(curve.levels[np.argmax(curve.throughput / curve.levels)])
    rate = float(curve.throughput[np.searchsorted(curve.levels, gpus)])
    return gpus, job.remaining_iterations / rate


def sentences(left_out: Sequence[tuple[int, str]]) -> tuple[str, ...]:
    """Notes on what a study does not hold."""
    return tuple(f"{count} job{'' if count == 1 else 's'} {why}" for count, why in left_out if count)
