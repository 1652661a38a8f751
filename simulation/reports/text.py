"""A run's main figures as text for a terminal."""

from __future__ import annotations

from typing import Any


def summary_lines(facts: dict[str, Any]) -> str:
    """Return the most important figures, one per line."""
    ratio, bound = facts["deadline_satisfactory_ratio"], facts["deadlines_met_bound"]
    lines = [
        (
            f"{facts['policy']} on {facts['trace']}: {facts['jobs']} jobs, "
            f"{facts['simulated_seconds'] / 86_400:.1f} days"
        ),
        f"  deadlines met      {facts['deadlines_met']} of {facts['slo_jobs']}"
        + ("" if ratio is None else f" ({100 * ratio:.1f} %)")
        + ("" if bound is None else f"; no schedule meets more than {bound}"),
        (
            f"  admitted, declined {facts['admitted']}, {facts['declined']}; promised and late: "
            f"{facts['admitted_late']}"
        ),
        (
            f"  mean completion    {_hours(facts['mean_jct_seconds'])}, to the first start "
            f"{_hours(facts['mean_queuing_seconds'])}, waiting in all {_hours(facts['mean_waiting_seconds'])}"
        ),
        f"  GPUs in use        {_percent(facts['mean_gpu_utilisation'])}",
        f"  cluster efficiency {_percent(facts['mean_cluster_efficiency'])}",
        f"  changes            {facts['rescales']} rescales, {facts['migrations']} migrations",
        f"  suspensions        {facts['preemptions']}",
        f"  {facts['decisions']} decisions in {facts['wall_seconds']:.2f} s",
    ]
    if facts["servers_on_loan_mean"] is not None:
        lines += _lending_lines(facts)
    if facts["interrupted"]:
        lines.append("  interrupted: the figures are those of the time until then")
    return "\n".join([*lines, *(f"  note: {note}" for note in facts["notes"])])


def _lending_lines(facts: dict[str, Any]) -> list[str]:
    """Return the lines on lending."""
    return [
        (
            f"  servers on loan    {facts['servers_on_loan_mean']:.1f}, in use "
            f"{_percent(facts['on_loan_gpu_usage'])}; both clusters {_percent(facts['overall_gpu_usage'])}"
        ),
        (
            f"  reclaims           {facts['reclaim_operations']} of {facts['reclaimed_servers']} servers, "
            f"{facts['reclaim_preemptions']} jobs preempted, collateral "
            f"{_percent(facts['reclaim_collateral'])}"
        ),
        f"  servers short      {facts['shortfall_servers_max']} at most",
    ]


def _hours(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds / 3600:.2f} h"


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.1f} %"
