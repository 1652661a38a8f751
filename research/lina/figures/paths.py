"""Lengths of paths: accuracy of estimates, fine-tuned layers, and times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from research.figure import Check, Context, FigureDefinition, FigureReport, Table, within
from research.lina import explaining, published
from research.lina.specs import LINA, LONG, SHORT, Kind, Pooled, specs
from research.model_rows import ModelRow, row
from research.rows import Explanation
from research.runs import RunSpec

NAME = "paths"
HOW = "moe/lina/inference_batches.py on drawn routing"
LENGTHS = {1: SHORT, 3: LINA, 6: LONG}
#: Accuracies by the independent reference program (docs/reproduction/README.md).
SPECIFIED = {1: 0.25, 3: 0.60, 6: 0.70}
WHY: dict[str, Callable[[str], Explanation]] = {
    published.MEDIAN: explaining.first_layers,
    published.TAIL: explaining.normalised_apart,
    published.FINE_TUNED: explaining.definitions,
    published.ACCURACY: explaining.drawn,
}


def runs(full: bool) -> Sequence[RunSpec]:
    """Return the runs on fitted routing."""
    return specs(Kind.FITTED, full)


def report(context: Context) -> FigureReport:
    """Report times and accuracy by path length."""
    fitted = Pooled(context, Kind.FITTED)
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="simulated by moe/lina/inference_batches.py, on routing of moe/lina/synthetic_routing.py",
        notes=("The same drawn routing stands beside both models.",),
        rows=_rows(context, fitted),
        tables=(_other_data_table(),),
        checks=_checks(fitted),
    )


def _value(fitted: Pooled, series: str, length: int) -> float | None:
    way = LENGTHS[length]
    if series in (published.MEDIAN, published.TAIL):
        return fitted.percentile(way, 50 if series == published.MEDIAN else 95)
    return fitted.fact("set accuracy" if series == published.ACCURACY else "replaced", way)


def _rows(context: Context, fitted: Pooled) -> list[ModelRow]:
    rows = []
    for series, why in WHY.items():
        for model, length in published.PATHS:
            value = _value(fitted, series, length)
            text = "not run" if value is None else f"{value:.2f}"
            rows.append(
                row(
                    context, NAME, series, published.path(model, length), value, HOW,
                    shares=series in (published.ACCURACY, published.FINE_TUNED),
                    calibrated=series == published.ACCURACY, why=(why(text),),
                    missing="" if value is not None else "not run",
                )
            )  # fmt: skip
    return rows


def _other_data_table() -> Table:
    return Table(
        "Other data, as published",
        "Paths of three experts. The routing of these models is not published, so there is nothing of ours.",
        ("Data", "95th percentile over ideal", "Accuracy"),
        tuple(
            (data, f"{time:.2f}", f"{accuracy:.1%}")
            for data, (time, accuracy) in published.OTHER_DATA.items()
        ),
    )


def _checks(fitted: Pooled) -> list[Check]:
    accuracies = [_value(fitted, published.ACCURACY, length) for length in LENGTHS]
    replaced = [_value(fitted, published.FINE_TUNED, length) for length in LENGTHS]
    return [
        _ascending("Longer paths estimate better", accuracies),
        _ascending("Longer paths need less fine-tuning", replaced[::-1]),
        *(
            within(f"Accuracy is near the specified one, l = {length}", found, SPECIFIED[length], 0.05, ".2f")
            for length, found in zip(LENGTHS, accuracies, strict=True)
        ),
    ]


def _ascending(label: str, found: Sequence[float | None]) -> Check:
    values = [value for value in found if value is not None]
    if len(values) < len(found):
        return Check(label, None, "not run")
    is_met = all(less < more for less, more in pairwise(values))
    return Check(label, is_met, ", ".join(f"{value:.2f}" for value in values))


FIGURE = FigureDefinition(NAME, "Lengths of paths", False, runs, report)
