"""Effective training time: the useful share of time, by the published formula and simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import plotly.graph_objects as go

from recovery.costs.failures import effective_share, renewed_share
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.gemini import explaining, model
from research.gemini.specs import FailureSpec
from research.model_rows import ModelRow, row
from research.store import RunResult
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "effective"
MACHINES = (16, 200, 400, 600, 800, 1000)
LARGE = 1000
SHORT_DAYS, FULL_DAYS = 30.0, 300.0
FAILURES = (0, 1, 2, 4, 8, 15)
PLACE = "1,000 machines"
SCHEMES = tuple(model.NOTEBOOK_MINUTES)
Found = Mapping[FailureSpec, RunResult | None]


def runs(full: bool) -> Sequence[FailureSpec]:
    """Return runs of Gemini and Strawman by number of machines, and of Gemini with only machine failures."""
    days = FULL_DAYS if full else SHORT_DAYS
    both = [FailureSpec(count, in_memory, days=days) for count in MACHINES for in_memory in (True, False)]
    return [*both, FailureSpec(LARGE, hardware_share=1.0, standby=False, days=days)]


def report(context: Context) -> FigureReport:
    """Report shares by machines, published, by formula and simulated."""
    mine = {spec: context.get(spec) for spec in runs(context.full)}
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="by recovery/costs/failures.py, and simulated with recovery/life_cycle and gemini/points",
        notes=(
            (
                "The published curves charge 9, 112 and 26 minutes for a failure. In the simulation each "
                "failure goes through the phases of the recovery's life cycle, sources are chosen from what "
                "is in memory then, and further failures come meanwhile. Storage grows with the cluster, as "
                "in the published figures."
            ),
        ),
        rows=[*_formula_rows(context), *_simulated_rows(context, mine)],
        tables=(_by_failures(), _simulated(mine)),
        drawings=(_drawing(mine),),
        checks=_verdicts(mine),
    )


def _formula(scheme: str, failures_a_day: float) -> float:
    cost = model.notebook_cost(model.NOTEBOOK_MINUTES[scheme])
    return effective_share(failures_a_day, cost, model.NOTEBOOK_BASE[scheme])


def _share(result: RunResult) -> float:
    return float(result.summary["effective_share"])


def _formula_rows(context: Context) -> list[ModelRow]:
    a_day = LARGE * model.FAILURES_A_DAY
    gemini, frequent = _formula("Gemini", a_day), _formula("HighFreq", a_day)
    how = "recovery/costs/failures.py: base less λ · O, 9 and 26 minutes a failure"
    by_minutes = {each: effective_share(a_day, model.notebook_cost(each)) for each in (7.0, 8.5, 9.0)}
    told = ", ".join(f"{share:.3f} with {minutes:g} minutes" for minutes, share in by_minutes.items())
    return [
        row(context, NAME, "Failures a day", PLACE, a_day, "1.5 % of the machines"),
        row(
            context, NAME, "Gemini", PLACE, gemini, how, shares=True, why=(explaining.nine_minutes(told),)
        ),
        row(
            context, NAME, "Gemini over HighFreq", PLACE, gemini / frequent, how,
            why=(explaining.rounded(f"{gemini:.4f} over {frequent:.4f}"),),
        ),
    ]  # fmt: skip


def _simulated_rows(context: Context, mine: Found) -> list[ModelRow]:
    renewed = renewed_share(LARGE * model.FAILURES_A_DAY, model.notebook_cost(9.0))
    rows = []
    for spec, result in mine.items():
        if spec.machines != LARGE:
            continue
        scheme, made = "Gemini" if spec.in_memory else "Strawman", spec.described()
        if result is None:
            rows.append(row(context, NAME, scheme, PLACE, None, made, missing="not run"))
            continue
        minutes = fmean(result.series["downtime_seconds"]) / 60
        told = f"{_share(result):.3f} simulated; a recovery takes {minutes:.2f} minutes on average"
        why = (
            explaining.renewal(f"{told}; {renewed:.3f} by renewal with 9 minutes")
            if spec.in_memory
            else explaining.first_order(
                f"{told}; {result.facts['failures']:,} failures in {spec.days:g} days"
            )
        )
        rows.append(row(context, NAME, scheme, PLACE, _share(result), made, shares=True, why=(why,)))
    return rows


def _by_failures() -> Table:
    return Table(
        "Share of time that is useful, by failures a day",
        "By the published formula.",
        ("Failures a day", *SCHEMES),
        tuple((f"{each}", *(f"{_formula(one, each):.4f}" for one in SCHEMES)) for each in FAILURES),
    )


def _simulated(mine: Found) -> Table:
    rows = []
    for spec, result in mine.items():
        if result is not None:
            facts = result.facts
            rows.append(
                (
                    spec.name + ("" if spec.standby else ", no spare servers"),
                    f"{_share(result):.4f}",
                    f"{facts['failures']:,}",
                    f"{facts['begun_anew']:,}",
                    f"{facts['from_local_memory']:,}",
                    f"{facts['from_peers']:,}",
                    f"{facts['from_durable']:,}",
                    f"{facts['most_iterations_lost']:,}",
                )
            )
    return Table(
        "Simulated failures",
        "Choices of sources by their worst tier. A failure during a recovery begins it anew. Iterations: "
        "completed ones that had to be made again.",
        ("Run", "Useful", "Failures", "Begun anew", "Local", "Peers", "Durable", "Most iterations lost"),
        tuple(rows),
    )


def _drawing(mine: Found) -> Drawing:
    figure = base_figure(height=360)
    machines = list(range(0, 1001, 25))
    for number, scheme in enumerate(SCHEMES):
        figure.add_trace(
            go.Scatter(
                x=machines,
                y=[_formula(scheme, model.FAILURES_A_DAY * count) for count in machines],
                mode="lines",
                name=f"{scheme}, formula",
                line={"color": PALETTE[number], "dash": "dash"},
            )
        )
    for number, scheme in enumerate(SCHEMES[:2]):
        points = [
            (spec.machines, _share(result))
            for spec, result in mine.items()
            if result is not None and spec.in_memory is (scheme == "Gemini") and spec.standby
        ]
        figure.add_trace(
            go.Scatter(
                x=[count for count, _ in points],
                y=[share for _, share in points],
                mode="markers",
                name=f"{scheme}, simulated",
                marker={"color": PALETTE[number], "size": 9},
            )
        )
    figure.update_xaxes(title_text="machines")
    figure.update_yaxes(title_text="share of time that is useful", range=[0, 1.02])
    note = "Dashed: the published formula. Points: simulated. Each machine fails 0.015 times a day."
    return Drawing("gemini-effective", "Useful time by machines", note, figure, wide=True)


def _verdicts(mine: Found) -> list[Check]:
    eight = {scheme: _formula(scheme, 8) for scheme in SCHEMES}
    checks = [
        Check(
            "8 failures a day leave Gemini 95 % of its time",
            abs(eight["Gemini"] - 0.95) < 1e-9,
            ", ".join(f"{scheme} {share:.4f}" for scheme, share in eight.items()),
        )
    ]
    large = {
        spec.in_memory: _share(result)
        for spec, result in mine.items()
        if spec.machines == LARGE and spec.standby and result is not None
    }
    told = "not run" if len(large) < 2 else f"Gemini {large[True]:.4f}, Strawman {large[False]:.4f}"
    checks += [
        Check(
            "Gemini on 1,000 machines, simulated: nine tenths of the time are useful",
            None if len(large) < 2 else large[True] >= 0.9,
            told,
        ),
        Check(
            "Strawman there: less than half as much",
            None if len(large) < 2 else large[False] < large[True] / 2,
            told,
        ),
    ]
    return checks


FIGURE = FigureDefinition(NAME, "Effective training time under failures", False, runs, report)
