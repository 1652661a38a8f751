"""Training throughput end to end on both testbeds (Figures 3.11 and 3.12)."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from communication.zen.schemes import Scheme
from research.figure import Check, Context, FigureDefinition, FigureReport, Table, within
from research.model_rows import ModelRow, row
from research.runs import RunSpec
from research.zen import explaining, model
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "training"
MACHINES = (2, 4, 8, 16)
NAMES = {
    Scheme.DENSE: "Zen over all-reduce",
    Scheme.SPARCML: "Zen over SparCML",
    Scheme.OMNIREDUCE: "Zen over OmniReduce",
}
#: Claims of the text with their bands: model, rival, testbed, published, band.
CLAIMS = (
    ("LSTM", Scheme.DENSE, model.V100, 3.1, 0.15),
    ("LSTM", Scheme.SPARCML, model.V100, 1.67, 0.15),
    ("DeepFM", Scheme.OMNIREDUCE, model.V100, 1.44, 0.20),
    ("NMT", Scheme.OMNIREDUCE, model.V100, 1.51, 0.20),
    ("BERT", Scheme.DENSE, model.V100, 1.13, 0.05),
    ("BERT", Scheme.OMNIREDUCE, model.V100, 1.07, 0.05),
    ("LSTM", Scheme.SPARCML, model.A100, 1.50, 0.15),
    ("DeepFM", Scheme.DENSE, model.A100, 1.46, 0.15),
    ("DeepFM", Scheme.OMNIREDUCE, model.A100, 1.34, 0.15),
    ("NMT", Scheme.DENSE, model.A100, 1.45, 0.15),
    ("NMT", Scheme.OMNIREDUCE, model.A100, 1.39, 0.15),
)


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: these are the planner's formulas."""
    return ()


def report(context: Context) -> FigureReport:
    """Report samples a second by machines, and the ratios of the text."""
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="T = c + T_mlp + T_embedding + T_hash (research/zen/model.py)",
        notes=(
            (
                "Absolute throughputs and times for computing are not published. c, what an iteration takes "
                "beside communication, is fitted to one ratio for each model, which is marked; the others "
                "follow. For the testbed where it was not fitted an A100 is taken to compute "
                f"{model.A100_OVER_V100:g} times as fast as a V100, an assumption."
            ),
        ),
        rows=_rows(context),
        tables=(_fitted(), *(_throughputs(testbed) for testbed in (model.V100, model.A100))),
        drawings=tuple(_drawing(testbed) for testbed in (model.V100, model.A100)),
        checks=_checks(),
    )


def _rows(context: Context) -> list[ModelRow]:
    rows = []
    for name, rival, testbed, _published, _band in CLAIMS:
        value = model.training_speedup(model.MODELS[name], rival, testbed)
        fitted = rival is Scheme.DENSE and model.FITTED_TRAINING[name][0] == testbed
        told = f"{value:.2f}, c {model.compute_seconds(name, testbed) * 1000:.0f} ms"
        cause = explaining.one_skew if rival is Scheme.OMNIREDUCE else explaining.densities
        rows.append(
            row(
                context, NAME, NAMES[rival], f"{name}, {testbed}", value,
                "communication/zen/schemes.py in T = c + T_mlp + T_embedding + T_hash",
                calibrated=fitted, why=() if fitted else (cause(told),),
            )
        )  # fmt: skip
    most, where = most_over_state_of_the_art()
    series, x = "Zen over the state of the art, at most", "all models and machines"
    why = (explaining.one_skew(f"{most:.2f}, {where}"),)
    rows.append(row(context, NAME, series, x, most, "the same", why=why))
    return rows


def most_over_state_of_the_art() -> tuple[float, str]:
    """Return the largest gain over SparCML or OmniReduce, and where it occurs."""
    return max(
        (
            model.training_speedup(each, rival, testbed, machines),
            f"{each.name}, {rival}, {machines}, {testbed}",
        )
        for each in model.MODELS.values()
        for rival in (Scheme.SPARCML, Scheme.OMNIREDUCE)
        for testbed in (model.V100, model.A100)
        for machines in MACHINES
    )


def _fitted() -> Table:
    rows = []
    for name, (testbed, ratio) in model.FITTED_TRAINING.items():
        seconds = (f"{model.compute_seconds(name, each) * 1000:.0f} ms" for each in (model.V100, model.A100))
        rows.append((name, f"{ratio:g} over all-reduce, {testbed}", *seconds))
    return Table(
        "Computing that was fitted",
        "One published ratio for each model is used up by it.",
        ("Model", "Fitted to", "c on V100", "c on A100"),
        tuple(rows),
    )


def _throughputs(testbed: str) -> Table:
    schemes = (Scheme.DENSE, *model.SCHEMES)
    rows = []
    for name, each in model.MODELS.items():
        for machines in MACHINES:
            values = (model.throughput(each, scheme, testbed, machines) for scheme in (*schemes, None))
            rows.append((f"{name}, {machines}", *(f"{value:,.0f}" for value in values)))
    return Table(
        f"Samples a second, {testbed}",
        "With the fitted computing. The upper bound is without indices and hashing.",
        ("Model, machines", *(scheme.value for scheme in schemes), "upper bound"),
        tuple(rows),
    )


def _drawing(testbed: str) -> Drawing:
    figure = base_figure(height=360)
    for number, scheme in enumerate((Scheme.DENSE, *model.SCHEMES)):
        figure.add_trace(
            go.Bar(
                x=[f"{name}, {machines}" for name in model.MODELS for machines in MACHINES],
                y=[
                    model.throughput(each, scheme, testbed, machines)
                    / model.throughput(each, None, testbed, machines)
                    for each in model.MODELS.values()
                    for machines in MACHINES
                ],
                name=scheme.value,
                marker_color=PALETTE[number],
            )
        )
    figure.update_yaxes(title_text="throughput over the upper bound", range=[0, 1.02])
    key = "zen-training-25" if testbed == model.V100 else "zen-training-100"
    return Drawing(key, f"Training throughput, {testbed}", "By model and machines.", figure, wide=True)


def _checks() -> list[Check]:
    checks = [
        within(
            f"{name}, {NAMES[rival]}, {testbed}, {band:.0%}",
            model.training_speedup(model.MODELS[name], rival, testbed), published, band * published, ".2f",
        )
        for name, rival, testbed, published, band in CLAIMS
    ]  # fmt: skip
    order = all(
        model.training_speedup(each, rival, testbed, machines) > 1.0
        for each in model.MODELS.values()
        for rival in (*model.BASELINES, Scheme.DENSE)
        for testbed in (model.V100, model.A100)
        for machines in MACHINES[1:]
    )
    growing = all(
        model.training_speedup(each, rival, testbed, 16) > model.training_speedup(each, rival, testbed, 4)
        for each in model.MODELS.values()
        for rival, testbed in ((Scheme.SPARCML, model.V100), (Scheme.OMNIREDUCE, model.V100))
    )
    bound = model.throughput(model.BERT, Scheme.ZEN, model.V100) / model.throughput(
        model.BERT, None, model.V100
    )
    return [
        *checks,
        Check("Zen is faster than every baseline and than dense from 4 machines on", order, "both testbeds"),
        Check(
            "Its gain over SparCML and OmniReduce grows with machines", growing, "4 to 16 machines, 25 Gbps"
        ),
        Check("BERT is close to the upper bound", bound > 0.95, f"{bound:.1%}"),
    ]


FIGURE = FigureDefinition(NAME, "Training throughput on both testbeds", False, runs, report)
