"""Inference (Table 6), and the ring of device memory."""

from __future__ import annotations

from collections.abc import Sequence

from moe.moesys.ring import (
    fewest_sections,
    first_pass_seconds,
    period_seconds,
    spread_layers,
    without_overlap_seconds,
)
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.model_rows import ModelRow, row
from research.moesys import model
from research.moesys.published import TABLE_6
from research.runs import RunSpec

NAME = "inference"
SECTIONS = (2, 4, 8, 12)
#: Compute times of a layer.
COMPUTE_MILLISECONDS = (4, 6, 8, 10, 11, 12, 13)
LAYERS = model.RING_SHAPE.layers


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: closed forms and a recurrence."""
    return ()


def report(context: Context) -> FigureReport:
    """Report factors of Table 6, and what the ring saves and costs."""
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="by moe/moesys/ring.py; Table 6 is three factors, one for each of its rows",
        notes=(
            (
                "The ring's model has 58.2 billion parameters, and none of its layers is published. A "
                "stand-in of 59.0 billion has 24 layers, 32 experts and a width of 3,072, and 2 GB of "
                "activations."
            ),
        ),
        rows=_rows(context),
        tables=(_ring(), _sections()),
        checks=_checks(),
    )


def _rows(context: Context) -> list[ModelRow]:
    product = 1.0
    rows = []
    for (billions, gpus), factor in zip(TABLE_6, model.inference_factors(), strict=True):
        product *= factor
        x, how = f"{billions:g} B, {gpus} GPUs", "kernels, inside a server, across servers"
        rows.append(row(context, NAME, "MoESys over DeepSpeed", x, product, how, calibrated=True))
    series, x = "Memory that the ring saves, at least", "58.2 B, 16 GPUs"
    saving = model.ring_memory(SECTIONS[-1]).saving
    rows.append(row(context, NAME, series, x, saving, "12 of 24 layers on the device"))
    return rows


def _load_seconds() -> float:
    return model.ring_memory(2).layer_bytes / model.HOST


def _ring() -> Table:
    load = _load_seconds()
    rows = []
    for sections in SECTIONS:
        for compute in (0.006, load, 0.013):
            resident = LAYERS * compute
            times = (
                first_pass_seconds(LAYERS, sections, compute, load),
                without_overlap_seconds(LAYERS, sections, compute, load),
                period_seconds(LAYERS, sections, compute, load, spread_layers(LAYERS, sections)),
            )
            rows.append(
                (
                    f"{sections} of {LAYERS}, {1000 * compute:.1f} ms",
                    f"{model.ring_memory(sections).saving:.1%}",
                    *(f"{seconds / resident:.2f}" for seconds in times),
                )
            )
    return Table(
        f"The ring over all layers on the device, {1000 * load:.1f} ms to load one",
        "By layers on the device and compute of one: memory saved, and time over that of a resident model: "
        "of the first pass, without overlap, and after many passes with spread layers.",
        ("Layers, compute", "Saved", "First pass", "Without overlap", "Spread, steady"),
        tuple(rows),
    )


def _sections() -> Table:
    load = _load_seconds()
    return Table(
        "Sections with which a first pass waits for nothing",
        "By compute of a layer.",
        ("Compute, ms", "Sections"),
        tuple((f"{ms}", f"{fewest_sections(LAYERS, ms / 1000, load)}") for ms in COMPUTE_MILLISECONDS),
    )


def _checks() -> list[Check]:
    load = _load_seconds()
    saved = [model.ring_memory(sections).saving for sections in SECTIONS]
    slowest = max(
        first_pass_seconds(LAYERS, sections, load * times, load) / (LAYERS * load * times)
        for sections in SECTIONS
        for times in (1.0, 1.2, 2.0)
    )
    plain = [period_seconds(LAYERS, sections, load / 3, load) for sections in SECTIONS]
    spread = [
        period_seconds(LAYERS, sections, load / 3, load, spread_layers(LAYERS, sections))
        for sections in SECTIONS
    ]
    no_slower = all(one <= other * (1 + 1e-9) for one, other in zip(spread, plain, strict=True))
    return [
        Check(
            "Up to half of the layers on the device save 30 %",
            min(saved) >= 0.30,
            f"{min(saved):.1%} to {max(saved):.1%}",
        ),
        Check(
            "If loading is no slower than computing a pass takes at most 1.05 times as long",
            slowest <= 1.05,
            f"{slowest:.3f}",
        ),
        Check(
            "Spread layers are never slower than the plain ring", no_slower, "loading takes thrice as long"
        ),
    ]


FIGURE = FigureDefinition(NAME, "Inference and the ring", False, runs, report)
