"""Curves over numbers of workers and over shares of a link, which admission uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import plotly.graph_objects as go

from communication.cupcake.plan import plan_fusion
from communication.cupcake.worker_counts import CurvePoint, fusion_curve
from communication.library.codecs import gpu_codec
from communication.profiles.placement import PlacementShape
from research.cupcake.model import CODECS, EIGHT_SERVERS, PUBLISHED_MODEL, profile
from research.cupcake.published import NAMES
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.runs import RunSpec
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "workers"
SERVERS = (1, 2, 4, 8, 16)
SHARES = (1.0, 0.5, 0.25, 0.1)


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: everything is computed."""
    return ()


def report(context: Context) -> FigureReport:
    """Report plans by workers and by share of the link."""
    curves = {model: _curve(model) for model in NAMES}
    least = min(point.speedup for curve in curves.values() for point in curve)
    return FigureReport(
        name=NAME,
        title=FIGURE.title,
        made="planned by communication/cupcake/worker_counts.py for servers of 8 GPUs with NVLink",
        notes=("Each worker has as many samples wherever it is, so that compute times stay.",),
        tables=(_workers_table(curves), _shares_table()),
        drawings=(_drawing(curves),),
        checks=(
            Check(
                "No number of workers is slower than dense training",
                least >= 1.0 - 1e-9,
                f"{sum(map(len, curves.values()))} compared, {least:.3f} the least speedup",
            ),
        ),
    )


def _curve(model: str) -> list[CurvePoint]:
    placements = [PlacementShape(count, 8) for count in SERVERS]
    codecs = [gpu_codec(codec) for codec in CODECS]
    return fusion_curve(profile(model), placements, EIGHT_SERVERS.link, codecs, PUBLISHED_MODEL)


def _workers_table(curves: dict[str, list[CurvePoint]]) -> Table:
    rows = tuple(
        (
            model,
            f"{point.workers}",
            point.plan.codec,
            f"{len(point.plan.boundaries)}",
            f"{point.compute_seconds / point.dense_seconds:.3f}",
            f"{point.scaling_factor:.3f}",
            f"{point.speedup:.2f}",
        )
        for model, curve in curves.items()
        for point in curve
    )
    return Table(
        "The fastest plan by number of workers",
        "Scaling factors without compression and with the plan; `none` fuses without a codec.",
        ("Model", "Workers", "Codec", "Groups", "FP32", "Plan", "Speedup"),
        rows,
    )


def _shares_table() -> Table:
    codecs = [gpu_codec("dgc")]
    rows = []
    for model in NAMES:
        for share in SHARES:
            link = replace(EIGHT_SERVERS.link, share=share)
            plan = plan_fusion(profile(model), EIGHT_SERVERS.placement, link, codecs, PUBLISHED_MODEL)
            ends = ", ".join(str(one) for one in plan.boundaries)
            milliseconds = plan.predicted.iteration_seconds * 1e3
            rows.append((model, f"{share:.0%}", plan.codec, f"{milliseconds:.1f} ms", ends))
    return Table(
        "The plan by the share of the link that a placement leaves",
        "DGC or none, on eight servers. Boundaries: for each group one more than its last tensor.",
        ("Model", "Share", "Codec", "Iteration", "Boundaries"),
        tuple(rows),
    )


def _drawing(curves: dict[str, list[CurvePoint]]) -> Drawing:
    figure = base_figure(height=360)
    for number, (model, curve) in enumerate(curves.items()):
        for planned in (True, False):
            name = f"{model}, {'plan' if planned else 'FP32'}"
            values = [
                point.scaling_factor if planned else point.compute_seconds / point.dense_seconds
                for point in curve
            ]
            figure.add_trace(
                go.Scatter(
                    x=[point.workers for point in curve],
                    y=values,
                    mode="lines+markers",
                    name=name,
                    line={"color": PALETTE[number], "dash": "solid" if planned else "dash"},
                    hovertemplate=f"%{{x}} workers: %{{y:.3f}}<extra>{name}</extra>",
                )
            )
    figure.update_xaxes(title_text="workers", type="log")
    figure.update_yaxes(title_text="scaling factor", range=[0, 1.02])
    note = "The fastest of four codecs and none, beside the framework's best bucket size."
    return Drawing("cupcake-workers", "Scaling factor by workers", note, figure, wide=True)


FIGURE = FigureDefinition(NAME, "Plans by workers and share of a link", False, runs, report)
