"""Schemes compared by their formulas on NMT's embedding (Figure 3.7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import plotly.graph_objects as go

from communication.zen.densification import Skew
from communication.zen.formats import BLOCK_VALUES
from communication.zen.schemes import DIMENSIONS, Exchange, Scheme, lower_bound_bytes, received_bytes
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.model_rows import ModelRow, row
from research.runs import RunSpec
from research.zen import explaining, model
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "schemes"
GPUS = (2, 4, 8, 16, 32, 64, 128)
SHOWN = (*model.SCHEMES, Scheme.SPARSE_PS_TREE)


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: these are formulas."""
    return ()


def report(context: Context) -> FigureReport:
    """Report costs over dense by GPUs, with one GPU a machine, as in the figure."""
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="computed by communication/zen/schemes.py",
        notes=(
            (
                "Time of the exchange over that of a dense all-reduce, one GPU for each machine, COO but for "
                "OmniReduce's blocks and Zen's hash bitmaps. The end point of NMT's densities follows from "
                "'36 % lower than dense', so that row is fitted. Contiguous parts are as skewed as LSTM's."
            ),
        ),
        rows=_rows(context),
        tables=(_table(), _dimensions()),
        drawings=(_drawing(),),
        checks=_checks(),
    )


def over_dense(scheme: Scheme, gpus: int, name: str = "NMT") -> float:
    """Return the cost of a scheme over a dense all-reduce."""
    asked = _exchange(scheme, gpus, name)
    return received_bytes(scheme, asked) / received_bytes(Scheme.DENSE, asked)


def _exchange(scheme: Scheme, gpus: int, name: str) -> Exchange:
    asked = model.exchange(model.MODELS[name], gpus, gpus=1)
    return replace(asked, width=BLOCK_VALUES) if scheme is Scheme.OMNIREDUCE else asked


def _rows(context: Context) -> list[ModelRow]:
    how = "communication/zen/schemes.py"
    crossing = 1.0 / model.NMT.density
    dense = 1000.0 * received_bytes(Scheme.DENSE, model.exchange(model.DEEPFM, 128, gpus=1))
    dense /= model.EFFICIENCY * model.BYTES_PER_SECOND[model.A100]
    return [
        row(
            context, NAME, "Balanced Parallelism over dense", "NMT, 128 GPUs",
            over_dense(Scheme.BALANCED_COO, 128), how, calibrated=True,
        ),
        row(
            context, NAME, "AGsparse crosses dense, GPUs", "NMT", crossing, how,
            why=(explaining.rounded(f"{crossing:.1f}; 'more than 40' is published"),),
        ),
        row(
            context, NAME, "Dense all-reduce of the embedding, ms", "DeepFM, 128 GPUs, 100 Gbps", dense,
            f"{how}, {model.EFFICIENCY:g} of the line rate", calibrated=True,
        ),
    ]  # fmt: skip


def _table() -> Table:
    rows = []
    for gpus in GPUS:
        asked = model.exchange(model.NMT, gpus, gpus=1)
        bound = lower_bound_bytes(asked) / received_bytes(Scheme.DENSE, asked)
        rows.append((f"{gpus}", *(f"{over_dense(one, gpus):.4f}" for one in SHOWN), f"{bound:.4f}"))
    return Table(
        "Cost over dense, NMT",
        "Below 1 a scheme is faster than a dense all-reduce.",
        ("GPUs", *(one.value for one in SHOWN), "lower bound"),
        tuple(rows),
    )


def _dimensions() -> Table:
    return Table(
        "Schemes by their dimensions (Table 3.2)",
        "Zen is Balanced Parallelism carried out.",
        ("Scheme", "Communication", "Aggregation", "Partition", "Balance"),
        tuple((scheme.value, *dimensions) for scheme, dimensions in DIMENSIONS.items()),
    )


def _drawing() -> Drawing:
    figure = base_figure(height=380)
    for number, scheme in enumerate(SHOWN):
        figure.add_trace(
            go.Scatter(
                x=list(GPUS),
                y=[over_dense(scheme, gpus) for gpus in GPUS],
                name=scheme.value,
                mode="lines+markers",
                line={"color": PALETTE[number]},
            )
        )
    figure.add_hline(y=1.0, line_dash="dash")
    figure.update_xaxes(title_text="GPUs", type="log", tickvals=list(GPUS))
    figure.update_yaxes(title_text="time over dense", type="log")
    return Drawing("zen-schemes", "Schemes on NMT's embedding", "Dashed: dense.", figure, wide=True)


def _checks() -> list[Check]:
    at = {scheme: {gpus: over_dense(scheme, gpus) for gpus in GPUS} for scheme in SHOWN}
    skewless = replace(_exchange(Scheme.BALANCED_COO, 64, "NMT"), skew=Skew())
    balanced = received_bytes(Scheme.BALANCED_COO, skewless)
    rivals = [received_bytes(one, skewless) for one in (Scheme.SPARSE_PS, Scheme.SPARSE_PS_SCATTER)]
    agsparse, sparcml = at[Scheme.AGSPARSE], at[Scheme.SPARCML]
    ps, omni = at[Scheme.SPARSE_PS], at[Scheme.OMNIREDUCE]
    return [
        Check(
            "AGsparse is worse than dense beyond 40 GPUs, and grows in proportion to them",
            agsparse[32] < 1 < agsparse[64] and abs(agsparse[128] / agsparse[64] - 2) < 1e-9,
            f"{agsparse[32]:.3f} at 32, {agsparse[64]:.3f} at 64",
        ),
        Check("SparCML is no better than dense on 128 GPUs", sparcml[128] >= 1, f"{sparcml[128]:.3f}"),
        Check(
            "A sparse parameter server is worse than AGsparse and than dense on 16 GPUs",
            ps[16] > max(1.0, agsparse[16]),
            f"{ps[16]:.3f}, AGsparse {agsparse[16]:.3f}",
        ),
        Check(
            "OmniReduce beats dense on few GPUs, and hardly from 64 on",
            omni[2] < 0.5 and omni[64] > 0.9,
            f"{omni[2]:.3f} on 2, {omni[64]:.3f} on 64",
        ),
        Check(
            "Balanced Parallelism is best of all with COO from 8 GPUs on",
            all(
                at[Scheme.BALANCED_COO][gpus] <= min(at[one][gpus] for one in SHOWN if one is not Scheme.ZEN)
                for gpus in GPUS[2:]
            ),
            f"{at[Scheme.BALANCED_COO][128]:.3f} on 128",
        ),
        Check(
            "Even without skew no parameter server beats it (Lemma 3.4)",
            all(balanced <= one + 1e-9 for one in rivals),
            "64 GPUs",
        ),
    ]


FIGURE = FigureDefinition(NAME, "Numerical comparison of schemes", False, runs, report)
