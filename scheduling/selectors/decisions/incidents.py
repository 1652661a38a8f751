"""Incidents for one person: all for operators, those of visible jobs for others."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Count, Q, QuerySet

from projects.models import User
from scheduling.models import Incident
from scheduling.selectors.scope.visibility import visible_jobs

#: Time for which a resolved incident is shown.
SHOWN_FOR = timedelta(hours=24)


def incidents_shown_to(user: User, now: datetime, limit: int = 50) -> list[Incident]:
    """Return open incidents first, then those of the last day."""
    shown = Incident.objects.filter(Q(resolved_at__isnull=True) | Q(last_at__gt=now - SHOWN_FOR))
    return list(_seen_by(user, shown).select_related("job").order_by("resolved_at", "-last_at")[:limit])


def _seen_by(user: User, incidents: QuerySet[Incident]) -> QuerySet[Incident]:
    return incidents if user.operates() else incidents.filter(job__in=visible_jobs(user))


def open_incidents_by_kind() -> dict[str, int]:
    """Return the number of open incidents by kind, including zeros."""
    open_ones = Incident.objects.filter(resolved_at__isnull=True).values_list("kind")
    counts = dict(open_ones.annotate(count=Count("pk")).order_by())
    return {kind: counts.get(kind, 0) for kind in Incident.Kind.values}


def failed_passes(cluster_id: int) -> int:
    """Return the number of all failed passes of the planner."""
    rows = Incident.objects.filter(cluster_id=cluster_id, kind=Incident.Kind.PASS_FAILED)
    return sum(rows.values_list("count", flat=True))
