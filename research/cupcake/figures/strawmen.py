"""Cupcake beside fusion without a search, and an iteration by its number of groups."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from communication.cupcake.baselines import BUCKETS, EVEN, GRACE, NAIVE, SINGLE
from communication.cupcake.partitions import even_split
from communication.cupcake.timeline import iteration_seconds
from research.cupcake import explaining
from research.cupcake.model import CODECS, CUPCAKE, ONE_SERVER, VARIANTS, evaluated, exchange
from research.cupcake.published import NAMES
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.model_rows import ModelRow, row
from research.runs import RunSpec
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "strawmen"
STRAWMEN = (BUCKETS, EVEN, NAIVE, SINGLE, GRACE)
CODEC = "dgc"
DRAWN_GROUPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: everything is computed."""
    return ()


def report(context: Context) -> FigureReport:
    """Report the largest ratios, those of every model, and iterations by number of groups."""
    return FigureReport(
        name=NAME,
        title=FIGURE.title,
        made="planned by communication/cupcake on one server; DGC",
        rows=[_row(context, name) for name in (BUCKETS, EVEN)],
        tables=(_table(),),
        drawings=(_drawing(),),
        checks=(_never_slower(),),
    )


def _row(context: Context, name: str) -> ModelRow:
    value, both = (
        max(evaluated(ONE_SERVER, model, CODEC, VARIANTS[variant]).over(name) for model in NAMES)
        for variant in ("as published", "both")
    )
    told = f"{value:.3f}; {both:.3f} with 0.15 ms for each call and every payload decoded by itself"
    how = "communication/cupcake/plan.py, the largest over three models"
    why = (explaining.best_of_many(told),)
    return row(context, NAME, f"over {name}", "largest", value, how, why=why)


def _table() -> Table:
    rows = tuple(
        (
            model,
            variant,
            *(f"{evaluated(ONE_SERVER, model, CODEC, settings).over(name):.3f}" for name in STRAWMEN),
        )
        for model in NAMES
        for variant, settings in VARIANTS.items()
    )
    return Table(
        "How much faster Cupcake is than fusion without a search",
        "DGC on one server. Naive fusion: the public code's two halves.",
        ("Model", "Variant", *STRAWMEN),
        rows,
    )


def _never_slower() -> Check:
    least = min(
        evaluated(ONE_SERVER, model, codec, settings).over(name)
        for model in NAMES
        for codec in CODECS
        for settings in VARIANTS.values()
        for name in STRAWMEN
    )
    count = len(NAMES) * len(CODECS) * len(VARIANTS) * len(STRAWMEN)
    name = "No partition without a search is faster under the same codec"
    return Check(name, least >= 1.0 - 1e-9, f"{count} compared, {least:.4f} the least ratio")


def _drawing() -> Drawing:
    figure = base_figure(height=360)
    for number, model in enumerate(NAMES):
        problem = exchange(ONE_SERVER, model, CODEC).problem()
        best = evaluated(ONE_SERVER, model, CODEC).seconds[CUPCAKE]
        groups = [count for count in DRAWN_GROUPS if count <= problem.tensors]
        values = [iteration_seconds(problem, even_split(problem.tensors, count)) / best for count in groups]
        figure.add_trace(
            go.Scatter(
                x=groups,
                y=values,
                mode="lines+markers",
                name=model,
                line={"color": PALETTE[number]},
                hovertemplate=f"%{{x}} groups: %{{y:.3f}}<extra>{model}</extra>",
            )
        )
    figure.update_xaxes(title_text="groups of equally many tensors", type="log")
    figure.update_yaxes(title_text="iteration over Cupcake's")
    note = "Few groups are sent late; many pay for many encodings. DGC, one server."
    return Drawing("cupcake-groups", "An iteration by its number of groups", note, figure, wide=True)


FIGURE = FigureDefinition(NAME, "Cupcake beside fusion without a search", False, runs, report)
