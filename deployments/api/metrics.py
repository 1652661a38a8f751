"""What `/metrics` says of deployments: servers, requests by outcome, latencies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from deployments.api.expert_metrics import expert_metrics
from deployments.selectors.figures import DeploymentFigures, deployment_figures
from punctual.protocol.latencies import LATENCY_BOUNDS

LABELS = ("project", "deployment", "id")
#: Every so many buckets make one of the exported histogram.
JOINED_BUCKETS = 5


class DeploymentCollector(Collector):
    """`deployment_metrics` at the scrape."""

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield from deployment_metrics()
        yield from expert_metrics()


def deployment_metrics() -> Iterator[Metric]:
    """Yield the metrics of every deployment that has not stopped; none where there is no deployment."""
    found = deployment_figures()
    if not found:
        return
    yield _by("deployment_state", "1 for the state of a deployment.", "state", found, _states)
    yield _by("deployment_servers", "Servers of a deployment.", "kind", found, lambda one: one.servers)
    requests = CounterMetricFamily(
        "punctual_deployment_requests", "Requests by outcome.", labels=[*LABELS, "outcome"]
    )
    for one in found:
        for outcome, count in one.requests.items():
            requests.add_metric([*_labels(one), outcome], count)
    yield requests
    for name, text in (("inputs", "Inputs of requests."), ("batches", "Calls of predict.")):
        counter = CounterMetricFamily(f"punctual_deployment_{name}", text, labels=LABELS)
        for one in found:
            counter.add_metric(_labels(one), getattr(one, name))
        yield counter
    target = GaugeMetricFamily(
        "punctual_deployment_latency_target_seconds", "Target of the 95th percentile.", labels=LABELS
    )
    for one in found:
        if one.latency_target_seconds is not None:
            target.add_metric(_labels(one), one.latency_target_seconds)
    yield target
    yield _latencies(found)


def _labels(figures: DeploymentFigures) -> list[str]:
    return [figures.project, figures.name, figures.id]


def _states(figures: DeploymentFigures) -> dict[str, float]:
    return {figures.state: 1}


def _by(
    name: str,
    text: str,
    label: str,
    found: Sequence[DeploymentFigures],
    values: Callable[[DeploymentFigures], dict[str, float]],
) -> Metric:
    family = GaugeMetricFamily(f"punctual_{name}", text, labels=[*LABELS, label])
    for one in found:
        for key, value in values(one).items():
            family.add_metric([*_labels(one), key], value)
    return family


def _latencies(found: Sequence[DeploymentFigures]) -> Metric:
    family = HistogramMetricFamily(
        "punctual_deployment_latency_seconds", "Latency of requests on the server.", labels=LABELS
    )
    for one in found:
        totals = list(accumulate(one.latencies))
        chosen = range(JOINED_BUCKETS - 1, len(LATENCY_BOUNDS), JOINED_BUCKETS)
        buckets = [(f"{LATENCY_BOUNDS[bucket]:.6g}", totals[bucket]) for bucket in chosen]
        family.add_metric(_labels(one), [*buckets, ("+Inf", totals[-1])], sum_value=None)
    return family
