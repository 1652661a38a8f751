"""Durations of decisions and of the planner's passes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Avg, Count, Max

from scheduling.models import Decision, PlannerPass


@dataclass(frozen=True, slots=True)
class DecisionTimes:
    """Number of decisions and their computing times; zeros without any."""

    #: Number of decisions.
    count: int
    mean_seconds: float
    longest_seconds: float


def decision_times(since: datetime) -> DecisionTimes:
    """Return the computing times of the decisions since then."""
    found = Decision.objects.filter(decided_at__gt=since).aggregate(
        count=Count("pk"), mean=Avg("compute_seconds"), longest=Max("compute_seconds")
    )
    return DecisionTimes(found["count"], found["mean"] or 0.0, found["longest"] or 0.0)


def recent_pass_seconds(since: datetime) -> list[float]:
    """Return the lengths of the passes that ended since then."""
    return list(PlannerPass.objects.filter(ended_at__gt=since).values_list("seconds", flat=True))


def longest_pass_seconds() -> float:
    """Return the length of the longest pass that is kept; 0 without any."""
    return PlannerPass.objects.aggregate(longest=Max("seconds"))["longest"] or 0.0
