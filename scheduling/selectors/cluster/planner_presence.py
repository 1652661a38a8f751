"""Whether a planner is active: shown while the decision core is compiled, or when the planner is gone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings

from cluster.models import Cluster

#: The supervisor keeps this file in the data folder's `run` while it compiles the decision core.
COMPILING_FILE = "compiling"


@dataclass(frozen=True)
class PlannerAbsence:
    """No planner is active. ``compiling``: one starts once the decision core is compiled.

    ``since``: until when a planner held the lease; None if none ever did.
    """

    compiling: bool
    since: datetime | None


def planner_absence(now: datetime) -> PlannerAbsence | None:
    """Return why no planner is active; None if one is, or if there is nothing to plan yet."""
    cluster = Cluster.objects.order_by("id").only("planner_lease_expires_at").first()
    expires_at = cluster.planner_lease_expires_at if cluster else None
    if expires_at is not None and expires_at > now:
        return None
    compiling = os.path.exists(settings.DATA_DIR / "run" / COMPILING_FILE)
    return PlannerAbsence(compiling, expires_at) if compiling or expires_at is not None else None
