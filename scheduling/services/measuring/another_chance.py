"""Decides how a newcomer goes on that a pool refuses: on another kind of GPU, after more levels are measured,
or declined.

A decline never rests on a curve that is short only because GPUs were not free while it was measured, unless
time is up (`profiling.decide_by`); then the reason mentions it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

import numpy as np
from django.db.models import DurationField, ExpressionWrapper, F, Value

from cluster.models import Cluster, Gpu
from scheduling.choices import UNDECIDED_STATES, CurveState, JobEventKind
from scheduling.core.placement.measuring import levels_to_come
from scheduling.core.question.decision import Decision as CoreDecision
from scheduling.core.question.decision import ReasonCode, Verdict
from scheduling.core.question.quantities import gpus_text
from scheduling.models import Job, ScalingCurve
from scheduling.models.functions import versions_of_many
from scheduling.services.measuring.measured_levels import (
    MAXIMUM_ATTEMPTS,
    attempts_of,
    timed_out_curves,
    top_levels,
)
from scheduling.services.measuring.plan_chances import PlanChance, PlanChances, give_plan_chance
from scheduling.services.measuring.profiling import decide_by
from scheduling.services.measuring.unfit_levels import largest_unfit_levels
from scheduling.services.memory.expert_levels import unfit_workers, worker_counts_of
from scheduling.services.rows.borrowed import curves_on
from scheduling.services.rows.bulk import update_rows
from scheduling.services.rows.records import JobNote, record_all
from scheduling.services.snapshots.kinds import (
    KindRefusal,
    all_reasons,
    ask_all_elsewhere,
    kind_left,
    kinds_to_ask,
    refusals_of,
)
from scheduling.stored_verdict import AnswerCode, StoredVerdict, pending

#: Refusals that hold on any kind of GPU.
_FINAL = (ReasonCode.DEADLINE_PASSED, ReasonCode.NO_WORK)
#: Refusals that more GPUs at once could cure.
CURABLE = (
    ReasonCode.TOO_SLOW_ALONE,
    ReasonCode.CAPACITY,
    ReasonCode.WOULD_BREAK_PROMISE,
    ReasonCode.NO_LEVELS,
)


@dataclass(frozen=True)
class Chance:
    """Another chance of a job that was refused: the kind of GPU, and the refusal.

    ``wait_for``: measure more levels first, up to this one; 0: decide at once. ``plan``: the chance is a
    communication plan.
    """

    kind: str
    refusal: KindRefusal
    wait_for: int = 0
    plan: PlanChance | None = None


def chances(
    cluster: Cluster, kind: str, decision: CoreDecision, now: datetime
) -> tuple[CoreDecision, dict[str, Chance]]:
    """Split a pool's decision: without the verdicts on newcomers that have another chance, and their chances
    by job id.

    The remaining verdicts name the refusals of all kinds of GPU.
    """
    refused = {verdict.job_id: verdict for verdict in decision.verdicts if not verdict.admitted}
    if not refused:
        return decision, {}
    rows = list(Job.objects.filter(pk__in=refused).prefetch_related("curve", versions_of_many()))
    known = _Known(cluster, rows)
    found: dict[str, Chance] = {}
    final: dict[str, Verdict] = {}
    for row in rows:
        verdict = refused[row.pk]
        refusal = KindRefusal(kind, str(verdict.reason_code), verdict.reason)
        chance = _chance(row, refusal, known, now)
        if chance is not None:
            found[row.pk] = chance
        else:
            final[row.pk] = replace(verdict, reason=all_reasons(row, _limited(row, verdict, known)))
    left = tuple(
        final.get(verdict.job_id, verdict) for verdict in decision.verdicts if verdict.job_id not in found
    )
    return replace(decision, verdicts=left), found


def _chance(row: Job, refusal: KindRefusal, known: _Known, now: datetime) -> Chance | None:
    if refusal.code in _FINAL:
        return None
    latest = decide_by(row)
    too_late = latest is not None and now >= latest
    elsewhere = kind_left(known.order(row), row, measured=too_late, curve_of=known.curve_on)
    if elsewhere is not None:
        return Chance(elsewhere, refusal)
    if latest is None or too_late or row.curve is None:
        return None
    codes = {name: said.code for name, said in refusals_of(row).items()} | {refusal.kind: refusal.code}
    for kind in known.order(row):
        curve = known.curve_on(row, kind) if codes.get(kind) in CURABLE else None
        if curve is None or curve.state != CurveState.READY:
            continue
        more = known.levels_to_come(row, curve)
        if more and known.more_can_be_measured(row, curve):
            return Chance(kind, refusal, max(more))
    plan = known.plan_chance(row) if codes[row.curve.gpu_kind] in CURABLE else None
    return None if plan is None else Chance(row.curve.gpu_kind, refusal, plan=plan)


def _limited(row: Job, verdict: Verdict, known: _Known) -> str:
    """Return the reason, with the curve's largest level if more levels could have been measured."""
    curable = row.curve is not None and verdict.reason_code in CURABLE
    if row.curve is None or not curable or not known.levels_to_come(row, row.curve):
        return verdict.reason
    top = gpus_text(known.top_level(row.curve))
    return (
        f"{verdict.reason}; its speed was measured on up to {top} only, as no more were free for that in time"
    )


class _Known:
    """Facts about a pass's newcomers, read once for all of them."""

    def __init__(self, cluster: Cluster, rows: Sequence[Job]) -> None:
        self._cluster = cluster
        self._rows = rows
        self._orders: dict[str, tuple[str, ...]] = {}
        self._servers: dict[str, tuple[list[int], np.ndarray]] = {}
        self._to_come: dict[tuple[int, int], list[int]] = {}
        self._curves: dict[str, dict[str, ScalingCurve]] = {}
        self._plans: dict[str, PlanChances] = {}
        self._levels: dict[str, tuple[dict[int, int], dict[int, int]]] = {}

    def curve_on(self, row: Job, kind: str) -> ScalingCurve | None:
        """Return the job's curve on a kind of GPU; None if there is none."""
        if kind not in self._curves:
            self._curves[kind] = curves_on(self._rows, kind)
        return self._curves[kind].get(row.pk)

    def plan_chance(self, row: Job) -> PlanChance | None:
        """Return the job's chance under a communication plan, on the kind of GPU that was tried last."""
        assert row.curve is not None
        kind = row.curve.gpu_kind
        if kind not in self._plans:
            asked = [one for one in self._rows if one.curve is not None and one.curve.gpu_kind == kind]
            self._plans[kind] = PlanChances(asked, kind)
        return self._plans[kind].of(row)

    @cached_property
    def _attempts(self) -> dict[tuple[str, int | None], int]:
        return attempts_of(self._rows)

    @cached_property
    def _timed_out(self) -> set[int]:
        return timed_out_curves()

    def more_can_be_measured(self, row: Job, curve: ScalingCurve) -> bool:
        """Return whether more levels may be measured: attempts have not been broken off too often."""
        broken_off = self._attempts.get((row.pk, curve.pk), 0) + self._attempts.get((row.pk, None), 0)
        return broken_off < MAXIMUM_ATTEMPTS and curve.pk not in self._timed_out

    def top_level(self, curve: ScalingCurve) -> int:
        """Return the largest measured level; 0 without any."""
        return self._levels_on(curve.gpu_kind)[0].get(curve.pk, 0)

    def _levels_on(self, kind: str) -> tuple[dict[int, int], dict[int, int]]:
        """Return the largest measured level and the largest level known not to fit, of each job's curve on
        a kind."""
        if kind not in self._levels:
            curves = {curve.pk for row in self._rows if (curve := self.curve_on(row, kind)) is not None}
            self._levels[kind] = top_levels(curves), largest_unfit_levels(curves)
        return self._levels[kind]

    def order(self, row: Job) -> tuple[str, ...]:
        """Return the kinds of GPU in the order in which they are tried for the job."""
        if row.service_class not in self._orders:
            self._orders[row.service_class] = kinds_to_ask(self._cluster, row.service_class)
        return self._orders[row.service_class]

    def levels_to_come(self, row: Job, curve: ScalingCurve) -> list[int]:
        """Return levels that could still be measured if all usable GPUs were free."""
        if curve.complete:
            return []
        key = (curve.pk, row.global_batch_size)
        if key not in self._to_come:
            counts, usable = self._servers_of(curve.gpu_kind)
            above = max(self.top_level(curve), self._levels_on(curve.gpu_kind)[1].get(curve.pk, 0))
            above = max(above, unfit_workers(self._cluster, curve))
            allowed = worker_counts_of(row.function_version, curve, row.global_batch_size)
            self._to_come[key] = levels_to_come(row.global_batch_size, counts, usable, above, allowed)
        return self._to_come[key]

    def _servers_of(self, kind: str) -> tuple[list[int], np.ndarray]:
        if kind not in self._servers:
            measurable = Gpu.objects.measurable(self._cluster, kind).select_related("server")
            gpus = list(measurable.order_by("server__rack", "server_id", "index"))
            counts: dict[int, int] = {}
            for gpu in gpus:
                counts[gpu.server_id] = counts.get(gpu.server_id, 0) + 1
            usable = np.array([gpu.healthy and gpu.server.usable() for gpu in gpus], dtype=np.bool_)
            self._servers[kind] = (list(counts.values()), usable)
        return self._servers[kind]


def give_chances(found: Mapping[str, Chance]) -> None:
    """Store the other chances of jobs. The caller holds the cluster's row."""
    if not found:
        return
    rows = list(
        Job.objects.filter(pk__in=found, state__in=UNDECIDED_STATES).prefetch_related(
            "curve", versions_of_many()
        )
    )
    waiting = [row for row in rows if found[row.pk].wait_for]
    ask_all_elsewhere(
        [
            (row, found[row.pk].kind, found[row.pk].refusal)
            for row in rows
            if not found[row.pk].wait_for and found[row.pk].plan is None
        ]
    )
    curves = {kind: curves_on(waiting, kind) for kind in {found[row.pk].kind for row in waiting}}
    tops = top_levels({curve.pk for known in curves.values() for curve in known.values()})
    changed = []
    notes: list[JobNote] = []
    for row in waiting:
        curve = curves[found[row.pk].kind].get(row.pk)
        if curve and _wait_for_levels(row, found[row.pk], curve, tops.get(curve.pk, 0), notes):
            changed.append(row)
    for row in rows:
        chance = found[row.pk]
        if chance.plan is not None:
            note = give_plan_chance(row, chance.plan, chance.refusal.reason)
            notes += [] if note is None else [note]
            changed.append(row)
    update_rows(changed, ["refused_kinds", "curve", "awaits_levels", "verdict"])
    record_all(notes)


def _wait_for_levels(row: Job, chance: Chance, curve: ScalingCurve, top: int, notes: list[JobNote]) -> bool:
    """Let a job wait for more levels of a curve that ends at ``top``, without saving. Return whether that
    is new."""
    latest = decide_by(row)
    if latest is None or (row.awaits_levels and row.curve_id == curve.pk):
        return False
    said = refusals_of(row).get(chance.kind, chance.refusal).reason
    text = (
        f"Its speed is known on up to {gpus_text(top)} only: {said}. It is measured on up to "
        f"{gpus_text(chance.wait_for)} as soon as they are free, and decided by {latest:%Y-%m-%d %H:%M:%S} "
        f"UTC."
    )
    told = StoredVerdict.from_json(row.verdict).reason_code == AnswerCode.AWAITS_LEVELS
    refused = dict(row.refused_kinds)
    if chance.kind != chance.refusal.kind:
        refused[chance.refusal.kind] = chance.refusal.as_json()
    refused.pop(chance.kind, None)
    row.refused_kinds, row.curve, row.awaits_levels = refused, curve, True
    row.verdict = pending(AnswerCode.AWAITS_LEVELS, text).as_json()
    if not told:
        notes.append(JobNote(row, JobEventKind.AWAITS_LEVELS, text, {"gpus": chance.wait_for}))
    return True


def end_waiting(cluster: Cluster, now: datetime) -> int:
    """Let jobs be decided whose time to wait for more levels is over. Return their number. The caller
    holds the cluster's row."""
    waiting = Job.objects.filter(cluster=cluster, state__in=UNDECIDED_STATES, awaits_levels=True)
    span = DurationField()
    over = waiting.annotate(
        left=ExpressionWrapper(F("deadline_at") - Value(now), output_field=span),
        passed=ExpressionWrapper(Value(now) - F("submitted_at"), output_field=span),
    ).filter(left__lte=F("passed"))
    return Job.objects.filter(pk__in=list(over.values_list("pk", flat=True))).update(awaits_levels=False)
