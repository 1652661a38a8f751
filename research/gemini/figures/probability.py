"""Recovery probability: mixed placement beside the ring, exact, by corollary and by the paper's estimate."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from math import comb

import plotly.graph_objects as go

from recovery.placement.strategies import Strategy, place
from recovery.probability.surviving import (
    corollary,
    probability_with_independent_failures,
    recovery_probability,
    ring_union_estimate,
    upper_bound,
)
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.gemini import explaining
from research.gemini.specs import FailureSpec
from research.model_rows import ModelRow, row
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "probability"
#: Machines, replicas, machines lost.
CASES = (
    (4, 2, 2), (16, 2, 2), (16, 2, 3), (16, 2, 4), (12, 3, 3), (12, 3, 4), (12, 3, 6), (5, 2, 2), (7, 3, 3),
    (8, 3, 3), (8, 3, 4), (128, 2, 2), (1000, 2, 2),
)  # fmt: skip
COUNTED_UP_TO = 12
DRAWN = range(4, 129)


def runs(full: bool) -> Sequence[FailureSpec]:
    """Return no run: everything is counted."""
    return ()


def report(context: Context) -> FigureReport:
    """Report probabilities, and their check by brute force."""
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="computed by recovery/probability/surviving.py; exact, in whole numbers",
        notes=(
            (
                "Memory suffices unless all machines that keep somebody's state are lost at once. k machines "
                "are lost, any as likely as any other."
            ),
        ),
        rows=_rows(context),
        tables=(_table(),),
        drawings=(_drawing(),),
        checks=(_brute_force(), _six_of_ten(), _bound(), _independent()),
    )


def _rows(context: Context) -> list[ModelRow]:
    exact = "counted by recovery/probability/surviving.py"
    three = "N = 16, m = 2, k = 3"
    gemini, ring = (
        float(recovery_probability(16, 2, 3, strategy)) for strategy in (Strategy.MIXED, Strategy.RING)
    )
    estimate = float(ring_union_estimate(16, 2, 3))
    of_ring = explaining.union_estimate(f"{estimate:.3f} by the estimate, {ring:.4f} exactly")
    below = explaining.union_estimate(
        f"{1 - estimate / gemini:.1%} by the estimate, {1 - ring / gemini:.1%} exactly"
    )

    def one(series: str, machines: int, lost: int, strategy: Strategy) -> ModelRow:
        value = float(recovery_probability(machines, 2, lost, strategy))
        why = (of_ring,) if strategy is Strategy.RING and lost == 3 else ()
        x = f"N = {machines}, m = 2, k = {lost}"
        return row(context, NAME, series, x, value, exact, shares=True, why=why)

    return [
        one("Gemini", 4, 2, Strategy.MIXED),
        one("Ring", 4, 2, Strategy.RING),
        one("Gemini", 16, 2, Strategy.MIXED),
        one("Gemini", 16, 3, Strategy.MIXED),
        one("Ring", 16, 3, Strategy.RING),
        row(
            context, NAME, "Ring below Gemini", three, 1 - ring / gemini, exact, shares=True, why=(below,)
        ),
    ]  # fmt: skip


def _table() -> Table:
    rows = []
    for machines, replicas, lost in CASES:
        whole = machines % replicas == 0
        form = ".6f" if machines >= 128 else ".4f"
        values = (
            recovery_probability(machines, replicas, lost),
            corollary(machines, replicas, lost) if whole else None,
            upper_bound(machines, replicas) if lost == replicas else None,
            recovery_probability(machines, replicas, lost, Strategy.RING),
            ring_union_estimate(machines, replicas, lost),
        )
        told = ("–" if value is None else f"{float(value):{form}}" for value in values)
        strategy = place(machines, replicas).strategy.value
        rows.append((f"{machines}, {replicas}, {lost}", strategy, *told))
    return Table(
        "Mixed placement beside the ring",
        "The corollary holds for whole groups alone: at N = 5, m = 2 it would tell 0.75, and 6 of 10 pairs "
        "are survived. The bound is that of any strategy where as many machines are lost as there are "
        "replicas.",
        ("N, m, k", "Strategy", "Exact", "Corollary 6.1", "Bound", "Ring", "Ring, published estimate"),
        tuple(rows),
    )


def _drawing() -> Drawing:
    figure = base_figure(height=360)
    for number, (lost, strategy) in enumerate(
        (lost, strategy) for lost in (2, 3) for strategy in (Strategy.MIXED, Strategy.RING)
    ):
        mixed = strategy is Strategy.MIXED
        name = f"{'Gemini' if mixed else 'Ring'}, k = {lost}"
        figure.add_trace(
            go.Scatter(
                x=list(DRAWN),
                y=[float(recovery_probability(machines, 2, lost, strategy)) for machines in DRAWN],
                mode="lines",
                name=name,
                line={"color": PALETTE[number], "dash": "solid" if mixed else "dash"},
                hovertemplate=f"%{{x}} machines: %{{y:.4f}}<extra>{name}</extra>",
            )
        )
    figure.update_xaxes(title_text="machines")
    figure.update_yaxes(title_text="probability that memory suffices")
    note = "Two replicas; k machines lost at once. Odd numbers of machines have one ring of three."
    return Drawing("gemini-probability", "Recovery probability by machines", note, figure, wide=True)


def _safe(machines: int, replicas: int, lost: int, strategy: Strategy) -> int:
    held = place(machines, replicas, strategy).replica_sets()
    return sum(not any(one <= set(dead) for one in held) for dead in combinations(range(machines), lost))


def _brute_force() -> Check:
    cases = [
        (machines, replicas, lost, strategy)
        for machines in range(1, COUNTED_UP_TO + 1)
        for replicas in range(1, min(4, machines) + 1)
        for lost in range(machines + 1)
        for strategy in (Strategy.MIXED, Strategy.RING)
    ]
    wrong = sum(recovery_probability(*one) != Fraction(_safe(*one), comb(one[0], one[2])) for one in cases)
    return Check(
        f"Exact formulas equal brute force up to {COUNTED_UP_TO} machines and 4 replicas",
        wrong == 0,
        f"{len(cases):,} probabilities compared, {wrong} differ",
    )


def _six_of_ten() -> Check:
    safe = _safe(5, 2, 2, Strategy.MIXED)
    name = "Mixed placement of 5 machines in pairs survives 6 of 10 losses of two"
    return Check(name, safe == 6, f"{safe} of 10")


def _bound() -> Check:
    gap = upper_bound(5, 2) - recovery_probability(5, 2, 2)
    return Check("N = 5, m = 2 lies 1/10 below the bound", gap == Fraction(1, 10), f"{gap}")


def _independent() -> Check:
    found = probability_with_independent_failures(16, 2, 0.015)
    name = "16 machines that each fail with 1.5 % keep every state with 0.9982"
    return Check(name, abs(found - 0.9982) < 5e-5, f"{found:.5f}")


FIGURE = FigureDefinition(NAME, "Recovery probability: mixed placement and ring", False, runs, report)
