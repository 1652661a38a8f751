"""The cost of lost gradients: training with Zen, all-reduce and the strawman (Figure 3.14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.runs import RunSpec
from research.store import RunResult
from research.zen.specs import TrainingSpec
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "accuracy"
MEMORIES = (1.0, 2.0, 8.0)
SHORT_STEPS, FULL_STEPS = 400, 1600
Found = Mapping[TrainingSpec, RunResult]


def runs(full: bool) -> Sequence[RunSpec]:
    """Return runs of dense, Zen, and the strawman with each memory."""
    return _specs(full)


def _specs(full: bool) -> list[TrainingSpec]:
    steps = FULL_STEPS if full else SHORT_STEPS
    return [
        TrainingSpec(scheme, memory, steps, seed)
        for seed in range(3 if full else 1)
        for scheme, memory in (("dense", 0.0), ("zen", 0.0), *(("strawman", each) for each in MEMORIES))
    ]


def report(context: Context) -> FigureReport:
    """Report loss curves by scheme."""
    asked = {spec: context.get(spec) for spec in _specs(context.full)}
    found = {spec: result for spec, result in asked.items() if result is not None}
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="trained by research/zen/two_towers.py, exchanged in memory",
        notes=(
            (
                "DeepFM on Criteo is not repeated. A small recommender of two towers on synthetic clicks is "
                "trained by four workers in memory, whose gradients are added up by the exchange under test; "
                "no published value stands beside it. Memory is told in slots for each non-zero."
            ),
        ),
        tables=(_table(found),),
        drawings=(_drawing(found),),
        checks=_checks(found, len(asked)),
    )


def _behind(found: Found, spec: TrainingSpec) -> float | None:
    """Return by how much the loss is above dense's, on average over the second half of the steps."""
    dense = found.get(TrainingSpec("dense", 0.0, spec.steps, spec.seed))
    mine = found.get(spec)
    if dense is None or mine is None:
        return None
    late = slice(spec.steps // 2, None)
    pairs = zip(mine.series["losses"][late], dense.series["losses"][late], strict=True)
    gaps = [one - other for one, other in pairs]
    return sum(gaps) / len(gaps)


def _table(found: Found) -> Table:
    rows = []
    for spec, result in found.items():
        behind = _behind(found, spec)
        rows.append(
            (
                spec.name, f"{spec.seed}", f"{result.facts['lost_share']:.1%}",
                f"{result.summary['loss']:.4f}", "–" if behind is None else f"{behind:+.4f}",
            )
        )  # fmt: skip
    return Table(
        "Loss after training",
        "Over dense: mean over the second half of the steps.",
        ("Scheme", "Seed", "Gradients lost", "Loss", "Over dense"),
        tuple(rows),
    )


def _drawing(found: Found) -> Drawing:
    title, note = "Loss by steps", "Held-out clicks, first seed. Zen lies on dense."
    figure = base_figure(height=340)
    for number, (spec, result) in enumerate(one for one in found.items() if one[0].seed == 0):
        figure.add_trace(
            go.Scatter(
                y=result.series["losses"],
                name=spec.name,
                mode="lines",
                line={"color": PALETTE[number], "dash": "dash" if spec.scheme == "zen" else "solid"},
            )
        )
    figure.update_xaxes(title_text="steps")
    figure.update_yaxes(title_text="cross-entropy")
    return Drawing("zen-accuracy", title, note, figure, wide=True)


def _checks(found: Found, asked: int) -> list[Check]:
    complete = len(found) == asked
    seeds = sorted({spec.seed for spec in found})
    steps = max((spec.steps for spec in found), default=0)
    zen = [
        found[TrainingSpec("zen", 0.0, steps, seed)].series["losses"]
        == found[TrainingSpec("dense", 0.0, steps, seed)].series["losses"]
        for seed in seeds
        if complete
    ]
    behind = [
        [_behind(found, TrainingSpec("strawman", memory, steps, seed)) or 0.0 for memory in MEMORIES]
        for seed in seeds
        if complete
    ]
    told = "not run"
    if complete:
        told = "; ".join(", ".join(f"{gap:+.4f}" for gap in gaps) for gaps in behind)
    return [
        Check(
            "Zen's losses are those of dense, bit for bit",
            all(zen) if complete else None,
            f"{steps} steps, {len(seeds)} seeds",
        ),
        Check(
            "The strawman learns more slowly, the less memory the more",
            all(gaps == sorted(gaps, reverse=True) and gaps[-1] > 0.0 for gaps in behind)
            if complete
            else None,
            told,
        ),
    ]


FIGURE = FigureDefinition(NAME, "Training while gradients are lost", False, runs, report)
