"""What `/metrics` says of the experts of deployments whose servers form a group."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from deployments.selectors.deployments import deployments_spread
from deployments.selectors.experts import deployment_experts

_LABELS = ("project", "deployment", "id")


def expert_metrics() -> Iterator[Metric]:
    """Yield the metrics of groups that have reported experts; none where there is no such group."""
    reported = [(each, deployment_experts(each)) for each in deployments_spread()]
    found = [
        ([each.project.name, each.name, each.pk], experts) for each, experts in reported if experts["layers"]
    ]
    if not found:
        return
    passes = CounterMetricFamily(
        "punctual_deployment_expert_passes",
        "Passes of layers: without estimate, as estimated, placed again.",
        labels=[*_LABELS, "layer", "outcome"],
    )
    load = GaugeMetricFamily(
        "punctual_deployment_expert_load",
        "Rows of the fullest server relative to the mean.",
        labels=[*_LABELS, "layer", "placement"],
    )
    counters = {
        name: CounterMetricFamily(f"punctual_deployment_expert_{name}", text, labels=_LABELS)
        for name, text in (
            ("swaps", "Experts that the first server loaded from host memory."),
            ("swap_seconds", "Time of these loads."),
            ("waited_seconds", "Time in which batches waited for them."),
        )
    }
    for labels, experts in found:
        for layer in experts["layers"]:
            estimated, replaced = layer["estimated_passes"], layer["replaced_passes"]
            outcomes = {
                "even": layer["passes"] - estimated,
                "estimated": estimated - replaced,
                "replaced": replaced,
            }
            for outcome, count in outcomes.items():
                passes.add_metric([*labels, layer["name"], outcome], count)
            for placement, name in (("chosen", "load"), ("even", "even_load")):
                load.add_metric([*labels, layer["name"], placement], layer[name])
        for name, counter in counters.items():
            counter.add_metric(labels, experts[name])
    yield from (passes, load, *counters.values())
