"""A job's answer: one form for its row, the API and all services that give answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from scheduling.core.question.decision import Verdict
from scheduling.core.question.snapshot import StoredPlan
from scheduling.moments import rfc3339

ADMITTED, DECLINED, PENDING = "admitted", "declined", "pending"


class AnswerCode(StrEnum):
    """Reason codes of answers besides the planner's (`ReasonCode`); stable, for programs."""

    QUOTA = "quota"
    PROTECTION = "protection"
    OFFER_ACCEPTED = "offer_accepted"
    PROMISE_NOT_RESTORED = "promise_not_restored"
    CANNOT_BE_PLANNED = "cannot_be_planned"
    MODEL_DOES_NOT_FIT = "model_does_not_fit"
    NOT_PROFILED_IN_TIME = "not_profiled_in_time"
    AWAITS_LEVELS = "awaits_levels"
    AWAITS_PLAN = "awaits_plan"
    OTHER_KIND = "other_kind"
    NEEDS_PROFILING = "needs_profiling"
    PROFILING = "profiling"
    MEASURING_TURN = "measuring_turn"
    UNDECIDED = "undecided"
    #: Ended before it was decided.
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """An answer to a deadline, or that there is none yet. Times are RFC 3339 in UTC.

    ``decision``: `ADMITTED`, `DECLINED` or `PENDING`. ``reason_code``: stable, for programs; ``reason``: a
    sentence with the numbers. ``missing_gpus``: GPUs missing at the tightest time. ``offer``: a deadline that
    can be promised. ``no_offer``: why a declined job has none though a later deadline may be possible, as a
    sentence. ``counts_on``: how many lost servers a promise covers and what each costs, as a sentence.
    ``needs_profiling``: the scaling curve has to be measured first. ``tiers``: for a model with experts of
    known sizes, see `scheduling.services.memory.tier_options`.
    """

    decision: str
    reason_code: str
    reason: str
    minimum_satisfactory_share: tuple[Mapping[str, Any], ...] = ()
    planned_start_at: str | None = None
    planned_finish_at: str | None = None
    slack_seconds: float | None = None
    counts_on: str = ""
    missing_gpus: int = 0
    offer: Mapping[str, Any] | None = None
    no_offer: str = ""
    decision_id: int | None = None
    needs_profiling: bool = False
    tiers: Mapping[str, Any] | None = None

    @property
    def declined(self) -> bool:
        """Whether the answer is a decline."""
        return self.decision == DECLINED

    def as_json(self) -> dict[str, Any]:
        """Return the form that a job's row stores."""
        return asdict(self) | {"minimum_satisfactory_share": list(self.minimum_satisfactory_share)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any] | None) -> StoredVerdict:
        """Return the verdict of a row. Missing fields have their defaults."""
        known = {field.name for field in fields(cls)}
        kept = {name: value for name, value in (stored or {}).items() if name in known and value is not None}
        if "minimum_satisfactory_share" in kept:
            kept["minimum_satisfactory_share"] = tuple(kept["minimum_satisfactory_share"])
        return cls(**({"decision": PENDING, "reason_code": "", "reason": ""} | kept))


def declined(code: str, reason: str) -> StoredVerdict:
    """Return a decline that is not the planner's."""
    return StoredVerdict(DECLINED, code, reason)


def pending(code: str, reason: str, *, needs_profiling: bool = False) -> StoredVerdict:
    """Return the answer before a decision."""
    return StoredVerdict(PENDING, code, reason, needs_profiling=needs_profiling)


def answered(
    verdict: Verdict,
    plan: StoredPlan | None,
    deadline_at: datetime | None,
    decision_id: int | None = None,
    *,
    counts_on: str = "",
) -> StoredVerdict:
    """Return the planner's verdict, without its offer. ``counts_on``: text for a verdict that promises a
    deadline."""
    share = verdict.minimum_satisfactory_share or (plan if verdict.promised else None)
    return StoredVerdict(
        decision=ADMITTED if verdict.admitted else DECLINED,
        reason_code=str(verdict.reason_code),
        reason=verdict.reason,
        minimum_satisfactory_share=_pieces(share) if share is not None else (),
        counts_on=counts_on if verdict.promised else "",
        missing_gpus=verdict.missing_gpus,
        decision_id=decision_id,
        **_planned_times(plan if verdict.admitted else None, deadline_at),
    )


def promised_on(
    plan: StoredPlan | None, deadline_at: datetime, code: str, reason: str, *, counts_on: str
) -> StoredVerdict:
    """Return an admission that rests on an existing plan."""
    return StoredVerdict(
        decision=ADMITTED,
        reason_code=str(code),
        reason=reason,
        minimum_satisfactory_share=_pieces(plan) if plan is not None else (),
        counts_on=counts_on,
        **_planned_times(plan, deadline_at),
    )


def first_gpus_at(pieces: Iterable[tuple[float, float, int]], since: float = -math.inf) -> float:
    """Return when a plan's pieces (start, end, GPUs) first have GPUs after ``since``, in Unix seconds;
    infinity if never."""
    return next((float(start) for start, end, gpus in pieces if gpus > 0 and end > since), math.inf)


def _planned_times(plan: StoredPlan | None, deadline_at: datetime | None) -> dict[str, Any]:
    """Return when a plan starts and finishes, and its slack before the deadline."""
    if plan is None:
        return {}
    finish = float(plan.finish_at)
    finish_at = rfc3339(finish)
    slack = None
    if deadline_at is not None and finish_at is not None:
        slack = round(deadline_at.timestamp() - finish, 3)
    start = first_gpus_at(zip(plan.start, plan.end, plan.gpus, strict=True))
    return {"planned_start_at": rfc3339(start), "planned_finish_at": finish_at, "slack_seconds": slack}


def _pieces(plan: StoredPlan) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"start": rfc3339(float(start)), "end": rfc3339(float(end)), "gpus": int(gpus)}
        for start, end, gpus in zip(plan.start, plan.end, plan.gpus, strict=True)
    )
