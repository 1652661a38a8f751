"""Figure 11: mixtures of jobs with deadlines and best effort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from research.elasticflow.comparing import BASELINES, ELASTICFLOW, Value, compared, contenders, specs_of
from research.elasticflow.drawings import curves
from research.elasticflow.explaining import explained
from research.elasticflow.generator import NAME
from research.elasticflow.rows import PolicyRow, Variant, find
from research.elasticflow.specs import ElasticFlowSpec
from research.elasticflow.tables import SHARES
from research.figure import Check, Context, FigureDefinition, FigureReport
from research.store import RunResult

WHO = contenders((*BASELINES, ELASTICFLOW))
SHORT_SHARES = (10, 30, 50, 70, 90)
FURTHER_DRAWS = (1, 2)
MOSTLY_DEADLINES = 50
"""Up to this share ElasticFlow must be best; beyond it few jobs have deadlines, and EDF may win."""


def base(share: int) -> ElasticFlowSpec:
    """Return 200 jobs, one in 900 s, on 64 GPUs, a share of them (in percent) without deadline."""
    trace = f"{NAME}:jobs=200,mean_interarrival_seconds=900,best_effort_share={share / 100:g}"
    return ElasticFlowSpec("", trace, 8, 8, 240.0)


def shares(full: bool) -> tuple[int, ...]:
    """Return the shares of the short or the full version, in percent."""
    return SHARES if full else SHORT_SHARES


def runs(full: bool) -> Sequence[ElasticFlowSpec]:
    """Return a run of every policy at every share; in the full version for three draws."""
    return [
        replace(spec, deadline_draw=draw)
        for share in shares(full)
        for draw in (0, *(FURTHER_DRAWS if full else ()))
        for spec in specs_of(base(share), WHO)
    ]


def gain_over_gandiva(gandiva: RunResult | None) -> Value:
    """Return a function for Gandiva's mean completion time of best-effort jobs (as published) over the
    policy's; more is better."""

    def gain(result: RunResult) -> float | None:
        own = result.summary["best_effort_mean_jct_seconds"]
        theirs = gandiva.summary["best_effort_mean_jct_seconds"] if gandiva is not None else None
        return theirs / own if own and theirs else None

    return gain


def report(context: Context) -> FigureReport:
    """Report both parts over the share of best effort."""
    shown, further = shares(context.full), FURTHER_DRAWS if context.full else ()
    on_time_rows: list[PolicyRow] = []
    gain_rows: list[PolicyRow] = []
    for share in shown:
        place = f"{share}%"
        on_time_rows += compared(context, "11a", place, base(share), WHO, draws=further)
        gandiva = context.get(replace(base(share), policy="gandiva_artifact"))
        gain_rows += compared(
            context, "11b", place, base(share), WHO, value=gain_over_gandiva(gandiva), shares=False
        )
    on_time_rows, gain_rows = explained(on_time_rows, context), explained(gain_rows, context)
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="the published generator's 200 jobs, seed 0, deadlines and best effort drawn by us, on 8 x 8 "
             "A100, slot 240 s, by share of best effort",
        rows=[*on_time_rows, *gain_rows],
        drawings=[
            curves("fig11a", "Figure 11(a): jobs with deadlines on time", on_time_rows, "share on time"),
            curves("fig11b", "Figure 11(b): completion of best effort, Gandiva's time over the "
                             "policy's", gain_rows,
                   "times as fast as Gandiva"),
        ],
        checks=[_check(on_time_rows, share) for share in shown if share <= MOSTLY_DEADLINES],
    )  # fmt: skip


def _check(rows: Sequence[PolicyRow], share: int) -> Check:
    place = f"{share}%"
    flow = find(rows, place, "elasticflow", Variant.ONE_BY_ONE)
    others = [row for row in rows if row.x == place and row.series != ELASTICFLOW and row.ours is not None]
    best = max(others, key=lambda row: row.ours or 0.0, default=None)
    name = f"ElasticFlow is best at {share} % best effort"
    if flow is None or flow.ours is None or best is None or best.ours is None:
        return Check(name, None, "not run")
    return Check(name, flow.ours >= best.ours, f"{flow.ours:.3f}, the next ({best.policy}) {best.ours:.3f}")


FIGURE = FigureDefinition("fig11", "Figure 11: mixture with best effort", False, runs, report)
