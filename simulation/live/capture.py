"""Capture of the live cluster for a study: from rows to `LiveState`, through the planner's own snapshot."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np

from cluster.models import Cluster
from projects.errors import InvalidRequest, Unavailable
from scheduling.choices import PLANNED_STATES, UNDECIDED_STATES, CurveState, JobState, ServiceClass
from scheduling.core.question.snapshot import JobSnapshot, ScalingCurve, ServerSnapshot, StoredPlan
from scheduling.models import Job
from scheduling.models.functions import UNREAD_OF_VERSION
from scheduling.services.generations.failure_charges import FailureCharges
from scheduling.services.snapshots.jobs_of_pool import core_curve, finishing_seconds
from scheduling.services.snapshots.kinds import first_kind
from scheduling.services.snapshots.planner_settings import planner_settings
from scheduling.services.snapshots.snapshots import Pool, pool_kinds, pool_snapshot
from simulation.live.lent import Places, lent_levels, places_of
from simulation.live.state import LiveInference, LiveJob, LiveState, sentences

LONGEST_SECONDS = 1e12


def capture(
    cluster: Cluster,
    now: datetime,
    *,
    gpu_kind: str = "",
    with_declined: bool = False,
    inference: LiveInference | None = None,
) -> LiveState:
    """Return the cluster's pool of one GPU type at ``now``, with its unfinished jobs.

    ``gpu_kind``: empty for the type with the most GPUs. ``with_declined``: also include declined jobs whose
    deadline is still ahead, unless their offer was accepted. ``inference``: the study's inference cluster; if
    its GPU kind is empty it is the pool's own. Jobs then come with their curves on that kind.

    Raises:
        InvalidRequest: the cluster has no such GPUs.
        Unavailable: the cluster has no usable server now.
    """
    kind = _kind(cluster, gpu_kind)
    pool = pool_snapshot(cluster, kind, now)
    own = [server for server in pool.snapshot.servers if not server.on_loan]
    sizes = _sizes(own)
    if not sizes:
        raise Unavailable(f"No server with GPUs of type {kind} is usable now.")
    if inference is not None:
        inference = replace(inference, gpu_kind=inference.gpu_kind or kind)
    gpus_per_server = _commonest(sizes)
    lent_kind = "" if inference is None else inference.gpu_kind
    places, on_loan = places_of(pool, gpus_per_server, lent_kind)
    jobs, rows = _unfinished(pool, places, now, cluster.promise_margin)
    notes = _notes(cluster, pool, own, without_level=len(pool.snapshot.jobs) - len(jobs))
    if with_declined:
        found, declined = _declined(cluster, kind, now, sum(server.gpus for server in own))
        jobs += found
        rows |= declined
    if lent_kind:
        lent = lent_levels([rows[job.id] for job in jobs], lent_kind)
        jobs = [replace(job, lent_levels=lent.get(job.id, ())) for job in jobs]
    return LiveState(
        taken_at=now.isoformat(timespec="seconds"),
        gpu_kind=kind,
        servers=sum(sizes.values()),
        gpus_per_server=gpus_per_server,
        jobs=tuple(jobs),
        notes=notes,
        servers_on_loan=on_loan,
        inference=inference,
    )


def _kind(cluster: Cluster, wanted: str) -> str:
    """Return the wanted GPU type, by default the one with the most GPUs."""
    kinds = pool_kinds(cluster)
    if wanted and wanted not in kinds:
        known = ", ".join(kinds) or "none"
        raise InvalidRequest(
            f"The cluster has no GPUs of type {wanted}; it has {known}.",
            errors={"gpu_type": [f"Known types: {known}."]},
        )
    return wanted or first_kind(cluster, ServiceClass.SLO)


def _unfinished(
    pool: Pool, places: Places, now: datetime, margin: float
) -> tuple[list[LiveJob], dict[str, Job]]:
    """Return the pool's jobs that run on any level, and all rows of the pool's jobs by id."""
    rows = Job.objects.filter(pk__in=[job.id for job in pool.snapshot.jobs])
    of_id = {row.pk: row for row in rows.select_related("function_version__function", "curve")}
    jobs = [
        _live_job(job, of_id[job.id], places, now.timestamp(), margin, pool.counts_on[job.id].shares)
        for job in pool.snapshot.jobs
        if job.curve.levels.size
    ]
    return jobs, of_id


def _notes(
    cluster: Cluster, pool: Pool, own: Sequence[ServerSnapshot], *, without_level: int
) -> tuple[str, ...]:
    """Return notes for readers: how jobs enter the state, and what is left out."""
    left_out = [
        (without_level, "without a usable measurement on this cluster are left out"),
        (_paused(cluster), "paused by their owners are left out"),
        (_unmeasured(cluster), "that are not measured yet are left out"),
        (_elsewhere(cluster, pool.kind), "on other GPU types are left out"),
    ]
    notes = [
        "Jobs that are admitted go on as they are, on the GPUs that they hold.",
        "Deadlines are earlier by the measured time to store the final weights.",
        *sentences(left_out),
    ]
    sizes = _sizes(own)
    if len(sizes) > 1:
        notes.append(
            f"The servers have {_numbers(sizes)} GPUs; simulated ones all have {_commonest(sizes)}, the "
            f"commonest number."
        )
    unusable = sum(not server.usable for server in own)
    if unusable:
        notes.append(
            f"{unusable} server{'' if unusable == 1 else 's'} that cannot be used now are not counted."
        )
    if pool.snapshot.held_offers:
        notes.append("Capacity that is held for open offers is free here.")
    return tuple(notes)


def _sizes(own: Sequence[ServerSnapshot]) -> Counter[int]:
    """Count the usable servers by their number of GPUs."""
    return Counter(server.gpus for server in own if server.usable)


def _commonest(sizes: Counter[int]) -> int:
    """Return the most common number of GPUs per server; the larger of two."""
    return max(sizes, key=lambda gpus: (sizes[gpus], gpus))


def live_settings(cluster: Cluster) -> dict[str, float | int | str]:
    """Return the operator's settings that a study of the live cluster uses, by the study's column names."""
    planner = planner_settings(cluster)
    return {
        "slot_seconds": planner.slot_seconds,
        "fill": planner.fill.value,
        "reserve_servers": planner.reserve_servers,
        "reserve_slack_seconds": FailureCharges(cluster).asked_for(None, None).slack_seconds,
        "promise_margin": cluster.promise_margin,
    }


def _live_job(
    job: JobSnapshot, row: Job, places: Places, moment: float, margin: float, shares: Sequence[float]
) -> LiveJob:
    plan = job.stored_plan
    placed = all(address in places for address in job.placement)
    finish = plan.finish_at - moment if plan is not None and math.isfinite(plan.finish_at) else None
    deadline = row.deadline_at.timestamp() - moment if row.deadline_at is not None else None
    return LiveJob(
        id=job.id,
        model=_model(row),
        global_batch_size=row.global_batch_size,
        service_class=str(job.service_class),
        submitted_at=job.submitted_at - moment,
        deadline_at=deadline,
        remaining_iterations=job.remaining_iterations,
        levels=_levels(job.curve, margin, shares),
        placement=tuple(places[address] for address in job.placement) if placed else (),
        plan=_pieces(plan, moment) if plan is not None else (),
        planned_finish_at=finish,
        started_at=row.started_at.timestamp() - moment if row.started_at is not None else None,
        pause_left_seconds=job.pause_left_seconds,
        promised=job.promised,
        at_risk=job.at_risk,
        newcomer=job.newcomer,
        finishing_seconds=job.finishing_seconds,
        flexible=job.flexible if placed else (),
    )


def _pieces(plan: StoredPlan, moment: float) -> tuple[tuple[float, float, int], ...]:
    """Return the plan's pieces; the end of one without end is capped beyond any simulation."""
    pieces = zip(plan.start.tolist(), plan.end.tolist(), plan.gpus.tolist(), strict=True)
    return tuple((start - moment, min(end - moment, LONGEST_SECONDS), gpus) for start, end, gpus in pieces)


def _model(row: Job) -> str:
    return f"{row.function_version.function.name}@{row.function_version.number}"


def _levels(
    curve: ScalingCurve, margin: float, shares: Sequence[float]
) -> tuple[tuple[int, float, float], ...]:
    """Return levels as measured: undo the planner's lowering by the promise margin and by the share that
    expected failures cost."""
    left = np.array(shares[: curve.levels.size] or [1.0] * curve.levels.size) * (1.0 - margin)
    measured = zip(
        curve.levels.tolist(),
        (curve.throughput / left).tolist(),
        curve.pause_seconds.tolist(),
        strict=True,
    )
    return tuple(measured)


def _declined(cluster: Cluster, kind: str, now: datetime, total: int) -> tuple[list[LiveJob], dict[str, Job]]:
    rows = Job.objects.filter(
        cluster=cluster,
        state=JobState.DECLINED,
        deadline_at__gt=now,
        curve__gpu_kind=kind,
        curve__state=CurveState.READY,
        resubmissions__isnull=True,
    ).select_related("curve", "function_version__function")
    rows = rows.defer(UNREAD_OF_VERSION)
    found, of_row = [], {}
    for row in rows.prefetch_related("curve__levels").order_by("submitted_at", "id"):
        levels = list(row.curve.levels.all()) if row.curve else []
        curve = core_curve(levels, batch=row.global_batch_size, total=total, margin=0.0)
        if curve is None or row.deadline_at is None:
            continue
        of_row[row.pk] = row
        found.append(
            LiveJob(
                id=row.pk,
                model=_model(row),
                global_batch_size=row.global_batch_size,
                service_class=row.service_class,
                submitted_at=(row.submitted_at - now).total_seconds(),
                deadline_at=(row.deadline_at - now).total_seconds(),
                remaining_iterations=float(row.max_iterations),
                levels=_levels(curve, 0.0, ()),
                asks_again=True,
                finishing_seconds=finishing_seconds(row.curve),
            )
        )
    return found, of_row


def _paused(cluster: Cluster) -> int:
    return Job.objects.filter(cluster=cluster, state__in=PLANNED_STATES, paused_by_owner=True).count()


def _unmeasured(cluster: Cluster) -> int:
    undecided = Job.objects.filter(cluster=cluster, state__in=UNDECIDED_STATES, paused_by_owner=False)
    return undecided.exclude(curve__state=CurveState.READY).count()


def _elsewhere(cluster: Cluster, kind: str) -> int:
    unfinished = Job.objects.filter(cluster=cluster, state__in=[*PLANNED_STATES, *UNDECIDED_STATES])
    return (
        unfinished.filter(paused_by_owner=False, curve__state=CurveState.READY)
        .exclude(curve__gpu_kind=kind)
        .count()
    )


def _numbers(sizes: Counter[int]) -> str:
    return ", ".join(str(gpus) for gpus in sorted(sizes))
