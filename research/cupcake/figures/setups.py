"""Scaling factors and advantages of Cupcake on one server and on eight (the headline ratios)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import plotly.graph_objects as go

from communication.cupcake.baselines import FP32, GRACE, HIPRESS
from communication.cupcake.plan import plan_fusion
from communication.library.codecs import gpu_codec
from research.cupcake import explaining
from research.cupcake.model import (
    CODECS,
    CUPCAKE,
    EIGHT_SERVERS,
    ONE_SERVER,
    PUBLISHED_MODEL,
    VARIANTS,
    Setup,
    evaluated,
    largest,
    profile,
)
from research.cupcake.published import NAMES
from research.figure import Check, Context, FigureDefinition, FigureReport, Table, within
from research.model_rows import ModelRow, row
from research.rows import Explanation
from research.runs import RunSpec
from simulation.reports.style import PALETTE, Drawing, base_figure

SHOWN = (FP32, GRACE, HIPRESS, CUPCAKE)
#: Scaling factors of FP32, GRACE, HiPress and Cupcake on one server, by the independent reference program
#: (docs/reproduction/README.md).
SPECIFIED = {
    ("ResNet50", "random-k"): (0.485, 0.764, 0.910, 0.953),
    ("ResNet50", "dgc"): (0.485, 0.424, 0.759, 0.829),
    ("ResNet50", "ef-signsgd"): (0.485, 0.515, 0.811, 0.873),
    ("ResNet50", "onebit"): (0.485, 0.317, 0.689, 0.754),
    ("ResNet101", "dgc"): (0.878, 0.596, 0.840, 0.915),
    ("ResNet101", "onebit"): (0.878, 0.481, 0.775, 0.872),
    ("BERT-base", "random-k"): (0.537, 0.902, 0.938, 0.945),
    ("BERT-base", "dgc"): (0.537, 0.715, 0.825, 0.848),
    ("BERT-base", "onebit"): (0.537, 0.612, 0.749, 0.779),
}


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: everything is computed."""
    return ()


def report(setup: Setup, context: Context) -> FigureReport:
    """Report ratios beside the published ones, and scaling factors of every model and codec."""
    one_server = setup is ONE_SERVER
    fitted = (
        "PCIe's 2.2 GB/s are fitted to FP32's published scaling of ResNet50"
        if one_server
        else "2.46 GB/s of 25 Gbps are fitted to the published ratio over FP32 for ResNet50"
    )
    return FigureReport(
        name=setup.name,
        title=setup.title,
        made="planned by communication/cupcake with measured tensors and published codec times",
        notes=(
            (
                f"{fitted}; lengths of forward and backward pass are estimates. Ratios are the largest over "
                "four codecs, as the text tells them."
            ),
        ),
        rows=_rows(setup, context),
        tables=(_scaling_table(setup), _variants_table(setup)),
        drawings=(_drawing(setup),),
        checks=(*(_own_checks() if one_server else ()), _never_slower(setup)),
    )


def _rows(setup: Setup, context: Context) -> list[ModelRow]:
    how = "communication/cupcake/plan.py, the largest over four codecs"
    rows = []
    if setup is ONE_SERVER:
        value = evaluated(setup, "ResNet50", "dgc").scaling(FP32)
        rows.append(
            row(
                context, setup.name, "FP32, scaling factor", "ResNet50", value, "the best bucket size",
                shares=True, calibrated=True, why=(explaining.rounded(f"{value:.3f}"),),
            )
        )  # fmt: skip
    for series, name in (("over FP32", FP32), ("over GRACE", GRACE), ("over HiPress", HIPRESS)):
        for model in NAMES:
            if context.published.get(setup.name, series, model) is None:
                continue
            fitted = setup is EIGHT_SERVERS and (name, model) == (FP32, "ResNet50")
            value = largest(setup, model, name)
            rows.append(
                row(
                    context, setup.name, series, model, value, how, calibrated=fitted,
                    why=_causes(setup, model, name, value),
                )
            )  # fmt: skip
    return rows


def _causes(setup: Setup, model: str, name: str, value: float) -> tuple[Explanation, ...]:
    if name == FP32:
        scaling = evaluated(setup, model, CODECS[0]).scaling(FP32)
        told = f"{value:.2f} with FP32 at a scaling factor of {scaling:.2f}"
        return explaining.compute_unknown(told), explaining.one_bandwidth(told)
    both = largest(setup, model, name, VARIANTS["both"])
    told = f"{value:.2f}; {both:.2f} with 0.15 ms for each call and every payload decoded by itself"
    return explaining.no_framework(told), explaining.compute_unknown(told)


def _scaling_table(setup: Setup) -> Table:
    rows = []
    for model in NAMES:
        for codec in CODECS:
            found = evaluated(setup, model, codec)
            rows.append(
                (
                    model,
                    codec,
                    *(f"{found.scaling(name):.3f}" for name in SHOWN),
                    *(f"{found.over(name):.2f}" for name in SHOWN[:-1]),
                    f"{found.groups}",
                )
            )
    return Table(
        "Scaling factors, and how much faster Cupcake is",
        "Of one codec each; the platform takes none where that is faster. Groups: of Cupcake's plan.",
        ("Model", "Codec", *SHOWN, *(f"over {name}" for name in SHOWN[:-1]), "Groups"),
        tuple(rows),
    )


def _variants_table(setup: Setup) -> Table:
    rows = tuple(
        (model, variant, *(f"{largest(setup, model, name, settings):.2f}" for name in SHOWN[:-1]))
        for model in NAMES
        for variant, settings in VARIANTS.items()
    )
    return Table(
        "What the published model leaves out",
        "Largest ratios over four codecs, with 0.15 ms of the host for each collective, and with every "
        "payload of a gathered group decoded by itself, as the public code does.",
        ("Model", "Variant", *(f"over {name}" for name in SHOWN[:-1])),
        rows,
    )


def _own_checks() -> list[Check]:
    worst = max(
        abs(evaluated(ONE_SERVER, *cell).scaling(name) - value)
        for cell, values in SPECIFIED.items()
        for name, value in zip(SHOWN, values, strict=True)
    )
    grace, fp32 = (evaluated(ONE_SERVER, "ResNet50", "dgc").scaling(name) for name in (GRACE, FP32))
    return [
        Check(
            "Scaling factors equal those of the independent reference program",
            worst <= 0.0006,
            f"{4 * len(SPECIFIED)} compared, {worst:.4f} apart at most",
        ),
        Check("GRACE is below FP32 for DGC on ResNet50", grace < fp32, f"{grace:.3f} and {fp32:.3f}"),
        within("Cupcake over FP32 on ResNet50, within 20 %", _over("ResNet50"), 1.72, 0.2 * 1.72, ".2f"),
        within("Cupcake over FP32 on BERT-base, within 20 %", _over("BERT-base"), 1.65, 0.2 * 1.65, ".2f"),
    ]


def _over(model: str) -> float:
    return largest(ONE_SERVER, model, FP32)


def _never_slower(setup: Setup) -> Check:
    """Compare the platform's plan, with or without a codec, with all baselines under each codec."""
    codecs = [gpu_codec(codec) for codec in CODECS]
    least = 9.0
    for model in NAMES:
        plan = plan_fusion(profile(model), setup.placement, setup.link, codecs, PUBLISHED_MODEL)
        for codec in CODECS:
            seconds = evaluated(setup, model, codec).seconds.values()
            least = min(least, min(seconds) / plan.predicted.iteration_seconds)
    name = "Cupcake's plan is the fastest of all on every model, with every codec"
    return Check(name, least >= 1.0 - 1e-9, f"the nearest one takes {least:.3f} times as long")


def _drawing(setup: Setup) -> Drawing:
    figure = base_figure(height=380)
    places = [f"{model}, {codec}" for model in NAMES for codec in CODECS]
    for number, name in enumerate(SHOWN):
        values = [evaluated(setup, model, codec).scaling(name) for model in NAMES for codec in CODECS]
        figure.add_trace(
            go.Bar(
                x=places,
                y=values,
                name=name,
                marker_color=PALETTE[number],
                hovertemplate=f"%{{x}}: %{{y:.3f}}<extra>{name}</extra>",
            )
        )
    figure.update_yaxes(title_text="scaling factor", range=[0, 1])
    note = "An iteration on one GPU over one here; 1 where communication costs nothing."
    return Drawing(f"cupcake-{setup.name}", "Scaling factors by model and codec", note, figure, wide=True)


FIGURES = tuple(
    FigureDefinition(setup.name, setup.title, False, runs, partial(report, setup))
    for setup in (ONE_SERVER, EIGHT_SERVERS)
)
