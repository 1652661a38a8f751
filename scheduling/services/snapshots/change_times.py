"""How much later than plans say do jobs really begin on new GPUs? What new promises keep as slack for that
(decision 0010).

A plan charges a start with the pause of its level: from when its GPUs are there to the first iteration, as it
usually is. Not in it: until the planner has acted; until those who had the GPUs have left them, whoever must
move for that first included; and whatever is slower than usual.
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

#: Starts and passes that are looked at: so many of the newest, as far as they are of the last ten minutes.
MOST_LOOKED_AT = 500
WINDOW = timedelta(minutes=10)
#: As many of them were no later than the slack.
SHARE = 0.99
#: When a plan's moment comes a pass may be under way, and the next one has to compute before anybody moves.
PASSES = 2
#: Neither one project's starts nor the planner's lateness make promises to the others impossible.
MOST_SECONDS = 60.0
MOST_PASS_SECONDS = 2.0


@dataclass(frozen=True)
class Start:
    """A start as it went. ``waited_seconds``: until its GPUs were free; ``beyond_seconds``: how much longer
    than charged it took from then on, negative where it was quicker."""

    project: int
    waited_seconds: float
    beyond_seconds: float


def change_slack_seconds(cluster: Cluster, now: datetime) -> float:
    """By how much changes lately came later than charged, 0 where there were none: the planner's acting, the
    wait for GPUs and the start itself, each as late as one in a hundred was."""
    starts = list(_starts(cluster, now))
    waits = _late([one.waited_seconds for one in starts])
    slack = min(MOST_SECONDS, max(0.0, waits + _usual_lateness(starts)))
    return slack + PASSES * pass_seconds(cluster, now)


def pass_seconds(cluster: Cluster, now: datetime) -> float:
    """How long the planner's passes lately took, at most `MOST_PASS_SECONDS`."""
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
    """How late starts are once their GPUs are free, in the project in the middle: how long a function takes
    until it begins is its owner's doing, and nobody else's promise."""
    by_project: dict[int, list[float]] = defaultdict(list)
    for one in starts:
        by_project[one.project].append(one.beyond_seconds)
    if not by_project:
        return 0.0
    return _quantile([_late(beyond) for beyond in by_project.values()], 0.5)


def _late(seconds: Sequence[float]) -> float:
    return _quantile(seconds, SHARE) if seconds else 0.0


def _quantile(seconds: Sequence[float], share: float) -> float:
    """The least of the values that at least so many of the others do not exceed."""
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
        # While a job hands over to itself it trains on.
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
