"""Training time and scores by threshold (Table 5.5), beside the times of a gate with normal logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import plotly.graph_objects as go

from research.adaptive_gating import explaining
from research.adaptive_gating.margins import FITTED_THRESHOLD, fit_spread, two_expert_share
from research.adaptive_gating.model import EVALUATED, Task
from research.adaptive_gating.published import (
    BY_THRESHOLD,
    SCORES_BY_THRESHOLD,
    TASKS,
    TIMES_BY_THRESHOLD,
    threshold_place,
)
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.model_rows import ModelRow, row
from research.runs import RunSpec
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "thresholds"
HOW = "moe/gating/gate.py on normal logits with a fitted spread, moe/gating/timing.py for a step"


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: everything is computed."""
    return ()


def report(context: Context) -> FigureReport:
    """Report means over the tasks by threshold."""
    return FigureReport(
        name=NAME,
        title=FIGURE.title,
        made="computed by moe/gating",
        notes=(
            (
                "How shares depend on the threshold is not published. Ours come from a gate whose logits are "
                "normal; their spread is fitted to each task's share at T = 0.1. Ours are times of a step, "
                "so they rise with the threshold. Published times to equal loss are least at 0.1 to 0.2, "
                "since a smaller threshold needs more steps."
            ),
            (
                "Published gate probabilities of four tokens peak at 0.20 to 0.25. The fitted gate is surer "
                "than that, so the true distribution of margins is another one."
            ),
        ),
        rows=[_row(context, threshold) for threshold in TIMES_BY_THRESHOLD],
        tables=(
            _shares_table(),
            _published_table("Published times over top-2", TIMES_BY_THRESHOLD),
            _published_table("Published scores, not repeated", SCORES_BY_THRESHOLD),
        ),
        drawings=(_drawing(),),
        checks=_checks(),
    )


def _share(task: Task, threshold: float) -> float:
    return two_expert_share(fit_spread(task.share), threshold)


def _mean_time(threshold: float) -> float:
    return fmean(task.step_time(_share(task, threshold)) for task in EVALUATED.values())


def _row(context: Context, threshold: float) -> ModelRow:
    value = _mean_time(threshold)
    share = fmean(_share(task, threshold) for task in EVALUATED.values())
    why = (explaining.more_steps(f"{value:.3f} for a step with {share:.0%} two-expert tokens"),)
    return row(context, NAME, BY_THRESHOLD, threshold_place(threshold), value, HOW, why=why)


def _shares_table() -> Table:
    return Table(
        "Two-expert share by threshold, normal logits",
        f"The spread of the logits is fitted to the share at T = {FITTED_THRESHOLD:g}.",
        ("Task", "Spread", *map(threshold_place, TIMES_BY_THRESHOLD)),
        tuple(
            (
                task.name, f"{fit_spread(task.share):.2f}",
                *(f"{_share(task, threshold):.1%}" for threshold in TIMES_BY_THRESHOLD),
            )
            for task in EVALUATED.values()
        ),
    )  # fmt: skip


def _published_table(title: str, values: Mapping[float, tuple[float, ...]]) -> Table:
    rows = tuple(
        (task, *(f"{by_task[number]:g}" for by_task in values.values())) for number, task in enumerate(TASKS)
    )
    return Table(title, "Table 5.5; T = 0.1 is Table 5.3.", ("Task", *map(threshold_place, values)), rows)


def _checks() -> list[Check]:
    means = {threshold: fmean(times) for threshold, times in TIMES_BY_THRESHOLD.items()}
    best = min(means, key=means.__getitem__)
    shares = [fmean(_share(task, one) for task in EVALUATED.values()) for one in TIMES_BY_THRESHOLD]
    apart = max(abs(_share(task, FITTED_THRESHOLD) - task.share) for task in EVALUATED.values())
    return [
        Check(
            "Published times are least at T of 0.1 to 0.2",
            best in (0.1, 0.2),
            ", ".join(f"{mean:.3f}" for mean in means.values()),
        ),
        Check(
            "Shares rise with the threshold",
            shares == sorted(shares),
            ", ".join(f"{share:.1%}" for share in shares),
        ),
        Check("The fit meets every task's share", apart <= 0.001, f"at most {apart:.4f} apart"),
    ]


def _drawing() -> Drawing:
    figure = base_figure(height=340)
    thresholds = list(TIMES_BY_THRESHOLD)
    series = {
        "published, to equal loss": [fmean(times) for times in TIMES_BY_THRESHOLD.values()],
        "ours, a step": [_mean_time(threshold) for threshold in thresholds],
    }
    for number, (name, values) in enumerate(series.items()):
        figure.add_trace(
            go.Scatter(
                x=thresholds, y=values, name=name, mode="lines+markers", line={"color": PALETTE[number]}
            )
        )
    figure.update_xaxes(title_text="threshold")
    figure.update_yaxes(title_text="time over top-2")
    return Drawing("adaptive-gating-thresholds", "Time by threshold", "Means of six tasks.", figure)


FIGURE = FigureDefinition(NAME, "Training time and scores by threshold", False, runs, report)
