"""The decision tree's size, and the text's own computations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from communication.espresso.decision_tree import gpu_options, options
from communication.espresso.options import compressions
from communication.library.codecs import WIRE_FORMATS
from research.espresso.explaining import rounded
from research.espresso.specs import SelectionSpec
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.model_rows import ModelRow, row

TREE, ARITHMETIC = "tree", "arithmetic"
#: Scaling factors before and after compression.
CHANGES = {
    "GPT2, .58 to .67": (0.58, 0.67),
    "GPT2, .58 to .64": (0.58, 0.64),
    "BERT-base, .51 to .55": (0.51, 0.55),
    "BERT-base, .51 to .61": (0.51, 0.61),
    "LSTM, .46 to .43": (0.46, 0.43),
    "LSTM, .46 to .42": (0.46, 0.42),
}
ALL, ON_GPUS = {0: 9, 1: 236, 2: 1152, 3: 1920, 4: 1024}, {0: 9, 1: 59, 2: 72, 3: 30, 4: 4}


def runs(full: bool) -> Sequence[SelectionSpec]:
    """Return no run: the tree is derived."""
    return ()


def communication_share(scaling: float) -> float:
    """Return the share of an iteration that is not computing, given the scaling factor: throughput of n
    workers over n times that of one."""
    return 1.0 - scaling


def report(context: Context) -> FigureReport:
    """Report counts of options, and the text's own arithmetic."""
    every, gpus = Counter(map(compressions, options())), Counter(map(compressions, gpu_options()))
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="derived from the grammar of communication/espresso/decision_tree.py",
        rows=[*_tree_rows(context), *_arithmetic_rows(context)],
        tables=(
            Table(
                "Options by the number of compressions",
                "With two devices for each, and on GPUs alone.",
                ("Compressions", "All", "On GPUs"),
                tuple((f"{number}", f"{every[number]:,}", f"{gpus[number]:,}") for number in sorted(every)),
            ),
        ),
        checks=(
            Check(
                "Options by compressions are those of the tree",
                every == ALL,
                str(dict(sorted(every.items()))),
            ),
            Check("On GPUs, too", gpus == ON_GPUS, str(dict(sorted(gpus.items())))),
        ),
    )


def _tree_rows(context: Context) -> list[ModelRow]:
    how = "derived from the grammar"
    compressing = sum(compressions(option) > 0 for option in gpu_options())
    return [
        row(context, TREE, "Options", "two devices", float(len(options())), how),
        row(context, TREE, "Options that compress", "GPUs", float(compressing), how),
    ]


def _arithmetic_rows(context: Context) -> list[ModelRow]:
    rows = []
    for place, scaling in (("GPT2, scaling .58", 0.58), ("BERT-base, scaling .51", 0.51)):
        rows.append(
            row(
                context, ARITHMETIC, "Communication of the iteration", place, communication_share(scaling),
                "1 less the scaling factor", shares=True,
            )
        )  # fmt: skip
    for place, (before, after) in CHANGES.items():
        gained = after / before - 1.0
        rows.append(
            row(
                context, ARITHMETIC, "Faster by", place, gained, "ratio of scaling factors", shares=True,
                why=(rounded(f"{gained:+.1%}"),),
            )
        )  # fmt: skip
    saved = 1.0 - WIRE_FORMATS["ef-signsgd"].ratio()
    return [
        *rows,
        row(
            context, ARITHMETIC, "GPU hours", "BERT-base, 1,200 ideal, scaling .51", 1200.0 / 0.51,
            "ideal hours over the scaling factor", unit="h",
        ),
        row(
            context, ARITHMETIC, "Saved on the wire", "EFSignSGD", saved, "1 less its ratio", shares=True
        ),
        row(context, ARITHMETIC, "Brute-force offloads", "11 tensors", float(2**11), "two devices for each"),
    ]  # fmt: skip


FIGURE = FigureDefinition(
    TREE, "The decision tree, and the text's arithmetic", False, runs, report, (ARITHMETIC,)
)
