"""Chances of refused newcomers under a communication plan. A newcomer that was measured without a plan is
not declined before its permitted plans were made, and measured if one is predicted to win."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from scheduling.choices import JobEventKind, Lossy
from scheduling.core.runtime_plans.expert_families import UNPLANNED
from scheduling.curve_keys import function_key_on
from scheduling.models import GradientProfile, Job
from scheduling.services.gradients.families import curve_of_family, family_of_newcomer
from scheduling.services.gradients.gradient_plans import server_size, shape_of_level
from scheduling.services.rows.records import JobNote
from scheduling.stored_verdict import AnswerCode, StoredVerdict, pending


@dataclass(frozen=True)
class PlanChance:
    """A chance under a communication plan. ``family``: the plan family to measure; empty while plans are
    being made."""

    family: str = ""


class PlanChances:
    """Plans for newcomers on one kind of GPU. Costs one query if none of their gradients were measured."""

    def __init__(self, rows: Sequence[Job], kind: str) -> None:
        self._kind = kind
        self._keys = {row.pk: function_key_on(row, kind) for row in rows}

    @cached_property
    def _measured(self) -> set[str]:
        """Keys of functions whose gradients were measured."""
        profiles = GradientProfile.objects.filter(key__in=set(self._keys.values())).order_by()
        return set(profiles.values_list("key", flat=True))

    @cached_property
    def _server_size(self) -> int:
        return server_size(self._kind)

    def of(self, row: Job) -> PlanChance | None:
        """Return the job's chance; None if it has none beyond its curve."""
        key = self._keys[row.pk]
        if row.curve is None or row.curve.plan_family not in UNPLANNED or key not in self._measured:
            return None
        unplanned = row.curve.plan_family
        family = family_of_newcomer(key, unplanned, lossy=row.lossy == Lossy.ALLOWED, codecs=row.codecs)
        if family != unplanned:
            return PlanChance(family)
        levels = GradientProfile.objects.filter(key=key, planned_from="").values_list("gpus", flat=True)
        coming = (shape_of_level(level, self._server_size) for level in levels)
        return PlanChance() if any(shape is not None and shape.workers > 1 for shape in coming) else None


def give_plan_chance(row: Job, chance: PlanChance, refusal: str) -> JobNote | None:
    """Let a job wait for plans, or for its speed under one, without saving. Return the note to record if it
    is new.

    Args:
        refusal: why the job was refused without a plan.
    """
    text = f"Without a communication plan: {refusal.rstrip('.')}. "
    if chance.family:
        row.curve, row.awaits_levels = curve_of_family(row, chance.family), False
        text += "A plan is predicted to make it faster; its speed under plans is measured."
    else:
        row.awaits_levels = True
        text += "Plans are being made from its measured gradients."
    is_news = StoredVerdict.from_json(row.verdict).reason != text
    row.verdict = pending(AnswerCode.AWAITS_PLAN, text).as_json()
    return JobNote(row, JobEventKind.AWAITS_PLAN, text, {"family": chance.family}) if is_news else None
