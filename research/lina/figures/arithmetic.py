"""The text's own arithmetic: means, implied step times, sizes of models, contradictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.lina import explaining
from research.lina.published import (
    EFFICIENCIES,
    INFERENCE_SHARES,
    MEMORY,
    TRAINING_SHARES,
    UTILISATIONS,
    mean,
)
from research.model_rows import row
from research.runs import RunSpec

NAME = "arithmetic"
#: Parameters in millions, experts and layers of the profiled models.
MODELS = ((117, 4, 12), (419, 16, 12))
#: Parameters of an expert in millions: two linear layers of 512 x 2048.
EXPERT = 2 * 512 * 2048 / 1e6


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: everything is computed."""
    return ()


def report(context: Context) -> FigureReport:
    """Report means and implied values."""
    how = "arithmetic on published values"
    shares = [share for _, share in (*TRAINING_SHARES.values(), *INFERENCE_SHARES.values())]
    values = (
        ("Inference, mean of models", "1.54, 1.45, 1.36, 1.46", mean((1.54, 1.45, 1.36, 1.46))),
        ("Step, mean of sizes", "1.71, 1.37, 1.73, 1.47", mean((1.71, 1.37, 1.73, 1.47))),
        (
            "Efficiency of pipelining, mean gain",
            "three models",
            mean([after / before for before, after in EFFICIENCIES.values()]),
        ),
        ("All-to-all share, mean of the table", "%", 100 * mean(shares)),
        (
            "GPU utilisation, mean gain in points",
            "three models",
            mean([after - before for before, after in UTILISATIONS.values()]),
        ),
        ("Peak memory, gain in points", "BERT2GPT2", MEMORY["BERT2GPT2"][1] - MEMORY["BERT2GPT2"][0]),
        ("Parameters of an expert, millions", "d 512, f 2048", EXPERT),
    )
    rest = [whole - experts * layers * EXPERT for whole, experts, layers in MODELS]
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="computed from published values",
        rows=[
            row(context, NAME, series, x, value, how, why=(explaining.rounded(f"{value:.2f}"),))
            for series, x, value in values
        ],
        tables=(
            _implied_table("training steps", TRAINING_SHARES),
            _implied_table("inference batches", INFERENCE_SHARES),
        ),
        checks=(
            Check(
                "Both profiled models have the same parameters besides experts",
                abs(rest[0] - rest[1]) < 0.2,
                ", ".join(f"{each:.1f} M" for each in rest),
            ),
        ),
    )


def _implied_table(whole: str, published: Mapping[tuple[int, int], tuple[int, float]]) -> Table:
    return Table(
        f"Times of {whole} that the shares of all-to-all imply, ms",
        "Transformer-XL; the times of the whole are not published.",
        ("Experts", "Layers", "All-to-all", "Share", "Whole"),
        tuple(
            (str(experts), str(layers), str(time), f"{share:.1%}", f"{time / share:,.1f}")
            for (experts, layers), (time, share) in published.items()
        ),
    )


FIGURE = FigureDefinition(NAME, "The text's own arithmetic", False, runs, report)
