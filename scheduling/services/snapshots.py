"""The planner's input, read from rows: one snapshot for each kind of GPU (a pool)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import structlog
from django.db.models import DurationField, ExpressionWrapper, F, Q, Sum, Value
from django.db.models.functions import Coalesce, Greatest

from cluster.choices import ServerState
from cluster.models import Cluster, Gpu, Server
from scheduling.choices import (
    PLANNED_STATES,
    UNDECIDED_STATES,
    CurveState,
    Goal,
    OfferState,
)
from scheduling.core.question.curves import curve_from_measurements, pause_at
from scheduling.core.question.snapshot import (
    NO_DEADLINE,
    HeldOffer,
    JobSnapshot,
    ScalingCurve,
    ServiceClass,
    Snapshot,
)
from scheduling.core.question.validation import Unplannable, check_job, check_offer, suspects
from scheduling.core.question.worker_counts import workers_by_gpus
from scheduling.models import Assignment, CurveLevel, Job, Offer
from scheduling.models import ScalingCurve as MeasuredCurve
from scheduling.models.functions import versions_of_many
from scheduling.policies import DEFAULT_POLICY, Policy, policy_named
from scheduling.services.believed import believed_iterations
from scheduling.services.blocking import blocked_gpus
from scheduling.services.borrowed import Borrowed, borrowed_by, measured_curves_on
from scheduling.services.claims import Claims
from scheduling.services.failure_charges import (
    DEFAULT_PAUSE_SECONDS,
    REPORTING_SECONDS,
    CountsOn,
    FailureCharges,
)
from scheduling.services.incidents import breaking_jobs
from scheduling.services.plan_json import plan_from_json
from scheduling.services.planner_settings import planner_settings
from scheduling.services.servers_of_pool import servers_of_pool

log = structlog.get_logger(__name__)

#: Undecided jobs that one pass reads, the longest waiting: more than it decides.
MOST_NEWCOMERS = 300


#: Columns of a job that plans depend on, and those that only its curves on other kinds of GPU are found by. A
#: burst reads thousands of rows in each pass.
_PLANNED_BY = (
    "state", "service_class", "submitted_at", "deadline_at", "max_iterations", "global_batch_size", "project",
    "curve", "iterations_done", "iterations_reported_at", "iterations_per_second", "promised", "at_risk",
    "plan", "policy_memory", "protection_class", "checkpoint_seconds",
)  # fmt: skip
_NAMES_CURVES = ("hyperparameters", "data", "function_version")


@dataclass(frozen=True)
class Pool:
    """A snapshot with what its addresses and names stand for."""

    kind: str
    snapshot: Snapshot
    gpus: tuple[Gpu, ...]
    #: GPU addresses that no generation has a claim on.
    free: frozenset[int]
    #: Address -> job id of the unretired claim.
    claims: Mapping[int, str]
    #: What the failures that the reserve covers may cost.
    charges: FailureCharges
    #: Jobs left out because their rows say what cannot be planned, and why.
    unplannable: Mapping[str, str] = field(default_factory=dict)
    #: Jobs left out because no plan could be computed with them a short while ago, and what was seen.
    breaking: Mapping[str, str] = field(default_factory=dict)
    #: On what the promise of each of these jobs counts.
    counts_on: Mapping[str, CountsOn] = field(default_factory=dict)


def pool_kinds(cluster: Cluster) -> list[str]:
    """The cluster's own kinds of GPU in a fixed order. Borrowed servers join one of these pools."""
    return sorted(Gpu.objects.own(cluster).by_kind())


def pool_snapshot(
    cluster: Cluster,
    kind: str,
    now: datetime,
    *,
    reallocate_at: datetime | None = None,
    awaiting_levels: bool = False,
) -> Pool:
    """The pool of one kind of GPU. ``reallocate_at``: the slot boundary from which allocations may change.

    ``awaiting_levels``: with the newcomers that wait until more of their curve is measured, after all others.
    """
    moment = now.timestamp()
    borrowed = borrowed_by(cluster, kind)
    servers, gpus, addresses = servers_of_pool(cluster, kind, borrowed)
    own = len(gpus) - (borrowed.total if borrowed else 0)
    claims = Claims.read(cluster, addresses)
    breaking = breaking_jobs(cluster, now)
    charges = FailureCharges(cluster)
    jobs, unplannable, counts_on = _jobs(
        cluster,
        kind,
        claims,
        now,
        charges,
        total=own,
        borrowed=borrowed,
        left_out=breaking,
        awaiting=awaiting_levels,
    )
    snapshot = Snapshot(
        now=moment,
        next_slot_at=max(moment, (reallocate_at or now).timestamp()),
        servers=tuple(server.snapshot for server in servers),
        jobs=tuple(jobs),
        held_offers=tuple(_held_offers(cluster, kind, now, charges, total=own)),
        blocked=tuple(blocked_gpus(cluster, gpus, addresses, {job.id for job in jobs}, moment)),
        settings=planner_settings(cluster),
        memory=_noted(cluster.policy_memory, cluster.policy, kind),
    )
    return Pool(
        kind,
        snapshot,
        tuple(gpus),
        frozenset(set(addresses.values()) - set(claims.job_of)),
        claims.job_of,
        charges,
        unplannable,
        breaking,
        counts_on=counts_on,
    )


def cluster_policy(cluster: Cluster) -> Policy:
    """The policy that the operator chose; the default one, and an error in the log, where there is none of
    that name."""
    try:
        return policy_named(cluster.policy)
    except ValueError as error:
        log.error("unknown_policy", cluster=cluster.name, error=str(error), used=DEFAULT_POLICY)
        return policy_named(DEFAULT_POLICY)


def _noted(memory: Mapping[str, Any], policy: str, part: str) -> tuple[float, ...]:
    """What a policy noted; nothing where it was another one that did."""
    return tuple(memory.get(part, ())) if memory.get("policy") == policy else ()


def _attained_gpu_seconds(cluster: Cluster, now: datetime) -> dict[str, float]:
    """GPU time that each unfinished job has held so far; none of what it was given since the pass began at
    ``now``."""
    until = Greatest(Coalesce(F("released_at"), Value(now)), F("held_at"))
    held = ExpressionWrapper(until - F("held_at"), output_field=DurationField())
    rows = (
        Assignment.objects.filter(
            job__cluster=cluster, job__state__in=[*PLANNED_STATES, *UNDECIDED_STATES], held_at__isnull=False
        )
        .values("job_id")
        .annotate(held=Sum(held))
    )
    return {row["job_id"]: row["held"].total_seconds() for row in rows}


def core_curve(levels: Sequence[CurveLevel], *, batch: int, total: int, margin: float) -> ScalingCurve | None:
    """Measured levels as the core takes them, by the GPUs that they hold and lowered by the promise margin.
    None when no level can be used."""
    by_workers = {level.gpus: level for level in levels}
    workers = workers_by_gpus(by_workers, batch)
    by_gpus = {gpus: by_workers[count] for gpus, count in workers.items()}
    measured = {gpus: level.iterations_per_second * (1.0 - margin) for gpus, level in by_gpus.items()}
    pauses = {gpus: level.pause_seconds or DEFAULT_PAUSE_SECONDS for gpus, level in by_gpus.items()}
    memory = {gpus: float(level.reserved_memory_bytes) for gpus, level in by_gpus.items()}
    curve = curve_from_measurements(
        measured,
        cluster_gpus=total,
        pause_seconds=lambda gpus: pauses[gpus],
        memory_bytes=memory.__getitem__ if any(memory.values()) else None,
    )
    return curve if curve.levels.size else None


def _jobs(
    cluster: Cluster,
    kind: str,
    claims: Claims,
    now: datetime,
    charges: FailureCharges,
    *,
    total: int,
    borrowed: Borrowed | None,
    left_out: Collection[str],
    awaiting: bool,
) -> tuple[list[JobSnapshot], dict[str, str], dict[str, CountsOn]]:
    """The jobs that can be planned, why the others cannot, and on what promises count. ``left_out``: job ids
    that are not looked at."""
    unpaused = Job.objects.filter(cluster=cluster, curve__gpu_kind=kind, paused_by_owner=False).exclude(
        pk__in=left_out
    )
    newcomers = (
        unpaused.filter(state__in=UNDECIDED_STATES, awaits_levels__in=[False, True] if awaiting else [False])
        .exclude(curve__state__in=[CurveState.UNKNOWN, CurveState.MEASURING, CurveState.FAILED])
        .order_by("awaits_levels", "submitted_at", "id")
        .values_list("pk", flat=True)[:MOST_NEWCOMERS]
    )
    found = unpaused.filter(Q(state__in=PLANNED_STATES) | Q(pk__in=list(newcomers)))
    # Many jobs share a curve: it is read once.
    found = found.order_by("submitted_at", "id").prefetch_related("curve")
    if borrowed is None:
        found = found.only(*_PLANNED_BY)
    else:
        found = found.only(*_PLANNED_BY, *_NAMES_CURVES).prefetch_related(versions_of_many())
    rows = list(found)
    lent = _lent_curves(rows, borrowed)
    pooled = total + (borrowed.total if borrowed else 0)
    levels: dict[int, list[CurveLevel]] = defaultdict(list)
    for level in CurveLevel.objects.filter(curve_id__in={row.curve_id for row in rows}):
        levels[level.curve_id].append(level)
    suspect = set(
        Server.objects.filter(cluster=cluster, state=ServerState.SUSPECT).values_list("pk", flat=True)
    )
    empty = ScalingCurve(np.array([], np.int64), np.array([], np.float64), np.array([], np.float64))
    attained = _attained_gpu_seconds(cluster, now)
    jobs, unplannable = [], {}
    counts_on: dict[str, CountsOn] = {}
    curves: dict[tuple[int | None, int], ScalingCurve | None] = {}
    for row in rows:
        try:
            key = (row.curve_id, row.global_batch_size)
            if key not in curves:
                curves[key] = core_curve(
                    levels[row.curve_id or 0], batch=key[1], total=total, margin=cluster.promise_margin
                )
            counts_on[row.pk] = charges.of(row, curves[key], measured=row.curve)
            lent_curve = None
            if row.pk in lent:
                on_loan = list(lent[row.pk].levels.all())
                lent_curve = core_curve(on_loan, batch=key[1], total=pooled, margin=cluster.promise_margin)
            read = job_snapshot(
                row,
                curves[key] or empty,
                claims,
                now,
                suspect,
                failure_slack_seconds=counts_on[row.pk].slack_seconds,
                attained_gpu_seconds=attained.get(row.pk, 0.0),
                lent_curve=lent_curve,
                memory=_noted(row.policy_memory, cluster.policy, "values"),
                margin=cluster.promise_margin,
            )
        except _UNREADABLE as error:
            unplannable[row.pk] = _unreadable(error)
        else:
            jobs.append(read)
    for suspected in suspects(jobs):
        try:
            check_job(suspected)
        except Unplannable as fault:
            unplannable[suspected.id] = fault.reason
        except _UNREADABLE as error:
            unplannable[suspected.id] = _unreadable(error)
    return [job for job in jobs if job.id not in unplannable], unplannable, counts_on


_UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def _unreadable(error: Exception) -> str:
    return f"its rows cannot be read ({type(error).__name__}: {error})"


def _lent_curves(rows: Sequence[Job], borrowed: Borrowed | None) -> dict[str, MeasuredCurve]:
    """Curves on the borrowed kind of GPU. A promise keeps a job off servers of another kind than its own."""
    if borrowed is None:
        return {}
    able = [row for row in rows if not row.promised or _measured_on(row, borrowed.kind)]
    return measured_curves_on(able, borrowed.kind)


def _measured_on(row: Job, kind: str) -> bool:
    return row.curve is not None and row.curve.gpu_kind == kind


def job_snapshot(
    row: Job,
    curve: ScalingCurve,
    claims: Claims,
    now: datetime,
    suspect: Collection[int],
    *,
    failure_slack_seconds: float,
    attained_gpu_seconds: float,
    lent_curve: ScalingCurve | None,
    memory: tuple[float, ...],
    margin: float,
) -> JobSnapshot:
    """One job as the planner sees it. ``suspect``: servers that are. ``margin``: that promises keep, by which
    the curve is lowered. The others: as in the snapshot."""
    live = claims.live.get(row.pk)
    coming = claims.coming.get(row.pk)
    shown = coming or live
    placement = claims.placement.get(shown.pk, ()) if shown else ()
    suspending = live is not None and live.goal == Goal.SUSPEND and coming is None
    silent = shown is not None and not claims.servers.get(shown.pk, frozenset()).isdisjoint(suspect)
    locked = coming is not None or suspending or silent
    if suspending:
        # Its GPUs come free when its state is written; until then nothing else can be planned for it. Those
        # that another waits for are counted there, and as long as it will have them: here they would be taken
        # twice, and for a slot alone.
        placement = tuple(
            address for address in placement if claims.waited_for.get(address, row.pk) == row.pk
        )
    newcomer = row.state in UNDECIDED_STATES
    done = believed_iterations(
        row,
        curve,
        margin=margin,
        live=live,
        gpus=len(claims.placement.get(live.pk, ())) if live else 0,
        now=now,
        attained_gpu_seconds=attained_gpu_seconds,
    )
    pause_left = 0.0
    if coming is not None and live is None and curve.levels.size:
        elapsed = (now - coming.created_at).total_seconds()
        pause_left = max(0.0, pause_at(curve, len(placement)) - elapsed)
    return JobSnapshot(
        id=row.pk,
        service_class=ServiceClass(row.service_class),
        submitted_at=row.submitted_at.timestamp(),
        deadline_at=row.deadline_at.timestamp() if row.deadline_at else NO_DEADLINE,
        remaining_iterations=max(1.0, row.max_iterations - done),
        curve=curve,
        newcomer=newcomer,
        promised=row.promised and not newcomer,
        at_risk=row.at_risk,
        gpus_now=len(placement),
        placement=placement,
        pause_left_seconds=pause_left,
        finishing_seconds=finishing_seconds(row),
        stored_plan=plan_from_json(row.plan),
        locked=locked,
        flexible=claims.marks(shown, placement),
        total_iterations=float(row.max_iterations),
        project=row.project_id,
        attained_gpu_seconds=attained_gpu_seconds,
        lent_curve=lent_curve,
        memory=memory,
        failure_slack_seconds=failure_slack_seconds,
    )


def held_offer_id(job_id: str) -> str:
    """The name of a job's offer in a snapshot."""
    return f"offer-{job_id}"


def _held_offers(
    cluster: Cluster, kind: str, now: datetime, charges: FailureCharges, *, total: int
) -> list[HeldOffer]:
    """Open offers, each with the job as it would be accepted, so that forecasts watch over it as over
    promises."""
    offers = Offer.objects.filter(
        job__cluster=cluster, job__curve__gpu_kind=kind, state=OfferState.OPEN, valid_until__gt=now
    )
    held = []
    for offer in offers.select_related("job__curve").order_by("id"):
        try:
            made = _held(offer, cluster, charges, total=total)
            if made is not None:
                check_offer(made)
                held.append(made)
        except _UNREADABLE as fault:
            log.error("offer_left_out", job=offer.job_id, reason=str(fault))
    return held


def _held(offer: Offer, cluster: Cluster, charges: FailureCharges, *, total: int) -> HeldOffer | None:
    plan = plan_from_json(offer.plan)
    job = offer.job
    levels = list(job.curve.levels.all()) if job.curve else []
    curve = core_curve(levels, batch=job.global_batch_size, total=total, margin=cluster.promise_margin)
    if plan is None or curve is None:
        return None
    accepted = JobSnapshot(
        id=job.pk,
        service_class=ServiceClass(job.service_class),
        submitted_at=job.submitted_at.timestamp(),
        deadline_at=offer.deadline_at.timestamp(),
        remaining_iterations=float(job.max_iterations),
        curve=curve,
        finishing_seconds=finishing_seconds(job),
        failure_slack_seconds=charges.of(job, curve, measured=job.curve).slack_seconds,
    )
    return HeldOffer(
        id=held_offer_id(job.pk), plan=plan, valid_until=offer.valid_until.timestamp(), job=accepted
    )


def asking_again(pool: Pool, row: Job, measured: MeasuredCurve, margin: float) -> JobSnapshot | None:
    """A declined job as it asks for an offer of the pool; None where it cannot run on any level."""
    total = sum(server.gpus for server in pool.snapshot.servers if not server.on_loan)
    levels = list(measured.levels.all())
    curve = core_curve(levels, batch=row.global_batch_size, total=total, margin=margin)
    if curve is None or row.deadline_at is None:
        return None
    return JobSnapshot(
        id=row.pk,
        service_class=ServiceClass(row.service_class),
        submitted_at=row.submitted_at.timestamp(),
        deadline_at=row.deadline_at.timestamp(),
        remaining_iterations=float(row.max_iterations),
        curve=curve,
        finishing_seconds=measured.finishing_seconds + REPORTING_SECONDS,
        failure_slack_seconds=pool.charges.of(row, curve, measured=measured).slack_seconds,
    )


def finishing_seconds(job: Job) -> float:
    """Time to store the final weights and to hear of it, as measured for the job's curve."""
    return (job.curve.finishing_seconds if job.curve else 0.0) + REPORTING_SECONDS
