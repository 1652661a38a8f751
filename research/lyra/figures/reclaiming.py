"""Table 3.7, Figures 3.11 and 3.12: jobs on servers on loan, usage of these, and the cost of reclaims."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.lyra.checks import pairs
from research.lyra.measuring import JCT, WAITING, of_rows
from research.lyra.published import NOT_TO_CHASE, TABLE_37
from research.lyra.schemes import SCHEMES, SEEDS, size_of, specs_of
from research.lyra.specs import GPUS_PER_SERVER, LyraSpec
from research.store import RunResult
from simulation.reports.style import PALETTE, Drawing, base_figure

METHODS = ("loaning", "improved", "loaning_scf", "loaning_random", "basic")
MEASURES = (("mean", None), ("50 %", 50.0), ("95 %", 95.0))


def runs(full: bool) -> Sequence[LyraSpec]:
    """Return runs of loaning by every method, three seeds."""
    return specs_of(METHODS, full)


def report(context: Context) -> FigureReport:
    """Report the effect of lending on the jobs that used it, and the cost of reclaims."""
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="simulated, three seeds",
        notes=(f"Not to chase: {NOT_TO_CHASE['preemption_denominators']}",),
        tables=(_borrowers(context), _reclaims(context)),
        drawings=(_by_day(context), _costs(context)),
        checks=(_full_servers(context),),
    )


def _results(context: Context, scheme: str) -> list[RunResult]:
    specs = [SCHEMES[scheme].spec(size_of(context.full), seed) for seed in SEEDS]
    return [result for spec in specs if (result := context.get(spec)) is not None]


def _borrowers(context: Context) -> Table:
    known = pairs(context, "baseline", "loaning")
    rows = []
    for number, (label, metric, (name, share)) in enumerate(
        (label, metric, measure)
        for label, metric in (("Queuing time", WAITING), ("JCT", JCT))
        for measure in MEASURES
    ):
        sides: list[list[float]] = [[], []]
        for base, lent in known:
            jobs = np.array(lent.series["borrowers"], dtype=np.int64)
            for side, result in zip(sides, (base, lent), strict=True):
                values = of_rows(result, metric, jobs)
                side.append(
                    float(values.mean() if share is None else np.percentile(values, share))
                    if jobs.size
                    else 0.0
                )
        shown = ("–", "–", "–")
        if known:
            top, bottom = (float(np.mean(side)) for side in sides)
            shown = (f"{top:,.0f} s", f"{bottom:,.0f} s", f"{top / bottom:.2f}" if bottom else "–")
        rows.append((f"{label}, {name}", f"{TABLE_37[number]:.2f}", *shown))
    return Table(
        "Table 3.7: jobs on servers on loan",
        "The jobs that ran on servers on loan (loaning without scaling), and the same jobs under the "
        "baseline.",
        ("Of these jobs", "Published ratio", "Baseline", "Lyra", "Ratio"),
        tuple(rows),
    )


def _reclaims(context: Context) -> Table:
    rows = []
    for scheme in METHODS:
        results = _results(context, scheme)
        columns = {
            name: np.array([value for result in results for value in result.series[name]])
            for name in ("wanted", "preempted", "running", "collateral")
        }
        if not columns["wanted"].size:
            rows.append((SCHEMES[scheme].label, *("–",) * 5))
            continue
        share = columns["preempted"] / np.maximum(columns["running"], 1.0)
        rows.append(
            (
                SCHEMES[scheme].label,
                f"{columns['wanted'].size:,}",
                f"{columns['wanted'].mean():.1f}",
                f"{columns['preempted'].sum():,.0f}",
                f"{share.mean():.4f}",
                f"{columns['collateral'].sum() / (columns['wanted'].sum() * GPUS_PER_SERVER):.4f}",
            )
        )
    return Table(
        "Figure 3.12: what reclaims cost",
        "Published, without scaling: Lyra preempts 1.51 and 1.68 times fewer of the running jobs than SCF "
        "and Random, with 1.36 and 1.59 times less collateral damage. Improved: the same by an integer "
        "program.",
        ("Scheme", "Reclaims", "Servers each", "Preempted", "Share of running jobs", "Collateral"),
        tuple(rows),
    )


def _by_day(context: Context) -> Drawing:
    note = (
        "Share of the GPUs on loan that jobs hold, day by day; loaning without scaling. Published: above 92 "
        "% on every day."
    )
    results = _results(context, "loaning")
    if not results:
        return Drawing(
            "lyra-on-loan", "Figure 3.11: usage of servers on loan", note, None, "Its runs are missing."
        )
    figure = base_figure(height=300)
    for number, result in enumerate(results):
        values = result.series["on_loan_usage_by_day"]
        figure.add_trace(
            go.Scatter(x=list(range(1, len(values) + 1)), y=values, name=f"seed {number}",
            mode="lines+markers",
                       line={"color": PALETTE[number]})
        )  # fmt: skip
    figure.update_xaxes(title_text="day")
    figure.update_yaxes(title_text="share of GPUs on loan", tickformat=".0%", range=[0, 1.02])
    return Drawing("lyra-on-loan", "Figure 3.11: usage of servers on loan", note, figure)


def _costs(context: Context) -> Drawing:
    note = (
        "Jobs preempted in all reclaims, over servers that were asked back; loaning without scaling, all "
        "seeds."
    )
    figure = base_figure(height=300)
    for number, scheme in enumerate(("loaning", "improved", "loaning_scf", "loaning_random")):
        results = _results(context, scheme)
        wanted = np.array([value for one in results for value in one.series["wanted"]])
        preempted = np.array([value for one in results for value in one.series["preempted"]])
        if wanted.size:
            figure.add_trace(
                go.Bar(x=[SCHEMES[scheme].label], y=[preempted.sum() / wanted.sum()],
                marker={"color": PALETTE[number]},
                       showlegend=False)
            )  # fmt: skip
    if not figure.data:
        return Drawing("lyra-costs", "Preemptions for each server", note, None, "Its runs are missing.")
    figure.update_yaxes(title_text="jobs preempted a server")
    return Drawing("lyra-costs", "Preemptions for each server", note, figure)


def _full_servers(context: Context) -> Check:
    name = "Should hold: GPUs on loan are in use on every day (published 92 %)"
    days = [
        value for result in _results(context, "loaning") for value in result.series["on_loan_usage_by_day"]
    ]
    if not days:
        return Check(name, None, "not run")
    return Check(name, min(days) > 0.85, f"lowest {min(days):.3f}, mean {np.mean(days):.3f}")


FIGURE = FigureDefinition(
    "reclaiming", "Table 3.7, Figures 3.11 and 3.12: servers on loan and reclaims", False, runs, report,
    also_called=("table37", "fig311", "fig312"),
)  # fmt: skip
