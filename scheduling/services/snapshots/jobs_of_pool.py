"""The jobs of one pool in the planner's form, read from rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Any

import numpy as np
from django.db.models import DurationField, ExpressionWrapper, F, Q, QuerySet, Sum
from django.db.models.functions import Coalesce, Greatest

from cluster.choices import ServerState
from cluster.models import Cluster, Server
from projects.prepared import PreparedRows, PreparedValues, time_hole
from scheduling.choices import PLANNED_STATES, UNDECIDED_STATES, CurveState, Goal
from scheduling.core.question.curves import curve_from_measurements, lowered, pause_at
from scheduling.core.question.snapshot import NO_DEADLINE, JobSnapshot, ScalingCurve, ServiceClass
from scheduling.core.question.validation import Unplannable, check_job, suspects
from scheduling.core.question.worker_counts import workers_by_gpus
from scheduling.models import Assignment, CurveLevel, Job
from scheduling.models import ScalingCurve as MeasuredCurve
from scheduling.models.functions import versions_of_many
from scheduling.services.generations.failure_charges import (
    DEFAULT_PAUSE_SECONDS,
    REPORTING_SECONDS,
    CountsOn,
    FailureCharges,
)
from scheduling.services.memory.disk_shares import levels_with_room
from scheduling.services.rows.believed import believed_iterations
from scheduling.services.rows.borrowed import Borrowed, measured_curves_on
from scheduling.services.rows.claims import Claims
from scheduling.services.rows.planned_jobs import COLUMNS, PlannedJob

#: Errors while reading rows with impossible content.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_NO_CURVE = ScalingCurve(np.array([], np.int64), np.array([], np.float64), np.array([], np.float64))
#: Columns of a job that its curves on other kinds of GPU depend on.
_NAMES_CURVES = ("curve", "hyperparameters", "data", "function_version")


@dataclass(frozen=True)
class JobsOfPool:
    """The jobs that can be planned, and findings about the others."""

    planned: tuple[JobSnapshot, ...]
    #: Why a job's rows cannot be planned, by job id.
    unplannable: Mapping[str, str]
    #: What a job's promise assumes, by job id.
    counts_on: Mapping[str, CountsOn]


@dataclass
class PoolReading:
    """Reads the jobs of a pool; facts of all jobs are read once."""

    cluster: Cluster
    #: The pool's kind of GPU.
    kind: str
    now: datetime
    claims: Claims
    charges: FailureCharges
    #: GPUs of the pool that the cluster owns.
    total: int
    borrowed: Borrowed | None
    _curves: dict[tuple[int | None, int], ScalingCurve | None] = field(default_factory=dict)

    def jobs(self, *, left_out: Collection[str], awaiting_levels: bool, most_newcomers: int) -> JobsOfPool:
        """Return the jobs except those ``left_out``.

        ``awaiting_levels``: include newcomers that wait for more levels of their curve, after all others.
        ``most_newcomers``: limit of undecided jobs, the longest waiting first.
        """
        rows = self._rows(left_out, awaiting_levels, most_newcomers)
        facts = self._facts(rows)
        jobs: list[JobSnapshot] = []
        unplannable: dict[str, str] = {}
        counts_on: dict[str, CountsOn] = {}
        for row in rows:
            try:
                measured = facts.curves[row.curve_id]
                curve = self._curve_of(row, measured, facts.levels[row.curve_id])
                counts_on[row.pk] = self.charges.of(row, curve, measured=measured)
                jobs.append(self._read(row, curve or _NO_CURVE, counts_on[row.pk], facts))
            except UNREADABLE as error:
                unplannable[row.pk] = _unreadable(error)
        unplannable |= _faults(jobs)
        return JobsOfPool(tuple(job for job in jobs if job.id not in unplannable), unplannable, counts_on)

    def _rows(
        self, left_out: Collection[str], awaiting_levels: bool, most_newcomers: int
    ) -> list[PlannedJob]:
        unpaused = _unpaused(self.cluster.pk, self.kind, list(left_out))
        newcomers = list(_newcomers(unpaused, awaiting_levels)[:most_newcomers])
        rows = _PLANNED.ask(self.cluster.pk, self.kind, list(left_out), newcomers)
        return [PlannedJob._make(row) for row in rows]

    def _facts(self, rows: Sequence[PlannedJob]) -> _Facts:
        curve_ids = list({row.curve_id for row in rows})
        levels: dict[int, list[CurveLevel]] = defaultdict(list)
        for level in _LEVELS.ask(curve_ids):
            levels[level.curve_id].append(level)
        curves = {curve.pk: curve for curve in _CURVES.ask(curve_ids)}
        return _Facts(
            curves,
            levels,
            self._lent_curves(rows, curves),
            frozenset(server_id for (server_id,) in _SUSPECT.ask(self.cluster.pk)),
            _attained_gpu_seconds(self.cluster, self.now),
        )

    def _lent_curves(
        self, rows: Sequence[PlannedJob], curves: Mapping[int, MeasuredCurve]
    ) -> dict[str, MeasuredCurve]:
        """Return curves on the borrowed kind of GPU. A promised job is kept off servers of another kind than
        its own."""
        if self.borrowed is None:
            return {}
        kind = self.borrowed.kind
        able = [row.pk for row in rows if not row.promised or curves[row.curve_id].gpu_kind == kind]
        jobs = Job.objects.filter(pk__in=able).only(*_NAMES_CURVES)
        return measured_curves_on(list(jobs.prefetch_related("curve__levels", versions_of_many())), kind)

    def _curve_of(
        self, row: PlannedJob, measured: MeasuredCurve, levels: Sequence[CurveLevel]
    ) -> ScalingCurve | None:
        key = (row.curve_id, row.global_batch_size)
        if key not in self._curves:
            self._curves[key] = core_curve(
                levels_with_room(levels, measured, self.cluster),
                batch=key[1],
                total=self.total,
                margin=self.cluster.promise_margin,
            )
        return self._curves[key]

    def _read(self, row: PlannedJob, curve: ScalingCurve, counts_on: CountsOn, facts: _Facts) -> JobSnapshot:
        margin = self.cluster.promise_margin
        lent_curve = None
        if row.pk in facts.lent:
            lent = facts.lent[row.pk]
            on_loan = levels_with_room(lent.levels.all(), lent, self.cluster)
            pooled = self.total + (self.borrowed.total if self.borrowed else 0)
            lent_curve = core_curve(on_loan, batch=row.global_batch_size, total=pooled, margin=margin)
        if lent_curve is not None and self.borrowed:
            # No promise rests on borrowed servers, so no slack covers their failures.
            largest = max(map(len, self.borrowed.gpus), default=0)
            lent_curve = lowered(lent_curve, self.charges.shares(lent_curve, counts_on, inf, largest))
        return job_snapshot(
            row,
            self.charges.promised(curve, counts_on),
            self.claims,
            self.now,
            facts.suspect,
            failure_slack_seconds=counts_on.slack_seconds,
            attained_gpu_seconds=facts.attained.get(row.pk, 0.0),
            lent_curve=lent_curve,
            memory=noted(row.policy_memory, self.cluster.policy, "values"),
            measured=curve,
            margin=margin,
            finishing_seconds=finishing_seconds(facts.curves[row.curve_id]),
        )


@dataclass(frozen=True)
class _Facts:
    """Facts read for many jobs at once."""

    #: The jobs' curves, and their measured levels, by the curve's primary key.
    curves: Mapping[int, MeasuredCurve]
    levels: Mapping[int, list[CurveLevel]]
    #: The job's curve on the borrowed kind of GPU, by job id.
    lent: Mapping[str, MeasuredCurve]
    #: Ids of suspect servers.
    suspect: frozenset[int]
    #: GPU seconds that the job has held, by job id.
    attained: Mapping[str, float]


def _unpaused(cluster_id: int, kind: str, left_out: Any) -> QuerySet[Job]:
    unpaused = Job.objects.filter(cluster=cluster_id, curve__gpu_kind=kind, paused_by_owner=False)
    return unpaused.exclude(pk__any_of=left_out)


_PLANNED = PreparedValues(
    lambda cluster_id, kind, left_out, newcomers: (
        _unpaused(cluster_id, kind, left_out)
        .filter(Q(state__in=PLANNED_STATES) | Q(pk__any_of=newcomers))
        .order_by("submitted_at", "id")
        .values_list(*COLUMNS)
    )
)
_CURVES = PreparedRows(lambda curve_ids: MeasuredCurve.objects.filter(pk__any_of=curve_ids))
_LEVELS = PreparedRows(lambda curve_ids: CurveLevel.objects.filter(curve__pk__any_of=curve_ids))


def _newcomers(unpaused: QuerySet[Job], awaiting_levels: bool) -> QuerySet[Job, str]:
    """Return ids of undecided jobs with a measured curve, the longest waiting first."""
    undecided = unpaused.filter(
        state__in=UNDECIDED_STATES, awaits_levels__in=[False, True] if awaiting_levels else [False]
    )
    known = undecided.exclude(curve__state__in=[CurveState.UNKNOWN, CurveState.MEASURING, CurveState.FAILED])
    return known.order_by("awaits_levels", "submitted_at", "id").values_list("pk", flat=True)


def _faults(jobs: Sequence[JobSnapshot]) -> dict[str, str]:
    """Return why jobs cannot be planned, by id."""
    faults = {}
    for suspected in suspects(jobs):
        try:
            check_job(suspected)
        except Unplannable as fault:
            faults[suspected.id] = fault.reason
        except UNREADABLE as error:
            faults[suspected.id] = _unreadable(error)
    return faults


def _unreadable(error: Exception) -> str:
    return f"its rows cannot be read ({type(error).__name__}: {error})"


def noted(memory: Mapping[str, Any], policy: str, part: str) -> tuple[float, ...]:
    """Return what this policy stored; nothing if another policy stored it."""
    return tuple(memory.get(part, ())) if memory.get("policy") == policy else ()


def _attained_gpu_seconds(cluster: Cluster, now: datetime) -> dict[str, float]:
    """Return the GPU seconds that each unfinished job has held until ``now``, when the pass began."""
    return {job_id: held.total_seconds() for job_id, held in _HELD.ask(cluster.pk, now)}


def _held_times(cluster_id: int, now: int) -> QuerySet[Assignment, Any]:
    until = Greatest(Coalesce(F("released_at"), time_hole(now)), F("held_at"))
    held = ExpressionWrapper(until - F("held_at"), output_field=DurationField())
    unfinished = Assignment.objects.filter(
        job__cluster=cluster_id, job__state__in=[*PLANNED_STATES, *UNDECIDED_STATES], held_at__isnull=False
    )
    return unfinished.values_list("job_id").annotate(held=Sum(held))


_HELD = PreparedValues(_held_times)
_SUSPECT = PreparedValues(
    lambda cluster_id: Server.objects.filter(cluster=cluster_id, state=ServerState.SUSPECT).values_list("pk")
)


def core_curve(levels: Sequence[CurveLevel], *, batch: int, total: int, margin: float) -> ScalingCurve | None:
    """Return measured levels in the core's form, by held GPUs and lowered by the promise margin. None if
    no level can be used."""
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


def job_snapshot(
    row: PlannedJob,
    curve: ScalingCurve,
    claims: Claims,
    now: datetime,
    suspect: Collection[int],
    *,
    failure_slack_seconds: float,
    attained_gpu_seconds: float,
    lent_curve: ScalingCurve | None,
    memory: tuple[float, ...],
    measured: ScalingCurve,
    margin: float,
    finishing_seconds: float,
) -> JobSnapshot:
    """Return one job in the planner's form. ``suspect``: ids of suspect servers. ``measured``: the curve
    before expected failures lower it. ``margin``: the promise margin by which both curves are lowered.
    Other arguments: as in the snapshot."""
    live = claims.live.get(row.pk)
    coming = claims.coming.get(row.pk)
    shown = coming or live
    placement = claims.placement.get(shown.id, ()) if shown else ()
    suspending = live is not None and live.goal == Goal.SUSPEND and coming is None
    silent = shown is not None and not claims.servers.get(shown.id, frozenset()).isdisjoint(suspect)
    locked = coming is not None or suspending or silent
    if suspending:
        # Its GPUs become free once its state is stored; until then nothing else can be planned for it. GPUs
        # that another job waits for count as that job's: here they would count twice, and for one slot only.
        placement = tuple(
            address for address in placement if claims.waited_for.get(address, row.pk) == row.pk
        )
    newcomer = row.state in UNDECIDED_STATES
    done = believed_iterations(
        row,
        measured,
        margin=margin,
        live=live,
        gpus=len(claims.placement.get(live.id, ())) if live else 0,
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
        finishing_seconds=finishing_seconds,
        stored_plan=row.plan,
        locked=locked,
        flexible=claims.marks(shown, placement),
        total_iterations=float(row.max_iterations),
        project=row.project_id,
        attained_gpu_seconds=attained_gpu_seconds,
        lent_curve=lent_curve,
        memory=memory,
        failure_slack_seconds=failure_slack_seconds,
    )


def finishing_seconds(measured: MeasuredCurve | None) -> float:
    """Return the seconds until the final weights are stored and reported, as measured for the curve."""
    return (measured.finishing_seconds if measured else 0.0) + REPORTING_SECONDS
