"""The planner's choices, and the throughput curve that admission would use: beyond the paper."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import plotly.graph_objects as go

from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape
from communication.zen.choosing import OperationTimes, TensorChoice, choose_scheme
from communication.zen.densification import Densification, beta_between
from communication.zen.profile import SparsityProfile
from communication.zen.schemes import Scheme
from communication.zen.throughput import CurvePoint, predicted_curve
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.runs import RunSpec
from research.zen import model
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "planning"
MACHINES = (1, 2, 4, 8, 16)
#: Machines, density, beta, expected winner.
POINTS = (
    (2, 0.0247, 0.66267, Scheme.AGSPARSE),
    (4, 0.0247, 0.66267, Scheme.ZEN),
    (16, 0.0247, 0.66267, Scheme.ZEN),
    (128, 0.0247, 0.66267, Scheme.ZEN),
    (16, 0.0106, 0.75235, Scheme.ZEN),
    (128, 0.0106, 0.75235, Scheme.ZEN),
    (4, 0.0001, 0.97, Scheme.SPARCML),
    (16, 0.6, 0.5, Scheme.DENSE),
    (2, 0.9, 0.1, Scheme.DENSE),
)
NVLINK_BYTES_PER_SECOND = 150e9


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: this is the planner itself."""
    return ()


def report(context: Context) -> FigureReport:
    """Report the winning schemes, and curves over machines with plans and with all-reduces."""
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="by communication/zen/choosing.py and throughput.py, the functions that the platform calls",
        notes=(
            (
                "The paper has no planner: it runs Zen everywhere. Ours asks every formula, charges the "
                "expected imbalance, and takes the fastest. With a fixed batch for each GPU, as in the "
                "paper; the platform keeps the global batch."
            ),
        ),
        tables=(_choices(), *(_curve_table(testbed) for testbed in (model.V100, model.A100))),
        drawings=(_drawing(),),
        checks=_checks(),
    )


@cache
def choice(machines: int, density: float, beta: float) -> TensorChoice:
    """Return the scheme for 112 million elements on machines with one GPU each, 25 Gbps."""
    profile = SparsityProfile("embedding", 112_000_000, 1, Densification(density, beta))
    return choose_scheme(profile, PlacementShape(machines, 1), _links(model.V100))


def _links(testbed: str) -> LinkProfile:
    rate = model.EFFICIENCY * model.BYTES_PER_SECOND[testbed]
    return LinkProfile(between=LinkRate(0.0, rate), within=LinkRate(0.0, NVLINK_BYTES_PER_SECOND))


@cache
def curve(name: str, testbed: str) -> tuple[CurvePoint, ...]:
    """Return throughput over machines of 8 GPUs; all computing precedes the embedding's gradient."""
    each = model.MODELS[name]
    elements = np.array([each.mlp, each.embedding]).astype(np.int64)
    seconds = model.compute_seconds(name, testbed)
    trained = ModelProfile(name, ("mlp", "embedding"), elements, np.array([0.0, 0.0]), seconds)
    law = Densification(each.density, model.fitted_beta(name))
    profile = SparsityProfile("embedding", int(each.embedding), 1, law, model.SKEW)
    placements = [PlacementShape(machines, model.GPUS) for machines in MACHINES]
    times = OperationTimes(fixed_seconds=model.HASH_SECONDS)
    return predicted_curve(
        name, trained, [profile], placements, _links(testbed), measured_workers=None, times=times
    )


def _choices() -> Table:
    rows = []
    for machines, density, beta, _expected in POINTS:
        found = choice(machines, density, beta)
        costs = sorted(found.costs, key=lambda cost: cost.seconds)
        dense = found.cost_of(Scheme.DENSE).seconds
        told = ", ".join(f"{cost.scheme} {cost.seconds / dense:.3f}" for cost in costs[:4])
        rows.append(
            (f"{machines}", f"{density:g}", f"{beta:.2f}", found.scheme.value, found.pull_format.value, told)
        )
    return Table(
        "Choices by machines, density and beta",
        "Time over dense of the four fastest. Between two machines SparCML sends what AGsparse sends.",
        ("Machines", "Density", "Beta", "Chosen", "Pull format", "Fastest"),
        tuple(rows),
    )  # fmt: skip


def _curve_table(testbed: str) -> Table:
    rows = []
    for name in model.MODELS:
        for point in curve(name, testbed):
            batch = model.MODELS[name].batch * point.workers
            rows.append(
                (
                    f"{name}, {point.workers}", point.plan.tensors[0].scheme.value,
                    f"{point.iterations_per_second * batch:,.0f}",
                    f"{point.dense_iterations_per_second * batch:,.0f}", f"{point.speedup:.2f}",
                )
            )  # fmt: skip
    return Table(
        f"Curves over GPUs, {testbed}",
        "Samples a second with the plan and with all-reduces alone.",
        ("Model, GPUs", "Scheme", "Planned", "All-reduce", "Speedup"),
        tuple(rows),
    )


def _drawing() -> Drawing:
    figure = base_figure(height=340)
    for number, name in enumerate(model.MODELS):
        points = curve(name, model.V100)
        one = points[0].iterations_per_second * points[0].workers
        for dense in (False, True):
            rates = [p.dense_iterations_per_second if dense else p.iterations_per_second for p in points]
            figure.add_trace(
                go.Scatter(
                    x=[point.workers for point in points],
                    y=[rate * point.workers / one for rate, point in zip(rates, points, strict=True)],
                    name=f"{name}, {'all-reduce' if dense else 'planned'}",
                    mode="lines+markers",
                    line={"color": PALETTE[number], "dash": "dash" if dense else "solid"},
                )
            )
    figure.update_xaxes(title_text="GPUs")
    figure.update_yaxes(title_text="throughput over one machine")
    return Drawing("zen-curves", "Scaling curves, 25 Gbps", "Dashed: all-reduces.", figure, wide=True)


def _checks() -> list[Check]:
    wrong = [
        f"{machines} machines, {density:g}: {choice(machines, density, beta).scheme}"
        for machines, density, beta, expected in POINTS
        if choice(machines, density, beta).scheme is not expected
    ]
    points = [
        point for name in model.MODELS for bed in (model.V100, model.A100) for point in curve(name, bed)
    ]
    lstm = curve("LSTM", model.V100)[-1].speedup
    beta = beta_between(model.NMT.density, 128, model.END_POINTS["NMT"])
    return [
        Check(
            "The planner takes the cheapest scheme", not wrong, "; ".join(wrong) or f"{len(POINTS)} points"
        ),
        Check(
            "A plan is never slower than all-reduces",
            all(point.speedup >= 1.0 for point in points),
            f"{len(points)} points, {min(point.speedup for point in points):.2f} to "
            f"{max(point.speedup for point in points):.2f}",
        ),
        Check(
            "LSTM on 16 machines at 25 Gbps: about three times the throughput",
            2.5 < lstm < 3.5,
            f"{lstm:.2f}",
        ),
        Check("NMT's beta is that of its end point", abs(beta - 0.66267) < 1e-5, f"{beta:.5f}"),
    ]


FIGURE = FigureDefinition(NAME, "The planner's choices and curves", False, runs, report)
