"""Sizes of pieces, and costs and gains of packing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import plotly.graph_objects as go

from moe.lina.calibration import CALIBRATED
from moe.lina.packing import ExpertPacking, PackingController, StepTimes
from moe.lina.training_step import BASELINE, PARTITION, PIPELINING, StepModel, simulate_step
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.lina import explaining, model, published
from research.model_rows import ModelRow, row
from research.runs import RunSpec
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "packing"
HOW = "moe/lina/training_step.py with fitted times"
#: Sizes of pieces; PIECE stands for the published 30 MB.
PIECE = 0.14
PIECES = (0.02, 0.035, 0.07, PIECE, 0.28, 0.42, 0.84)
PIECES_SPECIFIED = (1.29, 1.32, 1.35, 1.35, 1.35, 1.30, 1.30)
OVERHEADS = (0.01, 0.02)
#: All-reduce of a layer's expert gradients, and the gains by the reference program.
WORKS = (0.0, 0.43, 0.86, 1.72)
WORKS_SPECIFIED = {2: (1.95, 1.67, 1.46, 1.16), 16: (1.73, 1.60, 1.47, 1.29)}
#: Experts and the published packing factor of each model; the sizes of the last two are assumed.
PUBLISHED_FACTORS = {"Transformer-XL": (16, 4), "GPT-2": (8, 2), "BERT2GPT2": (8, 2)}


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: everything is simulated at once."""
    return ()


def report(context: Context) -> FigureReport:
    """Report gains by size of pieces, by packing factor and by expert gradients."""
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="simulated by moe/lina/training_step.py; factors chosen by moe/lina/packing.py",
        notes=(
            (
                f"A piece of {PIECE:g} stands for the published 30 MB. Packing makes all-to-alls smaller and "
                "all-reduces of expert gradients necessary; their volume is not published. GPU utilisation "
                "and memory are not modelled."
            ),
        ),
        rows=_rows(context),
        tables=(_pieces_table(), _works_table(), _factors_table(), _not_modelled_table()),
        drawings=(_drawing(),),
        checks=_checks(),
    )


def gain_with_pieces(piece: float, overhead: float) -> float:
    """Return the gain of partition without packing, for 16 experts."""
    changed = replace(CALIBRATED, piece=piece, overhead=overhead)
    return _over_baseline(changed, 16, simulate_step(changed, 16, PARTITION).total)


def gain_with_expert_gradients(work: float, experts: int) -> float:
    """Return the gain of Lina if expert gradients take `work` per layer."""
    changed = replace(CALIBRATED, expert_gradients=work)
    packed = simulate_step(changed, experts // model.PACKING_FACTOR, PIPELINING, is_packed=True)
    return _over_baseline(changed, experts, packed.total)


def _over_baseline(changed: StepModel, experts: int, total: float) -> float:
    return simulate_step(changed, experts, BASELINE).total / total


def choose_factor(experts: int) -> int:
    """Return the factor at which the controller stops on the fitted times, with one expert per device."""
    controller = PackingController(ExpertPacking(experts, experts))
    pieces = CALIBRATED.pieces
    for iteration in range(60):
        packing = controller.packing
        total = model.step(model.LINA, experts, factor=packing.factor).total
        all_to_all = CALIBRATED.all_to_all[packing.group_size] / pieces
        controller.after_step(iteration, StepTimes(CALIBRATED.expert / pieces, all_to_all, total))
    return controller.packing.factor


def _rows(context: Context) -> list[ModelRow]:
    rows = [
        row(
            context, NAME, "Communication longer in pieces, %", published.MEAN,
            published.mean([100 * _overhead_share(size) for size in model.SIZES]), HOW, unit="%",
            calibrated=True, why=(explaining.one_model("the overhead of an operation is fitted"),),
        )
    ]  # fmt: skip
    for name, (experts, factor) in PUBLISHED_FACTORS.items():
        for series, group in ((published.UNPACKED, experts), (published.PACKED, experts // factor)):
            value = CALIBRATED.expert / CALIBRATED.all_to_all[group]
            why = (
                explaining.one_model(
                    f"{value:.2f} with {experts} experts: the fitted all-to-alls of smaller groups shrink by "
                    "less than the published efficiencies imply"
                ),
            )
            rows.append(row(context, NAME, series, name, value, "ratio of fitted times", why=why))
    return rows


def _overhead_share(experts: int) -> float:
    """Return the overhead of all pieces over the work of all communication, without packing."""
    times = CALIBRATED
    all_to_alls = 4 * times.layers * times.all_to_all[experts]
    pieces = simulate_step(times, experts, PIPELINING)
    operations = len(pieces.all_reduce_ends) + 4 * times.layers * times.pieces
    whole = all_to_alls + times.layers * times.gradients
    return operations * times.overhead / whole


def _pieces_table() -> Table:
    return Table(
        "Speed-up by size of pieces, 16 experts, unpacked",
        "The overhead is added to each operation.",
        ("Piece", "Stands for", *(f"overhead {overhead:g}" for overhead in OVERHEADS)),
        tuple(
            (
                f"{piece:g}", f"{30 * piece / PIECE:.0f} MB",
                *(f"{gain_with_pieces(piece, overhead):.2f}" for overhead in OVERHEADS),
            )
            for piece in PIECES
        ),
    )  # fmt: skip


def _works_table() -> Table:
    sizes = tuple(WORKS_SPECIFIED)
    return Table(
        "Speed-up by the all-reduce of expert gradients",
        "Per layer, in the unit in which its other gradients take 0.84.",
        ("Work", *(published.size(size) for size in sizes)),
        tuple(
            (f"{work:g}", *(f"{gain_with_expert_gradients(work, size):.2f}" for size in sizes))
            for work in WORKS
        ),
    )


def _factors_table() -> Table:
    factors = (1, 2, 4, 8, 16)
    return Table(
        "Speed-up of Lina by packing factor",
        "The volume of expert gradients is the fitted one for every factor. The paper chose 2, and 4 for "
        "Transformer-XL with 16 experts.",
        ("Experts", *(f"factor {factor}" for factor in factors), "Controller"),
        tuple(
            (
                str(size),
                *(
                    f"{model.gain(model.LINA, size, factor=factor):.2f}" if factor <= size else ""
                    for factor in factors
                ),
                str(choose_factor(size)),
            )
            for size in model.SIZES
        ),
    )


def _not_modelled_table() -> Table:
    rows = tuple(
        (name, *(f"{value:g}" for value in (*published.UTILISATIONS[name], *published.MEMORY[name])))
        for name in published.UTILISATIONS
    )
    return Table(
        "Published, not modelled: GPU utilisation and peak memory, %",
        "Before and after packing. The first two models keep unused experts in host memory.",
        ("Model", "Utilisation before", "after", "Memory before", "after, with Lina"),
        rows,
    )


def _drawing() -> Drawing:
    figure = base_figure(height=320)
    for number, overhead in enumerate(OVERHEADS):
        figure.add_trace(
            go.Scatter(
                x=list(PIECES),
                y=[gain_with_pieces(piece, overhead) for piece in PIECES],
                name=f"overhead {overhead:g}",
                mode="lines+markers",
                line={"color": PALETTE[number]},
            )
        )
    figure.update_xaxes(title_text="piece", type="log")
    figure.update_yaxes(title_text="speed-up over the baseline")
    return Drawing("lina-pieces", "Sizes of pieces", "A hump, as published.", figure)


def _checks() -> list[Check]:
    curve = [gain_with_pieces(piece, OVERHEADS[0]) for piece in PIECES]
    prices = {
        size: [gain_with_expert_gradients(work, size) for work in WORKS] for size in WORKS_SPECIFIED
    }  # fmt: skip
    apart = [abs(found - expected) for found, expected in zip(curve, PIECES_SPECIFIED, strict=True)]
    for size, expected in WORKS_SPECIFIED.items():
        apart += [abs(found - one) for found, one in zip(prices[size], expected, strict=True)]
    apart.append(abs(gain_with_pieces(PIECES[0], OVERHEADS[1]) - 1.21))
    small, large = gain_with_pieces(PIECES[0], OVERHEADS[0]), gain_with_pieces(0.42, OVERHEADS[0])
    usual = gain_with_pieces(PIECE, OVERHEADS[0])
    return [
        Check(
            "Both curves equal those of the reference program within 0.01",
            max(apart) <= 0.01,
            f"at most {max(apart):.4f} off",
        ),
        Check(
            "Pieces of 4 MB and of 90 MB gain less than 30 MB",
            max(small, large) < usual - 0.03,
            f"{small:.2f}, {large:.2f}; {usual:.2f}",
        ),
        Check(
            "Larger expert gradients make packing gain less",
            all(values == sorted(values, reverse=True) for values in prices.values()),
            ", ".join(f"{value:.2f}" for value in prices[16]),
        ),
        Check(
            "The controller never takes a factor that lengthens the step",
            all(
                model.gain(model.LINA, size, factor=choose_factor(size)) >= model.gain("pipelining", size)
                for size in model.SIZES
            ),
            ", ".join(str(choose_factor(size)) for size in model.SIZES),
        ),
    ]


FIGURE = FigureDefinition(NAME, "Pieces and packing", False, runs, report)
