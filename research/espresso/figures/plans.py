"""Properties of selections: published plans, tensors before bubbles, other codecs (4.4 and 4.6)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from communication.espresso.baselines import FP32, fastest_by_itself
from communication.espresso.question import Question, question_of
from communication.profiles.codec import Device
from communication.profiles.model import ModelProfile
from research.espresso import explaining, model
from research.espresso.figures.throughput import over_fp32
from research.espresso.results import ESPRESSO
from research.espresso.specs import SelectionSpec
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.model_rows import ModelRow, row

NAME, BUBBLES, OTHERS = "plans", "bubbles", "other codecs"
#: Servers of the published plans, and each series by the stored facts of a run.
SERVERS = 4
SERIES = {
    "Untouched": "untouched",
    "Compressed on GPUs": "on_gpus",
    "Compressed on processors": "on_processors",
}
PUBLISHED = ("BERT-base", "GPT2", "UGATIT", "VGG16", "LSTM")
LSTM_ON_NVLINK = SelectionSpec("LSTM", platform=model.NVLINK)
OTHER_CODECS = {
    "BERT-base with DGC": SelectionSpec("BERT-base", codec="dgc"),
    "ResNet101 with EFSignSGD": SelectionSpec("ResNet101", codec="ef-signsgd"),
}
ELEMENTS = tuple(1 << power for power in range(12, 29, 4))


def runs(full: bool) -> Sequence[SelectionSpec]:
    """Return selections on 32 GPUs, LSTM on the other platform, and two workloads with other codecs."""
    return [*(SelectionSpec(name, SERVERS) for name in PUBLISHED), LSTM_ON_NVLINK, *OTHER_CODECS.values()]


def report(context: Context) -> FigureReport:
    """Report counts of tensors by treatment, and the text's statements on bubbles, sizes and codecs."""
    gains = _gains_by_size()
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="selections of communication/espresso",
        notes=(
            (
                "Published plans come from a simulator with thresholds on sizes; they tell the order of "
                "magnitude. Accuracy is not repeated here: it takes training."
            ),
        ),
        rows=[*_plan_rows(context), *_bubble_rows(context), *_codec_rows(context)],
        tables=(
            Table(
                "What compression on a GPU gains by size",
                "DGC on 64 GPUs, NVLink: the fastest option that compresses, its operations one after the "
                "other, over FP32.",
                ("Elements", "Of FP32's time"),
                tuple(
                    (f"{elements:,}", f"{share:.2f}") for elements, share in zip(ELEMENTS, gains, strict=True)
                ),
            ),
        ),
        checks=(
            Check(
                "The benefit of compression on GPUs grows with the tensor",
                bool(np.all(np.diff(gains) <= 1e-9)),
                ", ".join(f"{share:.2f}" for share in gains),
            ),
        ),
    )


def _plan_rows(context: Context) -> list[ModelRow]:
    rows = []
    for name in PUBLISHED:
        spec = SelectionSpec(name, SERVERS)
        result = context.get(spec)
        for series, fact in SERIES.items():
            ours = None if result is None else float(result.facts[fact])
            why = () if ours is None else (explaining.other_selection(f"{ours:.0f} tensors"),)
            rows.append(row(context, NAME, series, name, ours, spec.described(), why=why))
    return rows


def _bubble_rows(context: Context) -> list[ModelRow]:
    result = context.get(LSTM_ON_NVLINK)
    share = None if result is None else float(result.facts["before_last_bubble"] / result.facts["tensors"])
    why = () if share is None else (explaining.other_selection(f"{share:.0%}"),)
    return [
        row(
            context, BUBBLES, "Tensors before bubbles", "LSTM on NVLink", share, LSTM_ON_NVLINK.described(),
            shares=True, why=why,
        )
    ]  # fmt: skip


def _codec_rows(context: Context) -> list[ModelRow]:
    rows = []
    for place, spec in OTHER_CODECS.items():
        result = context.get(spec)
        ours = None if result is None else over_fp32(result, ESPRESSO)
        why = () if ours is None else (explaining.one_bandwidth(f"{ours:.2f}"),)
        rows.append(row(context, OTHERS, "Espresso over FP32", place, ours, spec.described(), why=why))
    return rows


def _gains_by_size() -> list[float]:
    """Return, for single tensors, the time with compression on a GPU over that of FP32."""
    sizes = np.array(ELEMENTS)
    tensors = ModelProfile.unnamed("sizes", sizes, np.zeros(len(sizes)))
    asked = model.question(model.WORKLOADS["UGATIT"], 8)
    question: Question = question_of(tensors, asked.costs, asked.options)
    isolated = question.table.chains.isolated
    best = fastest_by_itself(question, question.columns_on(Device.GPU, uncompressed=False))
    plain = question.table.columns[FP32]
    return [
        float(isolated[size, column] / isolated[size, plain])
        for size, column in zip(question.table.size_of, best, strict=True)
    ]


FIGURE = FigureDefinition(NAME, "What selections look like", False, runs, report, (BUBBLES, OTHERS))
