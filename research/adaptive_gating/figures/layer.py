"""Time of an MoE layer by two-expert share (Table 5.1), beside the rows that it computes and sends."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from moe.gating.flops import share_of_top2
from moe.gating.timing import layer_time
from research.adaptive_gating import explaining
from research.adaptive_gating.published import LAYER, LAYER_TIMES, share_place
from research.figure import Check, Context, FigureDefinition, FigureReport
from research.model_rows import ModelRow, row
from research.runs import RunSpec
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "layer"
HOW = "moe/gating/flops.py: rows computed and sent, (1 + r) / 2"


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: everything is computed."""
    return ()


def report(context: Context) -> FigureReport:
    """Report the measured times beside the rows."""
    return FigureReport(
        name=NAME,
        title=FIGURE.title,
        made="computed by moe/gating",
        notes=(
            (
                "All other figures turn two-expert shares into times by straight lines through the published "
                "times. Rows alone would save more."
            ),
        ),
        rows=[_row(context, share) for share in LAYER_TIMES],
        drawings=(_drawing(),),
        checks=(
            Check(
                "No published time is less than its rows",
                all(time >= share_of_top2(share) - 1e-9 for share, time in LAYER_TIMES.items()),
                "five shares",
            ),
            Check(
                "The law passes through all published times",
                all(abs(float(layer_time(share)) - time) < 1e-9 for share, time in LAYER_TIMES.items()),
                "five shares",
            ),
        ),
    )


def _row(context: Context, share: float) -> ModelRow:
    rows = share_of_top2(share)
    why = (explaining.besides_experts(f"rows {rows:.2f}, published time {LAYER_TIMES[share]:.2f}"),)
    return row(context, NAME, LAYER, share_place(share), rows, HOW, why=why)


def _drawing() -> Drawing:
    figure = base_figure(height=340)
    shares = list(LAYER_TIMES)
    series = {
        "published": list(LAYER_TIMES.values()),
        "rows computed and sent": [share_of_top2(share) for share in shares],
    }
    for number, (name, values) in enumerate(series.items()):
        figure.add_trace(
            go.Scatter(x=shares, y=values, name=name, mode="lines+markers", line={"color": PALETTE[number]})
        )
    figure.update_xaxes(title_text="two-expert share", tickformat=".0%")
    figure.update_yaxes(title_text="time over top-2")
    return Drawing("adaptive-gating-layer", "Layer time by two-expert share", "Table 5.1.", figure)


FIGURE = FigureDefinition(NAME, "Time of an MoE layer by two-expert share", False, runs, report)
