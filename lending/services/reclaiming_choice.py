"""The choice of servers to return, from the live worker maps (Lyra section 3.4): reads rows,
returns the core's choice and its reasons."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from cluster.choices import LendingState, ServerState
from cluster.models import Server
from lending.models import InferenceCluster
from scheduling.choices import TERMINAL_STATES, AssignmentState, GenerationState, Purpose
from scheduling.core.lyra.fleet import NO_ROLE, Fleet, Speeds, WorkerMap
from scheduling.core.lyra.reclaiming.choosing import Reclaim, ReclaimGroup, ReclaimQuestion, choose_servers
from scheduling.core.lyra.reclaiming.methods import ReclaimMethod
from scheduling.models import Assignment, CurveLevel, Job

#: Methods that the chosen one is compared with.
ALTERNATIVES = (ReclaimMethod.IMPROVED, ReclaimMethod.LYRA, ReclaimMethod.SCF, ReclaimMethod.RANDOM)
#: Maximum number of candidates for computing the optimum, whose cost grows fast.
MOST_FOR_OPTIMUM = 24


@dataclass(frozen=True)
class ReclaimChoice:
    """The servers to return in order, with what each held and its cost, and the whole choice as JSON."""

    servers: tuple[Server, ...]
    #: What each server held: nothing, flexible workers only, or base workers.
    groups: tuple[str, ...]
    #: None if a job could not continue without its flexible workers.
    costs: tuple[float | None, ...]
    #: Ids of jobs with any GPU on the servers.
    jobs: tuple[str, ...]
    #: The whole choice as stored in `ReclaimOrder.choice`.
    document: dict[str, Any]


@dataclass(frozen=True)
class _Workers:
    """Jobs and measurements on the training side, with their base and flexible GPUs by row of the server."""

    jobs: tuple[str, ...]
    #: For each job, base GPUs by row of the server.
    base: tuple[dict[int, int], ...]
    #: For each job, flexible GPUs by row of the server.
    flexible: tuple[dict[int, int], ...]
    #: Iterations left; 0 for measurements.
    remaining: tuple[float, ...]
    speeds: Speeds


@dataclass(frozen=True)
class _Held:
    """One generation: its GPUs as (row of the server, whether flexible), and its scaling curve."""

    job_id: str
    #: Whether it measures a function instead of training.
    measures: bool
    curve_id: int
    gpus: tuple[tuple[int, bool], ...]


def choose(inference_cluster: InferenceCluster, count: int) -> ReclaimChoice:
    """Choose ``count`` of the servers on loan from ``inference_cluster``, or all of them if there are fewer.

    Servers already being returned are no candidates. Servers that are down are candidates only if too few
    others remain.
    """
    servers = list(
        Server.objects.filter(cluster_id=inference_cluster.cluster_id)
        .known()
        .prefetch_related("gpus")
        .order_by("id")
    )
    lent = [
        row
        for row, server in enumerate(servers)
        if server.inference_cluster_id == inference_cluster.pk
        and server.lending_state == LendingState.ON_LOAN
    ]
    living = [row for row in lent if servers[row].state != ServerState.DOWN]
    candidates = living if len(living) >= count else lent
    workers = _workers(servers)
    question = _question(servers, candidates, workers, count)
    method = ReclaimMethod(inference_cluster.reclaim_method)
    reclaim, seconds = _timed(question, method)
    chosen = tuple(servers[row] for row in reclaim.returned.tolist())
    return ReclaimChoice(
        servers=chosen,
        groups=tuple(ReclaimGroup(group).name.lower() for group in reclaim.group.tolist()),
        costs=tuple(cost if isfinite(cost) else None for cost in reclaim.cost.tolist()),
        jobs=_concerned(workers, set(reclaim.returned.tolist())),
        document=_document(servers, workers, question, reclaim, seconds),
    )


def _workers(servers: Sequence[Server]) -> _Workers:
    """Return every job with GPUs, by its newest generation, and every measurement.

    GPUs that the planner marked as flexible are flexible. For a job without a mark, all GPUs beyond its
    lowest level are: first those on borrowed servers, and among these first those on servers with few of its
    GPUs. A measurement can be repeated, so all of its GPUs are flexible.
    """
    held = _held(servers)
    jobs = {
        job.pk: job
        for job in Job.objects.filter(pk__in={one.job_id for one in held}).exclude(state__in=TERMINAL_STATES)
    }
    held = [one for one in held if one.job_id in jobs]
    levels: dict[int, list[CurveLevel]] = defaultdict(list)
    for level in CurveLevel.objects.filter(curve_id__in={one.curve_id for one in held}):
        levels[level.curve_id].append(level)
    curves = [() if one.measures else tuple(levels[one.curve_id]) for one in held]
    divided = [
        ({}, _counted(one.gpus)) if one.measures else _split(one.gpus, _lowest(levels[one.curve_id]), servers)
        for one in held
    ]
    return _Workers(
        jobs=tuple(one.job_id for one in held),
        base=tuple(base for base, _ in divided),
        flexible=tuple(flexible for _, flexible in divided),
        remaining=tuple(
            0.0 if one.measures else float(jobs[one.job_id].remaining_iterations()) for one in held
        ),
        speeds=_speeds(curves),
    )


def _held(servers: Sequence[Server]) -> list[_Held]:
    """Return the newest unretired generation of each job and purpose with its GPUs, ordered by job."""
    row_of = {server.pk: row for row, server in enumerate(servers)}
    gpus: dict[tuple[str, bool, int], list[tuple[int, bool]]] = defaultdict(list)
    curves: dict[tuple[str, bool, int], int] = {}
    assignments = Assignment.objects.filter(
        job__cluster_id__in={server.cluster_id for server in servers},
        gpu__server_id__in=row_of,
        state__in=[AssignmentState.HELD, AssignmentState.WAITING],
    ).exclude(generation__state=GenerationState.RETIRED)
    for one in assignments.select_related("generation", "job", "gpu").order_by("generation_id", "rank"):
        generation = one.generation
        key = (one.job_id, generation.purpose == Purpose.PROFILING, generation.number)
        gpus[key].append((row_of[one.gpu.server_id], one.flexible))
        curves[key] = generation.curve_id or one.job.curve_id or 0
    newest = {(job_id, measures): number for job_id, measures, number in sorted(gpus)}
    return [
        _Held(
            job_id,
            measures,
            curves[job_id, measures, number],
            tuple(gpus[job_id, measures, number]),
        )
        for (job_id, measures), number in newest.items()
    ]


def _lowest(levels: Sequence[CurveLevel]) -> int:
    """Return the fewest GPUs of a curve; 0 for one without levels."""
    return min((level.gpus for level in levels), default=0)


def _counted(gpus: Sequence[tuple[int, bool]]) -> dict[int, int]:
    return dict(Counter(row for row, _ in gpus))


def _split(
    gpus: Sequence[tuple[int, bool]], lowest: int, servers: Sequence[Server]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the base and the flexible GPUs of one job by server. A job without a lowest level needs all."""
    count = _counted(gpus)
    marked = Counter(row for row, flexible in gpus if flexible)
    if marked:
        return {row: count[row] - marked[row] for row in count}, dict(marked)
    spare = max(0, len(gpus) - lowest) if lowest else 0
    flexible_on: dict[int, int] = {}
    for row in sorted(count, key=lambda row: (not servers[row].on_loan, count[row], -row)):
        flexible_on[row] = min(spare, count[row])
        spare -= flexible_on[row]
    return {row: count[row] - flexible_on[row] for row in count}, flexible_on


def _speeds(curves: Sequence[Sequence[CurveLevel]]) -> Speeds:
    pairs = [sorted((level.gpus, level.iterations_per_second) for level in levels) for levels in curves]
    return Speeds(
        offsets=np.concatenate(([0], np.cumsum([len(one) for one in pairs]))).astype(np.int64),
        workers=np.array([gpus for one in pairs for gpus, _ in one], dtype=np.int64),
        rate=np.array([rate for one in pairs for _, rate in one], dtype=np.float64),
    )


def _question(
    servers: Sequence[Server], candidates: Sequence[int], workers: _Workers, count: int
) -> ReclaimQuestion:
    on_loan = np.zeros(len(servers), dtype=np.bool_)
    on_loan[list(candidates)] = True
    where = [
        sorted(set(base) | set(spare)) for base, spare in zip(workers.base, workers.flexible, strict=True)
    ]
    pairs = [(job, row) for job, rows in enumerate(where) for row in rows]
    return ReclaimQuestion(
        fleet=Fleet(
            # A server whose agent has not reported its GPUs yet can be returned like any other.
            gpus=np.array([max(1, len(server.gpus.all())) for server in servers], dtype=np.int64),
            on_loan=on_loan,
            role=np.full(len(servers), NO_ROLE, dtype=np.int64),
        ),
        workers=WorkerMap(
            offsets=np.concatenate(([0], np.cumsum([len(rows) for rows in where]))).astype(np.int64),
            server=np.array([row for _, row in pairs], dtype=np.int64),
            base=np.array([workers.base[job].get(row, 0) for job, row in pairs], dtype=np.int64),
            flexible=np.array([workers.flexible[job].get(row, 0) for job, row in pairs], dtype=np.int64),
        ),
        gpus_per_worker=np.ones(len(workers.jobs), dtype=np.int64),
        remaining_iterations=np.array(workers.remaining, dtype=np.float64),
        lent=workers.speeds,
        servers=count,
    )


def _concerned(workers: _Workers, returned: set[int]) -> tuple[str, ...]:
    """Return the jobs with any GPU on a returned server."""
    concerned = [
        job
        for job, base, spare in zip(workers.jobs, workers.base, workers.flexible, strict=True)
        if returned & (base.keys() | spare.keys())
    ]
    return tuple(dict.fromkeys(concerned))


def _timed(question: ReclaimQuestion, method: ReclaimMethod) -> tuple[Reclaim, float]:
    """Return the choice of ``method`` and its computation time in seconds."""
    began = time.perf_counter()
    reclaim = choose_servers(question, method)
    return reclaim, time.perf_counter() - began


def _document(
    servers: Sequence[Server], workers: _Workers, question: ReclaimQuestion, reclaim: Reclaim, seconds: float
) -> dict[str, Any]:
    """Return the choice as JSON for the dashboard."""
    methods = list(ALTERNATIVES)
    if reclaim.method == ReclaimMethod.OPTIMAL or question.fleet.on_loan.sum() <= MOST_FOR_OPTIMUM:
        methods.append(ReclaimMethod.OPTIMAL)
    timed = {method: _timed(question, method) for method in methods if method != reclaim.method}
    timed[reclaim.method] = reclaim, seconds
    return {
        "method": str(reclaim.method),
        "candidates": [servers[row].name for row in np.flatnonzero(question.fleet.on_loan).tolist()],
        "servers": [
            {
                "server": servers[row].name,
                "group": ReclaimGroup(group).name.lower(),
                "cost": round(cost, 6) if isfinite(cost) else None,
                "excess_gpus": excess,
                "credited_servers": credited,
                "newly_preempted": newly,
            }
            for row, group, cost, excess, credited, newly in zip(
                reclaim.returned.tolist(),
                reclaim.group.tolist(),
                reclaim.cost.tolist(),
                reclaim.excess_gpus.tolist(),
                reclaim.credited_servers.tolist(),
                reclaim.newly_preempted.tolist(),
                strict=True,
            )  # fmt: skip
        ],
        "preempted": [workers.jobs[row] for row in reclaim.preempted.tolist()],
        "scale_ins": [
            {"job": workers.jobs[job], "server": servers[server].name, "gpus": gpus}
            for job, server, gpus in zip(
                reclaim.scale_in_job.tolist(),
                reclaim.scale_in_server.tolist(),
                reclaim.scale_in_workers.tolist(),
                strict=True,
            )  # fmt: skip
        ],
        "collateral_gpus": reclaim.collateral_gpus,
        "alternatives": [_alternative(servers, *timed[method]) for method in methods],
    }


def _alternative(servers: Sequence[Server], other: Reclaim, seconds: float) -> dict[str, Any]:
    """Return a method's choice as JSON. ``cost`` covers the servers taken from preempted jobs."""
    cost = float(other.cost[other.group == ReclaimGroup.PREEMPTION].sum())
    # `random` and `scf` compute no preemption cost; it is infinite if a job cannot continue at all.
    known = other.method not in (ReclaimMethod.RANDOM, ReclaimMethod.SCF) and isfinite(cost)
    return {
        "method": str(other.method),
        "servers": [servers[row].name for row in other.returned.tolist()],
        "preempted_jobs": int(other.preempted.size),
        "collateral_gpus": other.collateral_gpus,
        "cost": round(cost, 6) if known else None,
        "compute_seconds": round(seconds, 6),
    }
