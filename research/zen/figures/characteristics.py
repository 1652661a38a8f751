"""Characteristics of sparse gradients: Table 3.1, overlap, densification (Figure 3.1), skew (Figure 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations
from statistics import fmean, pstdev

import numpy as np
import plotly.graph_objects as go

from communication.zen.sparsity import overlap, part_counts, skewness
from communication.zen.synthetic import SyntheticTable
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.model_rows import ModelRow, row
from research.runs import RunSpec
from research.zen import explaining, model
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "characteristics"
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128)
PARTS = (2, 4, 8, 16, 32, 64, 128)
PAIRS, ITERATIONS = 8, 8
#: Vocabularies of the text models: parameters of the embedding over the width of a row. A column represents a
#: whole row. Words follow Zipf's law; a batch of a large vocabulary is assumed to be slightly more uneven.
TABLES = {
    "BERT": SyntheticTable(30_522, 1, 324, exponent=1.0),
    "NMT": SyntheticTable(20_000, 1, 494, exponent=1.2),
    "LSTM": SyntheticTable(793_471, 1, 8_966, exponent=1.2),
}


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: rows are drawn by seed."""
    return ()


def report(context: Context) -> FigureReport:
    """Report the published models, and tables drawn with their sizes and densities."""
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="drawn by communication/zen/synthetic.py, measured by communication/zen/sparsity.py",
        notes=(
            (
                "The datasets' own gradients are not there. Rows of each vocabulary are drawn by a Zipf law, "
                "as many as the published density says, without any value of this section being fitted but "
                "the exponents, of which 1.0 is the textbook's and 1.2 was chosen for two of them."
            ),
        ),
        rows=_rows(context),
        tables=(_models(), _densities(), _skews(), _overlaps()),
        drawings=(_densification_drawing(), _heatmap()),
        checks=_checks(),
    )


@cache
def union_densities(name: str) -> dict[int, float]:
    """Return the density of the sum over workers of a drawn table, by number of workers."""
    law = TABLES[name].measured_densification(WORKERS[1:])
    return {workers: law.after(workers) for workers in WORKERS}


@cache
def skews(name: str) -> dict[int, float]:
    """Return the skewness of one worker of a drawn table, by parts."""
    table = TABLES[name]
    indices = table.indices(0)
    return {parts: skewness(indices, table.elements, parts) for parts in PARTS}


@cache
def overlaps(name: str) -> tuple[float, ...]:
    """Return the overlaps of pairs of workers over iterations."""
    table = TABLES[name]
    found = []
    for iteration in range(ITERATIONS if table.rows < 100_000 else 2):
        drawn = [table.touched_rows(worker, iteration) for worker in range(PAIRS)]
        found += [overlap(one, other) for one, other in combinations(drawn, 2)]
    return tuple(found)


def _rows(context: Context) -> list[ModelRow]:
    how = "drawn by communication/zen/synthetic.py"
    bert, lstm = union_densities("BERT")[128], skews("LSTM")[128]
    return [
        row(
            context, NAME, "Density after 128 GPUs", "BERT", bert, how,
            why=(explaining.least_overlap(f"{bert:.3f} with 324 of 30,522 rows for each GPU"),),
        ),
        row(
            context, NAME, "Skewness, 128 parts", "LSTM", lstm, how,
            why=(explaining.least_overlap(f"{lstm:.0f} with an exponent of 1.2; over 70 is published"),),
        ),
    ]  # fmt: skip


def _models() -> Table:
    rows = tuple(
        (
            each.name, each.dataset, f"{each.mlp / 1e6:.0f} M", f"{each.embedding / 1e6:.0f} M",
            f"{each.batch}", f"{each.density:.2%}", f"{model.fitted_beta(each.name):.4f}",
            "end point" if each.name in model.END_POINTS else "fitted to its speedup",
        )
        for each in model.MODELS.values()
    )  # fmt: skip
    return Table(
        "Models (Table 3.1)",
        "Beta: of the densification law that the sections on embeddings and training compute with.",
        ("Model", "Dataset", "MLP", "Embedding", "Batch", "Density", "Beta", "Beta by"),
        rows,
    )


def _densities() -> Table:
    return Table(
        "Densification of drawn tables (Figure 3.1b)",
        "Density of the sum over that of one worker.",
        ("Table", *(f"{workers}" for workers in WORKERS)),
        tuple(
            (
                name,
                *(f"{density / union_densities(name)[1]:.2f}" for density in union_densities(name).values()),
            )
            for name in TABLES
        ),
    )


def _skews() -> Table:
    return Table(
        "Skewness of drawn tables (Figure 3.2b)",
        "Density of the fullest part over that of the tensor.",
        ("Table", *(f"{parts} parts" for parts in PARTS)),
        tuple((name, *(f"{ratio:.1f}" for ratio in skews(name).values())) for name in TABLES),
    )


def _overlaps() -> Table:
    rows = []
    for name in TABLES:
        found = overlaps(name)
        rows.append(
            (name, f"{fmean(found):.3f}", f"{pstdev(found):.3f}", f"{min(found):.3f}", f"{max(found):.3f}")
        )
    return Table(
        "Overlaps of pairs of drawn workers (Figure 3.1a)",
        "Independent draws spread less than real batches, whose topics differ.",
        ("Table", "Mean", "Deviation", "Least", "Most"),
        tuple(rows),
    )


def _densification_drawing() -> Drawing:
    figure = base_figure(height=340)
    for number, name in enumerate(TABLES):
        densities = union_densities(name)
        figure.add_trace(
            go.Scatter(
                x=list(densities),
                y=[density / densities[1] for density in densities.values()],
                name=name,
                mode="lines+markers",
                line={"color": PALETTE[number]},
            )
        )
    figure.add_trace(
        go.Scatter(x=list(WORKERS), y=list(WORKERS), name="no overlap", mode="lines", line={"dash": "dot"})
    )
    figure.update_xaxes(title_text="GPUs", type="log")
    figure.update_yaxes(title_text="densification ratio", type="log")
    return Drawing("zen-densification", "Densification by GPUs", "Drawn tables.", figure, wide=True)


def _heatmap() -> Drawing:
    figure = base_figure(height=260)
    shares = [
        (part_counts(table.indices(0), table.elements, 8) / table.touched).tolist()
        for table in TABLES.values()
    ]
    parts = [f"{part + 1}" for part in range(8)]
    figure.add_trace(go.Heatmap(z=shares, x=parts, y=list(TABLES), colorscale="Blues", zmin=0, zmax=1))
    figure.update_xaxes(title_text="part")
    return Drawing("zen-skew", "Share of non-zeros by part", "Eight contiguous parts.", figure)


def _checks() -> list[Check]:
    first = {
        name: float(part_counts(table.indices(0), table.elements, 8)[0] / table.touched)
        for name, table in TABLES.items()
    }
    ratios = {name: union_densities(name) for name in TABLES}
    rising = all(np.all(np.diff(list(each.values())) > 0) for each in ratios.values())
    below = all(each[n] < n * each[1] for each in ratios.values() for n in WORKERS[1:])
    growing = all(np.all(np.diff(list(skews(name).values())) >= 0) for name in TABLES)
    told = ", ".join(f"{name} {share:.0%}" for name, share in first.items())
    return [
        Check("Densification grows with GPUs, and stays below their number", rising and below, "128 workers"),
        Check("Over 60 % of non-zeros are in the first of eight parts", min(first.values()) > 0.6, told),
        Check("Skewness never shrinks as parts are added", bool(growing), "2 to 128 parts"),
        Check(
            "Overlaps vary between pairs",
            all(pstdev(overlaps(name)) > 0.0 for name in TABLES),
            ", ".join(f"{name} {fmean(overlaps(name)):.2f}" for name in TABLES),
        ),
    ]


FIGURE = FigureDefinition(NAME, "Characteristics of sparse gradients", False, runs, report)
