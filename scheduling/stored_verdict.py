"""What a job was answered (contracts 3): one form for its row, for the API and for every service that
answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from scheduling.core.question.decision import Verdict
from scheduling.core.question.snapshot import StoredPlan
from scheduling.moments import rfc3339

ADMITTED, DECLINED, PENDING = "admitted", "declined", "pending"


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """An answer to a deadline, or that there is none yet. Times are RFC 3339 in UTC.

    ``decision``: `ADMITTED`, `DECLINED` or `PENDING`. ``reason_code``: stable, for programs; ``reason``: a
    sentence with the numbers. ``missing_gpus``: by how many GPUs the tightest time fell short. ``offer``: a
    deadline that can be promised. ``counts_on``: how many lost servers a promise bears, and what each costs,
    as a sentence. ``needs_profiling``: the scaling curve has to be measured first.
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
    decision_id: int | None = None
    needs_profiling: bool = False

    @property
    def declined(self) -> bool:
        """Whether it is a no."""
        return self.decision == DECLINED

    def as_json(self) -> dict[str, Any]:
        """The form in which a job's row keeps it."""
        return asdict(self) | {"minimum_satisfactory_share": list(self.minimum_satisfactory_share)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any] | None) -> StoredVerdict:
        """What a row keeps. Fields that a row does not have are as they are by default."""
        known = {field.name for field in fields(cls)}
        kept = {name: value for name, value in (stored or {}).items() if name in known and value is not None}
        if "minimum_satisfactory_share" in kept:
            kept["minimum_satisfactory_share"] = tuple(kept["minimum_satisfactory_share"])
        return cls(**({"decision": PENDING, "reason_code": "", "reason": ""} | kept))


def declined(code: str, reason: str) -> StoredVerdict:
    """A no that the planner did not say."""
    return StoredVerdict(DECLINED, code, reason)


def pending(code: str, reason: str, *, needs_profiling: bool = False) -> StoredVerdict:
    """What is answered while nothing is decided."""
    return StoredVerdict(PENDING, code, reason, needs_profiling=needs_profiling)


def answered(
    verdict: Verdict,
    plan: StoredPlan | None,
    deadline_at: datetime | None,
    decision_id: int | None = None,
    *,
    counts_on: str = "",
) -> StoredVerdict:
    """The planner's verdict, without its offer. ``counts_on``: what it says where it promises anything."""
    share = verdict.minimum_satisfactory_share or (plan if verdict.promised else None)
    planned = plan if verdict.admitted else None
    finish = float(planned.finish_at) if planned is not None else float("inf")
    finish_at = rfc3339(finish)
    slack = None
    if deadline_at is not None and finish_at is not None:
        slack = round(deadline_at.timestamp() - finish, 3)
    return StoredVerdict(
        decision=ADMITTED if verdict.admitted else DECLINED,
        reason_code=str(verdict.reason_code),
        reason=verdict.reason,
        minimum_satisfactory_share=_pieces(share) if share is not None else (),
        planned_start_at=rfc3339(_planned_start(planned)) if planned is not None else None,
        planned_finish_at=finish_at,
        slack_seconds=slack,
        counts_on=counts_on if verdict.promised else "",
        missing_gpus=verdict.missing_gpus,
        decision_id=decision_id,
    )


def _planned_start(plan: StoredPlan) -> float:
    for start, gpus in zip(plan.start, plan.gpus, strict=True):
        if gpus > 0:
            return float(start)
    return float("inf")


def _pieces(plan: StoredPlan) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"start": rfc3339(float(start)), "end": rfc3339(float(end)), "gpus": int(gpus)}
        for start, end, gpus in zip(plan.start, plan.end, plan.gpus, strict=True)
    )
