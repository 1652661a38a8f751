"""Figure 10: cluster efficiency and makespan on 100 synthetic jobs with loose deadlines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from research.elasticflow.comparing import BASELINES, ELASTICFLOW, compared, contenders, on_time, specs_of
from research.elasticflow.drawings import bars, histories
from research.elasticflow.explaining import explained
from research.elasticflow.generator import NAME
from research.elasticflow.rows import PolicyRow, Variant, find
from research.elasticflow.specs import ElasticFlowSpec
from research.elasticflow.tables import MAKESPAN, MEAN_EFFICIENCY, ON_TIME, PEAK_EFFICIENCY
from research.figure import Check, Context, FigureDefinition, FigureReport
from research.rows import over
from research.store import RunResult

BASE = ElasticFlowSpec("", f"{NAME}:jobs=100,tightest=1.5,loosest=1.5", 16, 8, 240.0, seed=1)
WHO = contenders((*BASELINES, ELASTICFLOW))
DRAWN = ("elasticflow", "punctual", "edf_artifact", "gandiva_artifact", "tiresias", "themis", "chronus")


def mean_efficiency(result: RunResult) -> float | None:
    """Return the mean cluster efficiency over the first 100 hours."""
    value: float | None = result.summary["mean_cluster_efficiency_first_100_hours"]
    return value


def peak_efficiency(result: RunResult) -> float | None:
    """Return the highest cluster efficiency of the run."""
    return float(result.facts["peak_cluster_efficiency"])


def makespan_hours(result: RunResult) -> float | None:
    """Return the hours from first submission to last completion."""
    seconds: float | None = result.summary["makespan_seconds"]
    return seconds / 3600.0 if seconds is not None else None


METRICS: dict[str, tuple[Callable[[RunResult], float | None], bool]] = {
    MEAN_EFFICIENCY: (mean_efficiency, False),
    PEAK_EFFICIENCY: (peak_efficiency, False),
    MAKESPAN: (makespan_hours, False),
    ON_TIME: (on_time, True),
}


def runs(full: bool) -> Sequence[ElasticFlowSpec]:
    """Return a run of every policy; these jobs involve no random draw."""
    return specs_of(BASE, WHO)


def report(context: Context) -> FigureReport:
    """Report four metrics, efficiency over time, and the two ratios that the paper gives."""
    rows = [
        row
        for metric, (value, shares) in METRICS.items()
        for row in compared(context, "10", metric, BASE, WHO, value=value, shares=shares)
    ]
    rows = explained(rows, context)
    found = {name: context.get(replace(BASE, policy=name)) for name in DRAWN}
    shown = {name: result for name, result in found.items() if result is not None}
    of_efficiency = [row for row in rows if row.x in (MEAN_EFFICIENCY, PEAK_EFFICIENCY)]
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="the published generator's 100 jobs with deadlines at 1.5 times their duration, seed 1, on 16 x "
        "8 A100, slot 240 s",
        rows=rows,
        drawings=[
            bars("fig10", "Cluster efficiency", of_efficiency, axis="cluster efficiency", form=".2f"),
            histories(
                "fig10-time", "Cluster efficiency over time", shown, "cluster_efficiency", "efficiency"
            ),
        ],
        checks=_checks(rows),
    )


def _checks(rows: Sequence[PolicyRow]) -> list[Check]:
    flow = _ours(rows, MEAN_EFFICIENCY, "elasticflow")
    bars = {one.policy: _ours(rows, MEAN_EFFICIENCY, one.policy) for one in WHO if one.series != ELASTICFLOW}
    text = {one.policy for one in WHO if one.variant is Variant.AS_DESCRIBED}
    best = max(
        (value for name, value in bars.items() if value is not None and name not in text), default=None
    )
    best_of_text = max((bars[name] or 0.0 for name in text), default=None)
    advantage, over_text = over(flow, best), over(flow, best_of_text)
    span = over(_ours(rows, MAKESPAN, "elasticflow"), _ours(rows, MAKESPAN, "tiresias"))
    return [
        Check(
            "ElasticFlow's mean efficiency over 100 h at least 1.15 times the best baseline's",
            None if advantage is None else advantage >= 1.15,
            "not run"
            if advantage is None
            else f"{advantage:.2f} times (published 1.25)"
            + (f"; {over_text:.2f} times the best of those that follow the text" if over_text else ""),
        ),
        Check(
            "ElasticFlow's makespan at most 0.93 times Tiresias's",
            None if span is None else span <= 0.93,
            "not run" if span is None else f"{span:.2f} times (published 0.89)",
        ),
    ]


def _ours(rows: Sequence[PolicyRow], metric: str, policy: str) -> float | None:
    row = find(rows, metric, policy, Variant.ONE_BY_ONE if policy == "elasticflow" else None)
    return row.ours if row is not None else None


FIGURE = FigureDefinition("fig10", "Figure 10: cluster efficiency", False, runs, report)
