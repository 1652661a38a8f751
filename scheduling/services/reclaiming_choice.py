"""Which servers go back, from the live worker maps (Lyra section 3.4; spec 2.4): rows in, the core's choice and its reasons out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cluster.choices import LendingState, ServerState
from cluster.models import InferenceCluster, Server
from scheduling.choices import TERMINAL_STATES, AssignmentState, GenerationState, Purpose
from scheduling.core.fleet import NO_ROLE, Fleet, Speeds, WorkerMap
from scheduling.core.reclaiming import Reclaim, ReclaimGroup, ReclaimMethod, ReclaimQuestion, choose_servers
from scheduling.models import Assignment, CurveLevel, Job

#: What the chosen method is shown next to. The optimum is left out: its work has no small bound.
ALTERNATIVES = (ReclaimMethod.IMPROVED, ReclaimMethod.LYRA, ReclaimMethod.SCF, ReclaimMethod.RANDOM)


@dataclass(frozen=True)
class ReclaimChoice:
    """The servers to return in order, with what each held and what it cost, and the whole choice as JSON."""

    servers: tuple[Server, ...]
    groups: tuple[str, ...]
    costs: tuple[float, ...]
    jobs: tuple[str, ...]
    document: dict[str, Any]


@dataclass(frozen=True)
class _Workers:
    """Jobs on the training side, with GPUs that each cannot do without and others, by row of server."""

    jobs: tuple[str, ...]
    base: tuple[dict[int, int], ...]
    flexible: tuple[dict[int, int], ...]
    remaining: tuple[float, ...]
    speeds: Speeds


def choose(inference_cluster: InferenceCluster, count: int) -> ReclaimChoice:
    """Choose ``count`` of the servers on loan from ``inference_cluster``, or all there are.

    Servers that are being returned already are no candidates. Servers given up are taken only where there are too few
    others: nobody wants a dead one back.
    """
    servers = list(
        Server.objects.filter(cluster_id=inference_cluster.cluster_id)
        .exclude(state=ServerState.REMOVED)
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
    reclaim = choose_servers(question, method)
    chosen = tuple(servers[row] for row in reclaim.returned.tolist())
    return ReclaimChoice(
        servers=chosen,
        groups=tuple(ReclaimGroup(group).name.lower() for group in reclaim.group.tolist()),
        costs=tuple(reclaim.cost.tolist()),
        jobs=_concerned(workers, set(reclaim.returned.tolist())),
        document=_document(servers, workers, question, reclaim),
    )


def _workers(servers: Sequence[Server]) -> _Workers:
    """Every job with GPUs, by the generation that it is going to.

    GPUs that the planner marked as flexible are so. Of a job without a mark all GPUs beyond its lowest level are: those on borrowed
    servers first, and there those on servers with few of its GPUs.
    """
    row_of = {server.pk: row for row, server in enumerate(servers)}
    by_job: dict[str, dict[int, list[tuple[int, bool]]]] = defaultdict(lambda: defaultdict(list))
    measuring: set[str] = set()
    held = Assignment.objects.filter(
        job__cluster_id__in={server.cluster_id for server in servers},
        state__in=[AssignmentState.HELD, AssignmentState.WAITING],
    ).exclude(generation__state=GenerationState.RETIRED)
    for job_id, number, purpose, server_id, flexible in held.values_list(
        "job_id", "generation__number", "generation__purpose", "gpu__server_id", "flexible"
    ):
        if purpose == Purpose.PROFILING:
            measuring.add(job_id)
        by_job[job_id][number].append((row_of[server_id], flexible))
    rows = {
        job.pk: job
        for job in Job.objects.filter(pk__in=by_job)
        .exclude(state__in=TERMINAL_STATES)
        .select_related("curve")
    }
    jobs = tuple(sorted(rows))
    levels: dict[int, list[CurveLevel]] = defaultdict(list)
    for level in CurveLevel.objects.filter(curve_id__in={job.curve_id for job in rows.values()}):
        levels[level.curve_id].append(level)
    base, flexible_gpus = [], []
    for job_id in jobs:
        own = levels[rows[job_id].curve_id or 0]
        lowest = min((level.gpus for level in own), default=0) if job_id not in measuring else 0
        newest = by_job[job_id][max(by_job[job_id])]
        split = _split(newest, lowest, servers)
        base.append(split[0])
        flexible_gpus.append(split[1])
    return _Workers(
        jobs=jobs,
        base=tuple(base),
        flexible=tuple(flexible_gpus),
        remaining=tuple(float(rows[job_id].remaining_iterations()) for job_id in jobs),
        speeds=_speeds([levels[rows[job_id].curve_id or 0] for job_id in jobs]),
    )


def _split(
    gpus: Sequence[tuple[int, bool]], lowest: int, servers: Sequence[Server]
) -> tuple[dict[int, int], dict[int, int]]:
    """GPUs of one job by server: those that it cannot do without, and the others. A job without a lowest level needs all."""
    count: dict[int, int] = defaultdict(int)
    marked: dict[int, int] = defaultdict(int)
    for row, flexible in gpus:
        count[row] += 1
        marked[row] += flexible
    if any(marked.values()):
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
            # A server whose agent has not told its GPUs yet can go back like any other.
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
    """Jobs with any GPU on a returned server."""
    return tuple(
        job
        for job, base, spare in zip(workers.jobs, workers.base, workers.flexible, strict=True)
        if returned & (base.keys() | spare.keys())
    )


def _document(
    servers: Sequence[Server], workers: _Workers, question: ReclaimQuestion, reclaim: Reclaim
) -> dict[str, Any]:
    """The choice as the dashboard explains it."""
    return {
        "method": str(reclaim.method),
        "candidates": [servers[row].name for row in np.flatnonzero(question.fleet.on_loan).tolist()],
        "servers": [
            {
                "server": servers[row].name,
                "group": ReclaimGroup(group).name.lower(),
                "cost": round(cost, 6),
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
        "alternatives": [_alternative(servers, question, reclaim, method) for method in ALTERNATIVES],
    }


def _alternative(
    servers: Sequence[Server], question: ReclaimQuestion, chosen: Reclaim, method: ReclaimMethod
) -> dict[str, Any]:
    other = chosen if method == chosen.method else choose_servers(question, method)
    return {
        "method": str(method),
        "servers": [servers[row].name for row in other.returned.tolist()],
        "preempted_jobs": int(other.preempted.size),
        "collateral_gpus": other.collateral_gpus,
    }
