"""Formats of sparse tensors: sizes by density (Figure 3.17)."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from communication.zen.formats import Format, relative_size, smallest_format
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.model_rows import ModelRow, row
from research.runs import RunSpec
from research.zen import explaining, model
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "formats"
SERVERS = 16
DENSITIES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
DEEPFM_MB = 856.0


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: this is arithmetic."""
    return ()


def report(context: Context) -> FigureReport:
    """Report sizes over the dense tensor with 16 servers."""
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="computed by communication/zen/formats.py",
        rows=_rows(context),
        tables=(_table(),),
        drawings=(_drawing(),),
        checks=_checks(),
    )


def _rows(context: Context) -> list[ModelRow]:
    how = "communication/zen/formats.py"
    density = model.END_POINTS["BERT"]
    values, coo = 1.0 / density, 1.0 / relative_size(Format.COO, density)
    return [
        row(
            context, NAME, "Hash bitmaps, MB", "856 MB",
            DEEPFM_MB * relative_size(Format.HASH_BITMAP, 0.0, SERVERS), how,
        ),
        row(
            context, NAME, "Bitmaps of 16 servers, MB", "856 MB",
            DEEPFM_MB * relative_size(Format.BITMAP, 0.0, SERVERS), how,
        ),
        row(
            context, NAME, "Dense over values", "BERT, 128 GPUs", values, how,
            why=(explaining.rounded(f"{values:.2f}"),),
        ),
        row(
            context, NAME, "Dense over COO", "BERT, 128 GPUs", coo, how,
            why=(explaining.rounded(f"{coo:.2f}"),),
        ),
    ]  # fmt: skip


def _table() -> Table:
    return Table(
        "Sizes over the dense tensor, 16 servers (Figure 3.17)",
        "Blocks of 256 values, non-zeros at random, which is the worst for blocks.",
        ("Density", *(form.value for form in Format), "chosen"),
        tuple(
            (
                f"{density:.0%}",
                *(f"{relative_size(form, density, SERVERS):.3f}" for form in Format),
                smallest_format(density).value,
            )
            for density in DENSITIES
        ),
    )


def _drawing() -> Drawing:
    figure = base_figure(height=340)
    for number, form in enumerate(Format):
        figure.add_trace(
            go.Scatter(
                x=list(DENSITIES),
                y=[relative_size(form, density, SERVERS) for density in DENSITIES],
                name=form.value,
                mode="lines",
                line={"color": PALETTE[number]},
            )
        )
    figure.update_xaxes(title_text="density after aggregation", tickformat=".0%")
    figure.update_yaxes(title_text="size over dense")
    return Drawing("zen-formats", "Formats by density", "16 servers.", figure, wide=True)


def _checks() -> list[Check]:
    at_95 = [relative_size(form, 0.95, SERVERS) for form in (Format.HASH_BITMAP, Format.COO, Format.BITMAP)]
    at_half = [relative_size(form, 0.5, SERVERS) for form in (Format.COO, Format.BITMAP)]
    gaps = [
        relative_size(Format.COO, density) - relative_size(Format.HASH_BITMAP, density)
        for density in DENSITIES
    ]
    return [
        Check(
            "At a density of 95 % the hash bitmap alone is smaller than dense",
            at_95[0] < 1.0 < min(at_95[1:]),
            ", ".join(f"{size:.5g}" for size in at_95),
        ),
        Check("Above 50 % COO and plain bitmaps save nothing", min(at_half) >= 1.0, "both are 1 at 50 %"),
        Check(
            "The gap between COO and hash bitmaps grows with density",
            gaps == sorted(gaps),
            f"{gaps[-1]:.2f} at 100 %",
        ),
    ]


FIGURE = FigureDefinition(NAME, "Formats of sparse tensors", False, runs, report)
