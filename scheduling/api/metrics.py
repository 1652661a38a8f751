"""`/metrics`: what a monitoring system scrapes, computed from the database at the scrape.

Everything is read afresh, so any web process answers alike and a restart loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import ClassVar

from django.http import HttpResponse
from django.utils import timezone
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from rest_framework.request import Request

from cluster.models import Cluster
from cluster.selectors.machines import cluster_shown
from projects.access import require_operator
from projects.api.base import ApiView
from projects.models import Scope
from scheduling.choices import StateSource
from scheduling.selectors.cluster import cluster_summary
from scheduling.selectors.decisions.incidents import failed_passes, open_incidents_by_kind
from scheduling.selectors.decisions.planning_times import (
    decision_times,
    longest_pass_seconds,
    recent_pass_seconds,
)
from scheduling.selectors.recovery import recoveries
from scheduling.selectors.recovery.memory_states import copy_traffics, memory_states_of_running
from scheduling.services.rows.pass_lengths import PASSES_KEPT_FOR

#: Decisions of this many seconds make up the figures on computing.
RECENT_SECONDS = 300


class MetricsView(ApiView):
    """Prometheus text for operators: by session, or by an operator's token."""

    token_scopes = {"GET": Scope.OPERATE}
    schema = None
    #: What is collected at each scrape; given where the address is, so that rooms above this one have a say.
    collectors: ClassVar[Sequence[Callable[[], Collector]]] = ()

    def get(self, request: Request) -> HttpResponse:
        require_operator(self.user)
        registry = CollectorRegistry()
        for collector in self.collectors:
            registry.register(collector())
        return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


class PlatformCollector(Collector):
    """GPUs, jobs, servers and the planner as gauges."""

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield from _gpus()
        yield from _jobs()
        yield from _servers()
        yield from _recovery()
        cluster = cluster_shown()
        if cluster is not None:
            yield from _planner(cluster)


def _labelled(name: str, text: str, label: str, values: dict[str, float] | dict[str, int]) -> Metric:
    family = GaugeMetricFamily(f"punctual_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _gpus() -> Iterator[Metric]:
    counts = cluster_summary.gpu_counts()
    yield _labelled("gpus", "GPUs by what they are used for; each counts once.", "use", counts.by_use)
    kinds = GaugeMetricFamily("punctual_gpus_by_kind", "GPUs by kind.", labels=["kind", "emulated"])
    for kind in counts.by_kind:
        kinds.add_metric([str(kind["kind"]), str(kind["emulated"]).lower()], float(str(kind["gpus"])))
    yield kinds


def _jobs() -> Iterator[Metric]:
    jobs = GaugeMetricFamily("punctual_jobs", "Jobs by class and state.", labels=["service_class", "state"])
    for service_class, state, count in cluster_summary.jobs_by_class_and_state():
        jobs.add_metric([service_class, state], count)
    yield jobs
    yield _labelled("promises", "Promises by outcome.", "outcome", cluster_summary.promises_by_outcome())
    yield _labelled(
        "promises_in_danger",
        "Open promises that no plan keeps, and missed ones of jobs that still run.",
        "danger",
        cluster_summary.promises_in_danger(),
    )


def _servers() -> Iterator[Metric]:
    yield _labelled("servers", "Servers by state.", "state", cluster_summary.servers_by_state())
    silent = dict(cluster_summary.agents_silent_seconds(timezone.now()))
    yield _labelled("agent_silent_seconds", "Seconds since each agent's last report.", "server", silent)


def _recovery() -> Iterator[Metric]:
    """What failed of late, how long jobs took to train again, and how their state is kept."""
    now = timezone.now()
    summary = recoveries.recovery_summary(now)
    window = "of the last 24 hours"
    yield _labelled("protection", "Training jobs by protection of their state.", "state", summary.protection)
    yield _labelled("failures", f"Failures of jobs {window}, by kind.", "kind", summary.failures)
    yield _labelled(
        "recoveries", f"Recoveries {window}, by the farthest source of a rank.", "source", summary.recovered
    )
    fallbacks = summary.recovered[StateSource.DURABLE] + summary.recovered[StateSource.NONE]
    plain = {
        "durable_fallbacks": (f"Recoveries {window} for which nothing in memory served.", fallbacks),
        "recoveries_under_way": ("Jobs that do not train again yet.", summary.under_way),
        "recovery_down_seconds": (
            f"Until jobs trained again, {window}.",
            summary.down_seconds,
        ),
        "recovery_lost_work_seconds": (f"Training done twice, {window}.", summary.lost_work_seconds),
    }
    for name, (text, value) in plain.items():
        yield GaugeMetricFamily(f"punctual_{name}", text, value=value)
    phases = GaugeMetricFamily(
        "punctual_recovery_phase_seconds", f"Length of phases {window}.", labels=["phase", "quantile"]
    )
    for phase, seconds in recoveries.phase_seconds(now).items():
        for quantile, value in _quantiles(seconds).items():
            phases.add_metric([phase, quantile], value)
    yield phases
    lag = GaugeMetricFamily(
        "punctual_committed_lag_iterations",
        "Iterations by which the newest whole state in memory is behind training.",
        labels=["job"],
    )
    states = memory_states_of_running()
    for job_id, state in sorted(states.items()):
        behind = state.committed_lag()
        if behind is not None:
            lag.add_metric([job_id], behind)
    yield lag
    used = GaugeMetricFamily(
        "punctual_idle_budget_used_ratio",
        "Share of the network's idle time that copies of recovery points take by the plan.",
        labels=["job"],
    )
    for job_id, traffic in sorted(copy_traffics(states).items()):
        if traffic.idle_share_used is not None:
            used.add_metric([job_id], traffic.idle_share_used)
    yield used


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    """The median, the 99th percentile and the most; nothing where there are no values."""
    ordered = sorted(values)
    shares = {"0.5": 0.5, "0.99": 0.99, "1": 1.0}
    return {name: ordered[ceil(share * len(ordered)) - 1] for name, share in shares.items() if ordered}


def _planner(cluster: Cluster) -> Iterator[Metric]:
    now = timezone.now()
    facts = cluster_summary.planner_facts(cluster, now)
    plain = {
        "planner_epoch": ("Grows with every change of planner.", facts.epoch),
        "planner_lease_held": ("1 while a planner holds the lease.", int(facts.lease_held)),
        "planning_version": ("Grows with every fact that planning depends on.", facts.planning_version),
        "planned_version": ("The planning version of the latest plan.", facts.planned_version),
        "outbox_messages": ("Wake-ups not sent yet.", facts.outbox_messages),
        "outbox_oldest_seconds": ("Age of the oldest of them.", facts.outbox_oldest_seconds),
    }
    if facts.replanned_at is not None:
        plain["replanned_seconds_ago"] = (
            "Since the latest full replan.",
            (now - facts.replanned_at).total_seconds(),
        )
    for name, (text, value) in plain.items():
        yield GaugeMetricFamily(f"punctual_{name}", text, value=value)
    yield CounterMetricFamily(
        "punctual_planner_failed_passes",
        "Passes of the planner that failed.",
        value=failed_passes(cluster.pk),
    )
    yield _labelled("incidents_open", "Incidents that are open, by kind.", "kind", open_incidents_by_kind())
    recent = decision_times(now - timedelta(seconds=RECENT_SECONDS))
    yield from _passes(now)
    window = f"over the last {RECENT_SECONDS} seconds"
    yield GaugeMetricFamily("punctual_decisions_recent", f"Decisions {window}.", value=recent.count)
    yield GaugeMetricFamily(
        "punctual_decision_mean_seconds", f"Mean time to compute one, {window}.", value=recent.mean_seconds
    )
    yield GaugeMetricFamily(
        "punctual_decision_maximum_seconds",
        f"Longest time to compute one, {window}.",
        value=recent.longest_seconds,
    )


def _passes(now: datetime) -> Iterator[Metric]:
    """Durations of planner passes that did something or failed. No other job gets a verdict during a pass."""
    seconds = recent_pass_seconds(now - timedelta(seconds=RECENT_SECONDS))
    window = f"over the last {RECENT_SECONDS} seconds"
    yield _labelled(
        "planner_pass_seconds",
        f"Length of the planner's passes {window}, by quantile.",
        "quantile",
        _quantiles(seconds) or _quantiles([0.0]),
    )
    yield GaugeMetricFamily(
        "punctual_planner_longest_pass_seconds",
        f"The planner's longest pass of the last {PASSES_KEPT_FOR.days} days.",
        value=longest_pass_seconds(),
    )
