"""Runs of a comparison: their labels, and how they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simulation.outcome import RunOutcome
from simulation.reports.style import DASHES, PALETTE, TimeUnit, time_axis
from simulation.reports.summary import summary

Setting = str | int | float | bool
#: Settings of runs that lend. A run that does not lend has none of them, which is no difference beyond its
#: number of servers.
_OF_LOANS = (
    "scaling", "loaning", "inference_servers", "inference_usage", "reclaim", "forecaster", "headroom",
    "forecast_margin", "hysteresis", "hold_seconds", "exact_last_pick", "count_owned_servers",
    "fewest_workers_first", "period_seconds", "inference_gpu_type",
    "usage",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One run in a comparison: its label, its line and its results."""

    label: str
    colour: str
    dash: str
    outcome: RunOutcome
    summary: dict[str, Any]


def runs_of(outcomes: Sequence[RunOutcome]) -> list[Run]:
    """Return the runs with labels and colours of their own. Raises ValueError without any outcome."""
    if not outcomes:
        raise ValueError("a comparison needs at least one run")
    return [
        Run(
            label=label,
            colour=PALETTE[number % len(PALETTE)],
            dash=DASHES[number // len(PALETTE) % len(DASHES)],
            outcome=outcome,
            summary=summary(outcome),
        )
        for number, (label, outcome) in enumerate(zip(labels(outcomes), outcomes, strict=True))
    ]


def line_of(run: Run) -> dict[str, Any]:
    """Return the line style of a run over time."""
    return {"color": run.colour, "dash": run.dash, "width": 2, "shape": "hv"}


def runs_axis(runs: Sequence[Run]) -> TimeUnit:
    """Return the time axis that fits all runs."""
    return time_axis(*(run.outcome for run in runs))


def bars_height(runs: Sequence[Run]) -> int:
    """Return the height in pixels of a figure with bars for each run."""
    return max(300, 110 + 38 * len(runs))


def labels(outcomes: Sequence[RunOutcome]) -> list[str]:
    """Label runs by policy, then by what differs between runs of one policy, then by number.

    If runs lend different numbers of servers, or some lend none, all labels include servers: "punctual, 4 + 8
    servers" has four training servers and eight inference servers.
    """
    everything = [outcome.settings for outcome in outcomes]
    by_loans = len({_lent(settings) for settings in everything}) > 1
    found = [_label(settings, everything, by_loans) for settings in everything]
    repeated = {label for label in found if found.count(label) > 1}
    numbers: dict[str, int] = {}
    for place, label in enumerate(found):
        if label in repeated:
            numbers[label] = numbers.get(label, 0) + 1
            found[place] = f"{label} ({numbers[label]})"
    return found


def _label(settings: dict[str, Setting], everything: list[dict[str, Setting]], by_loans: bool) -> str:
    alike = [other for other in everything if _policy(other) == _policy(settings)]
    parts = [_policy(settings)]
    if by_loans:
        parts.append(_servers(settings))
    said = ("servers", "inference_servers", "loaning") if by_loans else ()
    parts += [
        f"{name} {_shown(value)}"
        for name, value in settings.items()
        if name not in said and any(_differs(name, value, other) for other in alike)
    ]
    return ", ".join(parts)


def _differs(name: str, value: Setting, other: dict[str, Setting]) -> bool:
    if name in _OF_LOANS and name not in other:
        return name == "scaling" and value is False
    return other.get(name) != value


def _policy(settings: dict[str, Setting]) -> str:
    return str(settings.get("policy", "run"))


def _lent(settings: dict[str, Setting]) -> int:
    """Return the servers of the inference cluster that may lend; 0 if nothing is lent."""
    return int(settings.get("inference_servers", 0)) if settings.get("loaning") else 0


def _servers(settings: dict[str, Setting]) -> str:
    own, lent = settings.get("servers", 0), _lent(settings)
    if lent:
        return f"{own} + {lent} servers"
    return f"{own} server{'' if own == 1 else 's'}"


def _shown(value: Setting) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
