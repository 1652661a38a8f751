"""Outages of the platform, which durations between two rows exclude."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from django.utils import timezone

from cluster.models import Cluster, Outage


class Stopped(NamedTuple):
    """One outage of the platform."""

    stopped_at: datetime
    started_at: datetime

    def __str__(self) -> str:
        """Return `2026-03-02 10:51 to 11:06 UTC`."""
        same_day = self.stopped_at.date() == self.started_at.date()
        end = f"{self.started_at:%H:%M}" if same_day else f"{self.started_at:%Y-%m-%d %H:%M}"
        return f"{self.stopped_at:%Y-%m-%d %H:%M} to {end} UTC"


def outages_between(cluster_id: int, begin: datetime, end: datetime) -> list[Stopped]:
    """Return the outages of the control plane between two times, in order, clipped to both.

    An outage that just ended and is not recorded yet counts too: code that runs before the first check of
    leases also sees it.
    """
    rows = Outage.objects.filter(cluster=cluster_id, started_at__gt=begin, stopped_at__lt=end)
    found = [Stopped(*row) for row in rows.values_list("stopped_at", "started_at")]
    looked = Cluster.objects.values_list("leases_checked_at", "suspect_seconds").get(pk=cluster_id)
    checked_at, suspect_seconds = looked
    now = timezone.now()
    if checked_at is not None and (now - checked_at).total_seconds() > suspect_seconds:
        found.append(Stopped(checked_at, now))
    cut = [Stopped(max(begin, stopped_at), min(end, started_at)) for stopped_at, started_at in found]
    return [outage for outage in cut if outage.stopped_at < outage.started_at]


def stopped_seconds(outages: Sequence[Stopped], begin: datetime, end: datetime) -> float:
    """Return how many seconds of the time from ``begin`` to ``end`` lie in one of the outages."""
    return sum(
        max(0.0, (min(end, outage.started_at) - max(begin, outage.stopped_at)).total_seconds())
        for outage in outages
    )
