"""Inference on drawn routing: Lina over the even placement, and Lina without one of its phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import plotly.graph_objects as go

from moe.lina.inference_batches import LayerTimes
from research.figure import Check, Context, FigureDefinition, FigureReport, Table, within
from research.lina import explaining, published
from research.lina.specs import (
    EVEN,
    FULL,
    LINA,
    LITERAL,
    PREDICTABLE,
    SHORT,
    SHORT_WITHOUT_TUNING,
    WAYS,
    WITHOUT_ESTIMATION,
    WITHOUT_TUNING,
    Kind,
    Pooled,
    specs,
)
from research.model_rows import ModelRow, row
from research.rows import Explanation
from research.runs import RunSpec
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "inference"
HOW = "moe/lina/inference_batches.py on drawn routing"
PREDICTABLE_PLACE = f"{published.MODELS}, predictable routing"
#: Columns of the table.
FACTS = ("imbalance", "first imbalance", "set accuracy", "order accuracy", "replaced")


def runs(full: bool) -> Sequence[RunSpec]:
    """Return the runs of all kinds of routing."""
    return [spec for kind in Kind for spec in specs(kind, full)]


def report(context: Context) -> FigureReport:
    """Report times over the ideal one, and gains."""
    fitted = Pooled(context, Kind.FITTED)
    times, model = LayerTimes(), PREDICTABLE
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="simulated by moe/lina/inference_batches.py, on routing of moe/lina/synthetic_routing.py",
        notes=(
            (
                f"A layer takes {times.rest:g} ms, {times.experts:g} ms for experts and {times.all_to_all:g} "
                "ms for all-to-all. The last two grow with the tokens of the fullest device over the mean. "
                "They are derived from published overheads, shares and ratios. The routing is fitted to the "
                "published skew and accuracy."
            ),
            (
                "The predictable routing follows its preferences with a probability of "
                f"{model.first_predictability:g} in the first to {model.last_predictability:g} in the last "
                f"layer, and its types have weights by Zipf's law with exponent {model.type_exponent:g}. On "
                "it Lina gains what is published, but it is more skewed than the published routing: see the "
                "last table."
            ),
        ),
        rows=_rows(context, fitted),
        tables=(_ways_table(fitted), _routings_table(context)),
        drawings=(_drawing(fitted),),
        checks=_checks(context, fitted),
    )


def _rows(context: Context, fitted: Pooled) -> list[ModelRow]:
    few, predictable = Pooled(context, Kind.FEW_EXPERTS), Pooled(context, Kind.PREDICTABLE)
    tails = [fitted.fact("tail imbalance", way) for way in (EVEN, LINA)]
    large, small = (
        [f"{name}, {published.size(size)}" for name in ("Transformer-XL", "BERT-Large")] for size in (16, 4)
    )
    drawn, first_layers = explaining.drawn, explaining.first_layers
    median = published.MEDIAN_GAIN
    values: list[tuple[str, str, float | None, Callable[[str], Explanation]]] = [
        (published.POPULARITY, published.size(4), few.fact("popularity"), drawn),
        (published.POPULARITY, published.size(16), fitted.fact("popularity"), drawn),
        (published.GUESS, "one", fitted.fact("best 1"), drawn),
        (published.GUESS, "two", fitted.fact("best 2"), drawn),
        *((median, place, fitted.gain(LINA, EVEN, 50), first_layers) for place in large),
        *((median, place, few.gain(LINA, EVEN, 50), explaining.few_experts) for place in small),
        (median, PREDICTABLE_PLACE, predictable.gain(LINA, EVEN, 50), drawn),
        *((published.TAIL_GAIN, place, fitted.gain(LINA, EVEN, 95), first_layers) for place in large),
        (published.TAIL_GAIN, PREDICTABLE_PLACE, predictable.gain(LINA, EVEN, 95), drawn),
        (
            published.ALL_TO_ALL_TAIL, published.MODELS,
            None if tails[0] is None or tails[1] is None else tails[0] / tails[1], first_layers,
        ),
        *(
            (published.WITHOUT_ESTIMATION, place, fitted.gain(LINA, WITHOUT_ESTIMATION, 50), first_layers)
            for place in large
        ),
        *(
            (
                published.WITHOUT_TUNING, place, fitted.gain(LINA, WITHOUT_TUNING, 95),
                explaining.good_estimates,
            )
            for place in large
        ),
    ]  # fmt: skip
    return [
        row(
            context, NAME, series, x, value, HOW, shares=series == published.GUESS,
            calibrated=x == PREDICTABLE_PLACE or series == published.POPULARITY,
            missing="" if value is not None else "not run",
            why=(why("not run" if value is None else f"{value:.2f}"),),
        )
        for series, x, value, why in values
    ]  # fmt: skip


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _ways_table(fitted: Pooled) -> Table:
    return Table(
        "Times over the ideal one, with tokens spread evenly",
        "Imbalance: tokens of the fullest device over the mean, as the layers ran and under the first "
        "phase's placement. Accuracy: the two most popular experts were estimated, as a set and in order. "
        "Placed again: share of all layers.",
        ("Way", "Median", "95th", "Imbalance", "First phase", "Accuracy", "In order", "Placed again"),
        tuple(
            (
                way,
                *(_number(fitted.percentile(way, percent)) for percent in (50, 95)),
                *(_number(fitted.fact(fact, way)) for fact in FACTS),
            )
            for way in WAYS
        ),
    )


def _routings_table(context: Context) -> Table:
    rows = []
    for kind in Kind:
        pooled = Pooled(context, kind)
        values = (
            pooled.fact("popularity"), pooled.fact("best 1"), pooled.fact("set accuracy", LINA),
            pooled.percentile(EVEN, 50), pooled.percentile(LINA, 50),
            pooled.gain(LINA, EVEN, 50), pooled.gain(LINA, EVEN, 95),
        )  # fmt: skip
        rows.append((str(kind), *map(_number, values)))
    return Table(
        "What Lina gains by kind of routing",
        "Most over least popular expert, share of tokens that go to the likeliest expert after their path, "
        "accuracy of the estimate; medians over the ideal time; gains.",
        ("Routing", "Popularity", "Likeliest", "Accuracy", "Even", "Lina", "Gain, median", "Gain, 95th"),
        tuple(rows),
    )


def _drawing(fitted: Pooled) -> Drawing:
    figure = base_figure(height=360)
    for number, (percent, label) in enumerate(((50, "median"), (95, "95th percentile"))):
        figure.add_trace(
            go.Bar(
                x=list(WAYS),
                y=[fitted.percentile(way, percent) for way in WAYS],
                name=label,
                marker_color=PALETTE[number],
            )
        )
    figure.update_yaxes(title_text="times the ideal")
    return Drawing("lina-inference", "Batches over the ideal one", "Lower is better.", figure, wide=True)


def _checks(context: Context, fitted: Pooled) -> list[Check]:
    few, predictable = Pooled(context, Kind.FEW_EXPERTS), Pooled(context, Kind.PREDICTABLE)

    def ascending(label: str, ways: Sequence[str], percent: float) -> Check:
        found = [fitted.percentile(way, percent) for way in ways]
        values = [value for value in found if value is not None]
        if len(values) < len(ways):
            return Check(label, None, "not run")
        is_met = all(less < more for less, more in pairwise(values))
        return Check(label, is_met, ", ".join(f"{value:.3f}" for value in values))

    gains = [predictable.gain(LINA, EVEN, percent) for percent in (50, 95)]
    small = few.gain(LINA, EVEN, 50)
    return [
        ascending("Lina is first, placing at each layer second", (LINA, WITHOUT_ESTIMATION, EVEN), 50),
        ascending("Estimates that are not rescaled are worse than others", (FULL, LINA, LITERAL), 50),
        ascending("With bad estimates the second phase shortens the tail", (SHORT, SHORT_WITHOUT_TUNING), 95),
        ascending("With good ones it costs more than it saves", (WITHOUT_TUNING, LINA), 50),
        within("Gain at the median, specified 1.16", fitted.gain(LINA, EVEN, 50), 1.16, 0.03, ".3f"),
        within("Gain at the 95th percentile, specified 1.27", fitted.gain(LINA, EVEN, 95), 1.27, 0.05, ".3f"),
        within("The same with full estimates at the median", fitted.gain(FULL, EVEN, 50), 1.20, 0.03, ".3f"),
        within("With full estimates at the 95th percentile", fitted.gain(FULL, EVEN, 95), 1.31, 0.05, ".3f"),
        Check(
            "With 4 experts Lina gains at most 1.3",
            None if small is None else small <= 1.3,
            _number(small),
        ),
        Check(
            "Predictable routing reaches the published 1.45 and 1.63",
            None if None in gains else (gains[0] or 0) >= 1.45 and (gains[1] or 0) >= 1.63,
            ", ".join(map(_number, gains)),
        ),
    ]  # fmt: skip


FIGURE = FigureDefinition(NAME, "Inference over the even placement", False, runs, report)
