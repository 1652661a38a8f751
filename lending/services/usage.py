"""Reported usage of inference clusters, and the servers that the platform asks back for expected usage (Lyra
section 3.6)."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import transaction
from django.utils import timezone

from cluster.choices import LendingState
from lending.choices import OrderSource, ReclaimState, ScheduledBy
from lending.models import (
    InferenceCluster,
    LendingEvent,
    ReclaimOrder,
    UsageForecast,
    UsageSample,
)
from lending.selectors.inference_clusters import settled_servers
from lending.services.reclaiming import reclaim_order_create
from projects.errors import InvalidRequest
from scheduling.services.rows.records import lock_cluster
from scheduling.services.rows.wakeups import hint, wake

log = structlog.get_logger(__name__)

#: Tolerated clock difference; a period that ends later than this is rejected.
CLOCK_DIFFERENCE = timedelta(minutes=1)
#: Retention of samples, forecasts and history lines.
OLDEST_SAMPLE = timedelta(days=90)
#: A sample older than this many periods is not used to ask servers back.
STALE_PERIODS = 2.5
#: The period of a forecast has begun when it is made, so its servers are wanted at once; a tenth of the
#: period hardly affects its mean. An order due at the period's end would wait until only the longest return
#: time is left.
WANTED_WITHIN_PERIODS = 0.1


@transaction.atomic
def usage_report(*, inference_cluster: InferenceCluster, samples: Sequence[Mapping[str, Any]]) -> int:
    """Store samples, replacing earlier reports of the same periods. Returns how many periods were new.

    Raises:
        InvalidRequest: a period ends in the future, ended too long ago, or is named twice.
    """
    now = timezone.now()
    ends = [sample["period_ends_at"] for sample in samples]
    if any(end > now + CLOCK_DIFFERENCE for end in ends):
        raise InvalidRequest(
            "A period ends in the future.", errors={"samples": ["Report a period after its end."]}
        )
    if any(end < now - OLDEST_SAMPLE for end in ends):
        raise InvalidRequest("A period ended too long ago.", errors={"samples": ["At most 90 days back."]})
    if len(set(ends)) < len(ends):
        raise InvalidRequest("A period is named twice.", errors={"samples": ["Name each period once."]})
    away = inference_cluster.servers_in(LendingState.ON_LOAN, LendingState.RECLAIMING)
    rule = inference_cluster.rule()
    before = inference_cluster.usage_samples.filter(period_ends_at__in=ends).count()
    UsageSample.objects.bulk_create(
        [
            UsageSample(
                inference_cluster=inference_cluster,
                period_ends_at=sample["period_ends_at"],
                usage=sample["usage"],
                reported_at=now,
                on_loan_servers=away,
                shortfall_servers=rule.shortfall(sample["usage"], away),
                seen_shortfall_servers=sample.get("shortfall_servers"),
                source=sample.get("source", UsageSample.MEASURED),
            )
            for sample in samples
        ],
        update_conflicts=True,
        unique_fields=["inference_cluster", "period_ends_at"],
        update_fields=["usage", "reported_at", "seen_shortfall_servers", "source"],
    )
    hint(f"cluster:{inference_cluster.cluster_id}", kind="usage")
    wake("forecast_usage", inference_cluster_id=inference_cluster.pk)
    # Without a forecast, measured usage still asks back the servers that it needs.
    wake("orchestrate")
    return len(samples) - before


def forget_old_usage(now: datetime) -> None:
    """Delete samples, forecasts and history lines older than the retention time."""
    UsageSample.objects.filter(period_ends_at__lt=now - OLDEST_SAMPLE).delete()
    UsageForecast.objects.filter(period_ends_at__lt=now - OLDEST_SAMPLE).delete()
    LendingEvent.objects.filter(happened_at__lt=now - OLDEST_SAMPLE).delete()


def recent_usage(inference_cluster: InferenceCluster, periods: int) -> tuple[list[float], datetime] | None:
    """Return the usage of the last ``periods`` periods, oldest first, and when the latest ended; None without
    a sample.

    Periods that were not reported are NaN.
    """
    newest = inference_cluster.usage_samples.order_by("-period_ends_at").first()
    if newest is None:
        return None
    period = inference_cluster.period_seconds
    since = newest.period_ends_at - timedelta(seconds=period * (periods - 0.5))
    usage = [math.nan] * periods
    rows = inference_cluster.usage_samples.filter(period_ends_at__gt=since)
    for ends_at, value in rows.values_list("period_ends_at", "usage"):
        age = round((newest.period_ends_at - ends_at).total_seconds() / period)
        if 0 <= age < periods:
            usage[periods - 1 - age] = value
    first = next(index for index, value in enumerate(usage) if math.isfinite(value))
    return usage[first:], newest.period_ends_at


@transaction.atomic
def ask_back(inference_cluster: InferenceCluster, now: datetime) -> ReclaimOrder | None:
    """Ask back the servers that the coming period needs, for inference schedulers that leave this to the
    platform.

    A forecast alone asks back no recently lent server, and nothing if too few servers would move; measured
    usage asks back as many as it needs. The order's id is derived from the sample, so asking again changes
    nothing.
    """
    if inference_cluster.scheduled_by == ScheduledBy.DEPLOYMENTS:
        # Its deployments ask back by the same rule.
        return None
    if not inference_cluster.asks_back_by_forecast:
        return None
    # Two concurrent orchestrators would count the same servers twice.
    lock_cluster(inference_cluster.cluster_id)
    newest = inference_cluster.usage_samples.order_by("-period_ends_at").first()
    if newest is None:
        return None
    period = timedelta(seconds=inference_cluster.period_seconds)
    if now - newest.period_ends_at > STALE_PERIODS * period:
        return None
    forecast = inference_cluster.forecasts.filter(period_ends_at=newest.period_ends_at + period).first()
    expected = None if forecast is None else forecast.usage
    count = servers_to_ask_back(inference_cluster, newest.usage, expected, now)
    if not count:
        return None
    order_id = uuid.uuid5(
        uuid.NAMESPACE_OID, f"{inference_cluster.pk}:{newest.pk}:{forecast.pk if forecast else 'measured'}"
    )
    if ReclaimOrder.objects.filter(pk=order_id).exists():
        return None
    order, _ = reclaim_order_create(
        inference_cluster=inference_cluster,
        order_id=order_id,
        count=count,
        wanted_by=newest.period_ends_at + WANTED_WITHIN_PERIODS * period,
        source=OrderSource.FORECAST,
    )
    return order


def servers_to_ask_back(
    inference_cluster: InferenceCluster, usage: float, forecast: float | None, now: datetime, offered: int = 0
) -> int:
    """Return how many servers the lending rule asks back now. The caller holds the cluster's lock.

    Args:
        offered: servers that are offered and not lent yet, where these count as lent.
    """
    lent = inference_cluster.servers.filter(lending_state=LendingState.ON_LOAN).count()
    returning = inference_cluster.servers_in(LendingState.RECLAIMING)
    on_loan = lent + returning + offered
    coming = min(on_loan, returning + servers_asked_back(inference_cluster))
    rule, settled = inference_cluster.rule(), settled_servers(inference_cluster, now)
    measured = rule.decide(usage, None, on_loan=on_loan, being_returned=coming).reclaim
    foreseen = rule.decide(usage, forecast, on_loan=on_loan, being_returned=coming, settled=settled).reclaim
    return foreseen if foreseen >= inference_cluster.minimum_gain_servers else measured


def servers_asked_back(inference_cluster: InferenceCluster) -> int:
    """Return the number of servers of reclaim orders that are not begun yet."""
    pending = inference_cluster.reclaim_orders.filter(state=ReclaimState.PENDING)
    return sum(pending.values_list("count", flat=True))
