"""Measures how much later than planned jobs begin on new GPUs; new promises reserve this as slack (decision
0010).

A plan charges a start with the pause of its level: the usual time from when its GPUs are held to the first
iteration. The pause does not include the planner's delay, the time until previous holders have left the GPUs
(and other jobs have moved for that), and anything slower than usual.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from django.db.models.fields.json import KT

from cluster.models import Cluster
from projects.prepared import PreparedValues, time_hole
from scheduling.choices import Purpose
from scheduling.models import CurveLevel, Generation, PlannerPass

#: Number of the newest starts and passes considered, if they are within the window.
MOST_LOOKED_AT = 500
WINDOW = timedelta(minutes=10)
#: Quantile of lateness that the slack covers.
SHARE = 0.99
#: A pass may be under way when a planned change is due, and the next one has to compute before it is made.
PASSES = 2
#: Limits, so that neither one project's slow starts nor a slow planner prevent promises to others.
MOST_SECONDS = 60.0
MOST_PASS_SECONDS = 2.0


@dataclass(frozen=True)
class Start:
    """A measured start. ``waited_seconds``: until its GPUs were free; ``beyond_seconds``: further seconds
    beyond the charged pause, negative if it was faster."""

    project: int
    waited_seconds: float
    beyond_seconds: float


def change_slack_seconds(cluster: Cluster, now: datetime) -> float:
    """Return by how many seconds recent changes exceeded their charge, 0 without any: the planner's delay,
    the wait for GPUs and the start itself, each at the 99 % quantile."""
    starts = list(_starts(cluster, now))
    waits = _late([one.waited_seconds for one in starts])
    slack = min(MOST_SECONDS, max(0.0, waits + _usual_lateness(starts)))
    return slack + PASSES * pass_seconds(cluster, now)


def pass_seconds(cluster: Cluster, now: datetime) -> float:
    """Return the seconds that recent planner passes took, at most `MOST_PASS_SECONDS`."""
    newest = _NEWEST_PASSES.ask(cluster.pk, now - WINDOW)
    return min(MOST_PASS_SECONDS, _late([seconds for (seconds,) in newest]))


_NEWEST_PASSES = PreparedValues(
    lambda cluster_id, since: (
        PlannerPass.objects.filter(cluster=cluster_id, ended_at__gt=time_hole(since))
        .order_by("-pk")
        .values_list("seconds")[:MOST_LOOKED_AT]
    )
)


def _usual_lateness(starts: Sequence[Start]) -> float:
    """Return the lateness of starts once their GPUs are free, in the median project: a function's start
    time depends on its owner and must not affect other promises."""
    by_project: dict[int, list[float]] = defaultdict(list)
    for one in starts:
        by_project[one.project].append(one.beyond_seconds)
    if not by_project:
        return 0.0
    return _quantile([_late(beyond) for beyond in by_project.values()], 0.5)


def _late(seconds: Sequence[float]) -> float:
    return _quantile(seconds, SHARE) if seconds else 0.0


def _quantile(seconds: Sequence[float], share: float) -> float:
    """Return the smallest value such that at least this share of the others does not exceed it."""
    return sorted(seconds)[ceil(share * (len(seconds) - 1))]


_NEWEST = PreparedValues(
    lambda: Generation.objects.order_by("-pk").values_list(
        "job__cluster_id", "job__project_id", "purpose", "curve_id", "world_size",
        "created_at", "held_at", "live_at", KT("start__from"),
    )[:MOST_LOOKED_AT]
)  # fmt: skip


def _starts(cluster: Cluster, now: datetime) -> Iterator[Start]:
    found = [
        (project, (curve, gpus), created_at, held_at or created_at, live_at)
        for cluster_id, project, purpose, curve, gpus, created_at, held_at, live_at, start in _NEWEST.ask()
        if cluster_id == cluster.pk and purpose == Purpose.TRAINING
        and live_at is not None and live_at > now - WINDOW
        # A job trains on while it hands over to itself.
        and start != "handover"
    ]  # fmt: skip
    curves = {curve for _, (curve, _), *_ in found if curve is not None}
    if not curves:
        return
    levels = CurveLevel.objects.filter(curve_id__in=curves)
    charged = {
        (curve, gpus): seconds
        for curve, gpus, seconds in levels.values_list("curve_id", "gpus", "pause_seconds")
        if seconds is not None
    }
    for project, level, created_at, held_at, live_at in found:
        if level in charged:
            waited = (held_at - created_at).total_seconds()
            beyond = (live_at - held_at).total_seconds() - charged[level]
            yield Start(project, max(0.0, waited), beyond)
