"""Training throughput over GPUs (Table 2) by a fitted law, and dense models (Table 1)."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.model_rows import ModelRow, row
from research.moesys import model
from research.moesys.published import TABLE_1, TABLE_2
from research.runs import RunSpec
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "training"
#: Tokens per second in a row of Table 2.
COLUMNS = {"DeepSpeed": 1, "MoESys": 2}


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: the law is fitted at once."""
    return ()


def report(context: Context) -> FigureReport:
    """Report five constants for ten published values."""
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="u(R) = t0 + φ·(x + y·n) microseconds for a token, fitted",
        notes=(
            "The law has five constants for ten values: it describes them and predicts nothing.",
            "The text says that speed doubles with the GPUs. Its table says 12.1 times for 16 times as many.",
        ),
        rows=_rows(context),
        tables=(_constants(),),
        drawings=(_drawing(),),
        checks=_checks(),
    )


def _rows(context: Context) -> list[ModelRow]:
    rows = []
    for gpus in TABLE_2:
        x = f"{gpus} GPUs"
        for name, law in model.laws().items():
            rows.append(
                row(
                    context, NAME, f"Tokens per second, {name}", x, law.tokens_per_second(gpus),
                    "the fitted law", unit="tokens/s", calibrated=True,
                )
            )  # fmt: skip
        series = "MoESys over DeepSpeed"
        rows.append(row(context, NAME, series, x, _ratio(gpus), "the fitted laws", calibrated=True))
    missing = "kernels of two frameworks on dense models, which nothing here computes"
    series = "Dense models, over Megatron-LM"
    return rows + [row(context, NAME, series, x, None, "nothing", missing=missing) for x in TABLE_1]


def _ratio(gpus: int) -> float:
    laws = model.laws()
    return laws["MoESys"].tokens_per_second(gpus) / laws["DeepSpeed"].tokens_per_second(gpus)


def _constants() -> Table:
    return Table(
        "Fitted constants",
        "Microseconds for a token on a GPU: computing, leaving a server, and each server, which both systems "
        "share.",
        ("System", "t0", "x", "y"),
        tuple(
            (name, f"{law.computing:.2f}", f"{law.leaving:.2f}", f"{law.straggling:.3f}")
            for name, law in model.laws().items()
        ),
    )


def _drawing() -> Drawing:
    figure = base_figure(height=340)
    gpus = list(TABLE_2)
    for number, (name, law) in enumerate(model.laws().items()):
        published = [TABLE_2[each][COLUMNS[name]] / each for each in gpus]
        fitted = [law.tokens_per_second(each) / each for each in gpus]
        for label, values, mode in (("published", published, "markers"), ("fitted", fitted, "lines")):
            figure.add_trace(
                go.Scatter(
                    x=gpus, y=values, name=f"{name}, {label}", mode=mode, line={"color": PALETTE[number]}
                )
            )
    figure.update_xaxes(title_text="GPUs", type="log")
    figure.update_yaxes(title_text="tokens per second of a GPU")
    return Drawing("moesys-training", "Throughput of a GPU", "Table 2.", figure, wide=True)


def _checks() -> list[Check]:
    ratios = [_ratio(gpus) for gpus in TABLE_2]
    text = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    rises = ratios[0] < ratios[1] < ratios[2] > ratios[3] > ratios[4]
    return [
        Check("MoESys is more than 1.25 times as fast everywhere", min(ratios) > 1.25, text),
        Check("The gain rises from 8 to 32 GPUs and falls beyond", rises, text),
    ]


FIGURE = FigureDefinition(NAME, "Training throughput", False, runs, report)
