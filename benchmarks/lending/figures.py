"""Results of a day of lending, from the platform's rows."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from benchmarks.lending.scene import Scene, Span
from launch.agents import INFERENCE_CLUSTER
from lending.core.lending_rule import LendingRule


@dataclass(frozen=True)
class Figures:
    """Results of one run. Seconds and hours are the platform's own, not the curve's.

    ``short_periods``: periods with a server missing at some moment; ``missing_servers``: the maximum of each
    period, added up; ``short_by_mean``: periods whose mean usage takes more servers than were at home at
    their end. ``ahead_and_needed``: of the reclaims ahead of usage, those that the next sample alone would
    have ordered. ``seconds_to_return``: from the choice of an order's servers until the last was home;
    ``late_returns`` took longer than a period.
    """

    #: Number of usage periods in the run.
    periods: int
    short_periods: int
    missing_servers: int
    #: Largest number of missing servers.
    missing_at_worst: int
    short_by_mean: int
    #: Number of forecasts by forecaster.
    forecasts_by: Mapping[str, int]
    #: Mean squared error of the forecasts.
    forecast_error: float
    #: Error of the last sample as a forecast.
    last_sample_error: float
    #: Number of carried-out loan orders.
    loans: int
    servers_lent: int
    #: Number of reclaim orders.
    reclaims: int
    servers_reclaimed: int
    #: Reclaim orders ahead of usage.
    reclaims_ahead: int
    ahead_and_needed: int
    seconds_to_return_mean: float | None
    seconds_to_return_worst: float | None
    late_returns: int
    jobs_preempted: int
    jobs_rescaled: int
    #: Hours on loan, over all servers.
    server_hours_lent: float
    #: Hours on loan with training work, over all servers.
    server_hours_used: float

    @property
    def share_ahead(self) -> float | None:
        """Share of reclaims that were ordered before usage rose; None without a reclaim."""
        return self.reclaims_ahead / self.reclaims if self.reclaims else None


def union_seconds(spans: Sequence[Span], since: datetime, until: datetime) -> float:
    """Return the seconds between ``since`` and ``until`` that are in at least one span."""
    total, covered_until = 0.0, since
    for begin, end in sorted(spans):
        begin, end = max(begin, covered_until), min(end, until)
        if end > begin:
            total += (end - begin).total_seconds()
            covered_until = end
    return total


def lent_seconds(changes: Sequence[tuple[datetime, int]], since: datetime, until: datetime) -> float:
    """Return the server-seconds away from home between two times, given changes in the number away, oldest
    first."""
    total = 0.0
    for position, (begin, away) in enumerate(changes):
        end = changes[position + 1][0] if position + 1 < len(changes) else until
        total += away * max(0.0, (min(end, until) - max(begin, since)).total_seconds())
    return total


def figures(scene: Scene, samples: Sequence[dict[str, Any]], rule: LendingRule) -> Figures:
    """Return the results over the periods of these samples, by the platform's rows. Adds its forecast to each
    sample."""
    inference = scene.operator.inference
    since = moment_of(samples[0]["period_ends_at"]) - scene.period
    until = moment_of(samples[-1]["period_ends_at"])
    forecasts = scene.forecasts(since)
    for sample in samples:
        sample |= forecasts.get(moment_of(sample["period_ends_at"]), {})
    loans, reclaims = (
        [
            order
            for order in orders(INFERENCE_CLUSTER, limit=500)
            # Exclude this benchmark's own reclaims before the run.
            if order["source"] == "scheduler" and since <= moment_of(order["created_at"]) < until
        ]
        for orders in (inference.loan_orders, inference.reclaim_orders)
    )
    loans = [order for order in loans if order["state"] == "done"]
    events = sorted(inference.events(INFERENCE_CLUSTER), key=lambda event: moment_of(event["happened_at"]))
    usage = [float(sample["usage"]) for sample in samples]
    known = [sample for sample in samples[1:] if sample.get("forecast") is not None]
    missing = [int(sample["seen_shortfall_servers"] or 0) for sample in samples]
    seconds = [order["seconds_to_return"] for order in reclaims if order["seconds_to_return"] is not None]
    ahead = [order for order in reclaims if order["ahead_of_usage"]]
    return Figures(
        periods=len(samples),
        short_periods=sum(count > 0 for count in missing),
        missing_servers=sum(missing),
        missing_at_worst=max(missing),
        short_by_mean=sum(sample["shortfall_servers"] > 0 for sample in samples),
        forecasts_by=dict(Counter(str(sample["forecaster"]) for sample in known)),
        forecast_error=statistics.fmean([(sample["forecast"] - sample["usage"]) ** 2 for sample in known]),
        last_sample_error=statistics.fmean([(after - before) ** 2 for before, after in pairwise(usage)]),
        loans=len(loans),
        servers_lent=sum(len(order["servers"]) for order in loans),
        reclaims=len(reclaims),
        servers_reclaimed=sum(order["count"] for order in reclaims),
        reclaims_ahead=len(ahead),
        ahead_and_needed=sum(was_needed(order, samples, events, rule) for order in ahead),
        seconds_to_return_mean=_mean(seconds),
        seconds_to_return_worst=max(seconds, default=None),
        late_returns=sum(value > scene.period.total_seconds() for value in seconds),
        jobs_preempted=sum(order["preempted_jobs"] or 0 for order in reclaims),
        jobs_rescaled=sum(order["rescaled_jobs"] or 0 for order in reclaims),
        server_hours_lent=lent_seconds(away_from_home(events), since, until) / 3600,
        server_hours_used=sum(union_seconds(spans, since, until) for spans in scene.work_on_loan(since))
        / 3600,
    )


def was_needed(
    order: Mapping[str, Any],
    samples: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    rule: LendingRule,
) -> bool:
    """Return whether the sample of the order's period alone requires servers."""
    at = moment_of(order["created_at"])
    on_loan = [event["on_loan"] for event in events if moment_of(event["happened_at"]) < at]
    following = [sample["usage"] for sample in samples if moment_of(sample["period_ends_at"]) > at]
    return bool(on_loan and following and rule.target(following[0]) < on_loan[-1])


def away_from_home(events: Sequence[Mapping[str, Any]]) -> list[tuple[datetime, int]]:
    """Return how many servers are away, from each event on."""
    return [(moment_of(event["happened_at"]), event["on_loan"] + event["reclaiming"]) for event in events]


def moment_of(text: str) -> datetime:
    """Parse a time of the platform."""
    return datetime.fromisoformat(text)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def print_run(name: str, found: Figures) -> None:
    """Print the results of one setting."""
    share = "none" if found.share_ahead is None else f"{found.share_ahead:.0%}"
    print(
        f"{name}: {found.periods} periods, {found.short_periods} short by {found.missing_servers} servers in "
        f"all, "
        f"{found.missing_at_worst} at worst ({found.short_by_mean} by the period's mean)\n"
        f"    lent {found.servers_lent} servers in {found.loans} orders, {found.reclaims} reclaims of "
        f"{found.servers_reclaimed}, "
        f"ahead of usage {share} ({found.reclaims_ahead}, of which {found.ahead_and_needed} needed at once)\n"
        f"    home after {_seconds(found.seconds_to_return_mean)} on average, "
        f"{_seconds(found.seconds_to_return_worst)} at worst, "
        f"{found.late_returns} after more than a period; jobs preempted {found.jobs_preempted}, rescaled "
        f"{found.jobs_rescaled}\n"
        f"    server-hours lent {found.server_hours_lent:.3f}, used {found.server_hours_used:.3f}; "
        f"forecasts by {dict(found.forecasts_by)}, "
        f"error {found.forecast_error:.5f}, of the last sample {found.last_sample_error:.5f}",
        flush=True,
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
