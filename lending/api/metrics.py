"""What `/metrics` says of inference clusters, their servers and their orders."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.utils import timezone
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lending.selectors.figures import LendingFigures, lending_figures

#: Reclaim orders of this many seconds make up the times to return.
RECENT_SECONDS = 86_400

_BY_STATE = {
    "inference_servers": ("Servers of inference clusters by where they are.", "servers"),
    "loan_orders": ("Orders to lend servers by state.", "loan_orders"),
    "reclaim_orders": ("Orders to give servers back by state.", "reclaim_orders"),
}
#: Left out for a cluster that has no such figure yet.
_PLAIN = {
    "inference_usage": ("Newest usage, the share of GPUs that served requests.", "usage"),
    "inference_usage_forecast": ("Newest forecast of usage.", "forecast"),
    "inference_shortfall_servers": ("Servers missing at home for the newest usage.", "shortfall_servers"),
    "reclaim_return_mean_seconds": (
        f"Mean time until a reclaim order was met, over the last {RECENT_SECONDS} seconds.",
        "mean_seconds_to_return",
    ),
    "reclaim_return_maximum_seconds": (
        f"Longest time until a reclaim order was met, over the last {RECENT_SECONDS} seconds.",
        "worst_seconds_to_return",
    ),
}


class LendingCollector(Collector):
    """`lending_metrics` at the scrape."""

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield from lending_metrics(timezone.now())


def lending_metrics(now: datetime) -> Iterator[Metric]:
    """Gauges of every inference cluster; none where there is no inference cluster."""
    figures = lending_figures(now - timedelta(seconds=RECENT_SECONDS))
    if not figures:
        return
    for name, (text, field) in _BY_STATE.items():
        yield _by_state(name, text, {one.name: getattr(one, field) for one in figures})
    for name, (text, field) in _PLAIN.items():
        yield _plain(name, text, field, figures)


def _by_state(name: str, text: str, counts: dict[str, dict[str, int]]) -> Metric:
    family = GaugeMetricFamily(f"punctual_{name}", text, labels=["inference_cluster", "state"])
    for inference_cluster, states in counts.items():
        for state, count in states.items():
            family.add_metric([inference_cluster, str(state)], count)
    return family


def _plain(name: str, text: str, field: str, figures: list[LendingFigures]) -> Metric:
    family = GaugeMetricFamily(f"punctual_{name}", text, labels=["inference_cluster"])
    for one in figures:
        value = getattr(one, field)
        if value is not None:
            family.add_metric([one.name], value)
    return family
