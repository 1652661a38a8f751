"""Training steps by number of experts and by the parts of Lina that are on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import plotly.graph_objects as go

from moe.lina.calibration import CALIBRATED
from research.figure import Check, Context, FigureDefinition, FigureReport, Table, within
from research.lina import explaining, model, published
from research.model_rows import ModelRow, row
from research.runs import RunSpec
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "training"
HOW = "moe/lina/training_step.py with fitted times"
SHOWN = (*model.SCHEDULES, model.LINA)
#: Gains by the independent reference program (docs/reproduction/README.md), by experts, in the order of
#: COMPARED.
SPECIFIED = {
    2: (1.10, 1.12, 1.22, 1.35, 1.67),
    4: (1.12, 1.18, 1.27, 1.39, 1.42),
    8: (1.15, 1.27, 1.35, 1.45, 1.68),
    16: (1.12, 1.28, 1.35, 1.43, 1.60),
}
COMPARED = ("fixed", "priority", "partition", "pipelining", model.LINA)


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: everything is simulated at once."""
    return ()


def report(context: Context) -> FigureReport:
    """Report speed-ups over the baseline."""
    times = CALIBRATED
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="simulated by moe/lina/training_step.py",
        notes=(
            (
                f"All times are fitted together to these means, for {times.layers} layers: attention "
                f"{times.attention:g}, gate {times.gate:g}, combine {times.combine:g}, expert "
                f"{times.expert:g}, gradients {times.gradients:g} per layer, the all-to-all of each size, "
                f"and the rates of overlapping classes, {times.rates.all_to_all:g} and "
                f"{times.rates.all_reduce:g}. One set of times gives the shape of all rows; single values "
                "prove nothing."
            ),
        ),
        rows=_rows(context),
        tables=(_table(),),
        drawings=(_drawing(),),
        checks=_checks(),
    )


def _rows(context: Context) -> list[ModelRow]:
    sizes = model.SIZES
    values: list[tuple[str, str, float | None]] = [
        *((published.STEP, published.size(size), model.gain(model.LINA, size)) for size in sizes),
        (published.STEP, published.MEAN, model.mean_gain(model.LINA)),
        *((published.PARTITION, published.size(size), model.gain("partition", size)) for size in sizes),
        (published.PRIORITY, published.MEAN, model.mean_gain("priority")),
        *((published.ALL_TO_ALL, published.size(size), model.all_to_all_gain(size)) for size in sizes[1:]),
        *((published.FORWARD, published.size(size), model.layer_gain(size, False)) for size in (2, 8)),
        *((published.BACKWARD, published.size(size), model.layer_gain(size, True)) for size in (2, 8)),
    ]
    return [
        row(
            context, NAME, series, x, value, HOW, calibrated=True,
            why=(explaining.one_model(f"{value:.2f}"),),
        )
        for series, x, value in values
    ]  # fmt: skip


def _table() -> Table:
    rows = []
    for size in model.SIZES:
        all_to_all = model.all_to_all_gain(size)
        slow_downs = model.baseline(size).slow_downs
        rows.append(
            (
                str(size), f"{model.baseline(size).total:.2f}",
                *(f"{model.gain(name, size):.2f}" for name in SHOWN),
                "none left" if all_to_all is None else f"{all_to_all:.2f}",
                f"{published.mean(slow_downs):.2f}",
            )
        )  # fmt: skip
    rows.append(("mean", "", *(f"{model.mean_gain(name):.2f}" for name in SHOWN), "", ""))
    return Table(
        "Speed-up over the baseline",
        "From `priority` on, each column adds to the one before it. Tutel pipelines on a shared link. The "
        "last column is the mean slow-down of an all-to-all in the baseline's backward pass.",
        ("Experts", "Baseline's step", *SHOWN, "All-to-all, Lina", "Slow-down"),
        tuple(rows),
    )


def _drawing() -> Drawing:
    figure = base_figure(height=360)
    for number, name in enumerate(SHOWN):
        figure.add_trace(
            go.Bar(
                x=[published.size(size) for size in model.SIZES],
                y=[model.gain(name, size) for size in model.SIZES],
                name=name,
                marker_color=PALETTE[number],
            )
        )
    figure.update_yaxes(title_text="speed-up over the baseline")
    return Drawing("lina-training", "Training steps", "Fitted times.", figure, wide=True)


def _checks() -> list[Check]:
    gains = {size: [model.gain(name, size) for name in COMPARED] for size in model.SIZES}
    worst = max(
        abs(found - expected)
        for size, values in SPECIFIED.items()
        for found, expected in zip(gains[size], values, strict=True)
    )
    over_tutel = {size: model.gain(model.LINA, size) / model.gain("Tutel", size) for size in model.SIZES}
    priorities = [model.gain("priority", size) for size in model.SIZES]
    return [
        Check(
            "Gains equal those of the reference program within 0.01",
            worst <= 0.01,
            f"at most {worst:.4f} off",
        ),
        Check(
            "Fixed gains least, then priority, partition, pipelining; packing loses nothing",
            all(
                all(one < more for one, more in pairwise((1, *values[:4]))) and values[3] <= values[4]
                for values in gains.values()
            ),
            "at every size",
        ),
        Check(
            "Priority alone gains 1.10 to 1.30",
            all(1.10 <= gain <= 1.30 for gain in priorities),
            ", ".join(f"{gain:.2f}" for gain in priorities),
        ),
        Check(
            "Lina is faster than Tutel, by a little less than over the baseline",
            all(1 < over_tutel[size] < gains[size][-1] for size in model.SIZES),
            ", ".join(f"{gain:.2f}" for gain in over_tutel.values()),
        ),
        within("Lina's mean over all sizes", model.mean_gain(model.LINA), 1.57, 0.05, ".2f"),
    ]  # fmt: skip


FIGURE = FigureDefinition(NAME, "Training steps over the baseline", False, runs, report)
