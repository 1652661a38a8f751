"""Whether a pass has anything to do, in one query. An idle platform runs a pass each second."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import Exists, Q, QuerySet
from django.db.models.expressions import RawSQL

from cluster.models import Cluster, Gpu
from projects.prepared import PreparedValues, time_hole
from scheduling.services.measuring.better_plans import winning_plans
from scheduling.services.measuring.measuring_later import REMEMBERED_FOR, declined_since
from scheduling.services.measuring.profiling import (
    curves_being_measured,
    jobs_with_more_to_measure,
    undecided_jobs,
)
from scheduling.services.measuring.quota_waits import known_waits
from scheduling.services.requests.deciding_again import jobs_asking_again
from scheduling.services.requests.lateness import late_jobs
from scheduling.services.requests.offer_search import jobs_awaiting_offer
from scheduling.services.verdicts.incidents import open_pass_failures
from scheduling.services.verdicts.offers import expired_offers


def _occasions(cluster_id: int, now: RawSQL, lately: RawSQL) -> Sequence[QuerySet[Any]]:
    """Return, for each step of a pass, the rows without which it does nothing."""
    return (
        # settling
        undecided_jobs(cluster_id),
        late_jobs(cluster_id, now),
        expired_offers(cluster_id, now),
        curves_being_measured(),
        # deciding again, offers
        jobs_asking_again(cluster_id),
        jobs_awaiting_offer(cluster_id),
        # measuring
        jobs_with_more_to_measure(cluster_id),
        Gpu.objects.on_loan(cluster_id),
        declined_since(cluster_id, lately),
        winning_plans(),
        known_waits(cluster_id),
        # the end of a good pass
        open_pass_failures(cluster_id),
    )


def _with_an_occasion(cluster_id: int, now: int, lately: int) -> QuerySet[Cluster, Any]:
    some = Q()
    for rows in _occasions(cluster_id, time_hole(now), time_hole(lately)):
        some |= Q(Exists(rows))
    return Cluster.objects.filter(some, pk=cluster_id).values_list("pk")


_WAITING = PreparedValues(_with_an_occasion)


def anything_waits(cluster: Cluster, now: datetime) -> bool:
    """Return whether a step other than a reallocation may have something to do. What is committed after
    this question wakes the next pass."""
    return _WAITING.any(cluster.pk, now, now - REMEMBERED_FOR)
