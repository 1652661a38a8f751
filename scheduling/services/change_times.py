"""How much later than plans say do jobs really begin on new GPUs? What new promises keep as slack for that
(decision 0029).

A plan charges a start with the pause of its level: from when its GPUs are there to the first iteration, as it
usually is. Not in it: until those who had the GPUs have left them, whoever must move for that first included,
and whatever is slower than usual.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np

from cluster.models import Cluster
from scheduling.choices import Purpose
from scheduling.models import CurveLevel, Generation

#: Starts that are looked at: so many of the newest generations, as far as they began to train in the last ten
#: minutes.
MOST_LOOKED_AT = 500
WINDOW = timedelta(minutes=10)
#: As many of the starts were no later than the slack.
SHARE = 0.95
#: No project's starts make promises to the others impossible.
MOST_SECONDS = 60.0


def change_slack_seconds(cluster: Cluster, now: datetime) -> float:
    """By how much the start of a job lately exceeded its charge: the 95th percentile, 0 where nothing
    started."""
    newest = Generation.objects.order_by("-pk")[:MOST_LOOKED_AT].values_list(
        "job__cluster_id", "purpose", "curve_id", "world_size", "created_at", "live_at", "start"
    )
    starts = [
        (curve, gpus, (live_at - created_at).total_seconds())
        for cluster_id, purpose, curve, gpus, created_at, live_at, start in newest
        if cluster_id == cluster.pk and purpose == Purpose.TRAINING
        and live_at is not None and live_at > now - WINDOW
        # While a job hands over to itself it trains on.
        and (start or {}).get("from") != "handover"
    ]  # fmt: skip
    if not starts:
        return 0.0
    levels = CurveLevel.objects.filter(curve_id__in={curve for curve, _, _ in starts if curve is not None})
    charged = {
        (curve, gpus): seconds
        for curve, gpus, seconds in levels.values_list("curve_id", "gpus", "pause_seconds")
    }
    beyond = [seconds - charged[curve, gpus] for curve, gpus, seconds in starts if (curve, gpus) in charged]
    if not beyond:
        return 0.0
    return float(min(MOST_SECONDS, max(0.0, np.quantile(beyond, SHARE, method="higher"))))
