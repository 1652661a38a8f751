"""Time to accuracy: equal numbers of epochs, each shorter by the ratio of iteration times."""

from __future__ import annotations

from collections.abc import Sequence

from communication.cupcake.baselines import FP32, HIPRESS
from research.cupcake import explaining
from research.cupcake.model import ONE_SERVER, VARIANTS, evaluated
from research.figure import Context, FigureDefinition, FigureReport
from research.model_rows import ModelRow, row
from research.runs import RunSpec

NAME = "accuracy"
RUNS = (("ResNet50", "dgc"), ("ResNet101", "ef-signsgd"), ("BERT-base", "dgc"))


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: everything is computed."""
    return ()


def report(context: Context) -> FigureReport:
    """Report speedups, and values that are not repeated."""
    rows: list[ModelRow] = []
    for model, codec in RUNS:
        place = f"{model}, {codec}"
        found, both = (
            evaluated(ONE_SERVER, model, codec, VARIANTS[variant]) for variant in ("as published", "both")
        )
        for name in (FP32, HIPRESS):
            series = f"Time to accuracy, over {name}"
            if context.published.get(NAME, series, place) is None:
                continue
            told = f"{found.over(name):.2f}; {both.over(name):.2f} with what the published model leaves out"
            cause = explaining.compute_unknown if name == FP32 else explaining.no_framework
            how = "ratio of iteration times: as many epochs as without compression"
            rows.append(row(context, NAME, series, place, found.over(name), how, why=(cause(told),)))
        series = "Accuracy with Cupcake over FP32"
        if context.published.get(NAME, series, place) is not None:
            missing = "needs days on these servers; training under lossy plans is compared on emulated GPUs"
            rows.append(row(context, NAME, series, place, None, "not repeated", missing=missing))
    return FigureReport(
        name=NAME,
        title=FIGURE.title,
        made="planned by communication/cupcake on one server",
        notes=("Accuracies were published as equal within half a per cent, at as many epochs.",),
        rows=rows,
    )


FIGURE = FigureDefinition(NAME, "Time to accuracy", False, runs, report)
