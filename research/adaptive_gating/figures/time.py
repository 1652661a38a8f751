"""Training time of each scheme over top-2 (Table 5.3), from FLOPs and the measured law of Table 5.1."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from moe.gating.timing import layer_time
from research.adaptive_gating import explaining
from research.adaptive_gating.model import EVALUATED, Task
from research.adaptive_gating.published import (
    ADAPTIVE,
    DENSE,
    SCHEMES,
    SCORES,
    TASKS,
    TIMES,
    TOP1,
    time_series,
)
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.model_rows import ModelRow, row
from research.runs import RunSpec
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "time"
HOW = "moe/gating/timing.py: Table 5.1 on the experts' share of a step's FLOPs"


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: everything is computed."""
    return ()


def report(context: Context) -> FigureReport:
    """Report times of steps beside published times to equal loss."""
    return FigureReport(
        name=NAME,
        title=FIGURE.title,
        made="computed by moe/gating; the rows contain no fit",
        notes=(
            (
                "The experts' share of a step is not published. The rows use their share of all FLOPs, with "
                "assumed sequence lengths. A dense layer is charged like top-1. The table of implied values "
                "shows the share at which each published time would come out, which is a fit."
            ),
        ),
        rows=[
            _row(context, task, scheme) for task in EVALUATED.values() for scheme in (DENSE, TOP1, ADAPTIVE)
        ],
        tables=(_implied_table(), _score_table()),
        drawings=(_drawing(),),
        checks=_checks(),
    )


def _row(context: Context, task: Task, scheme: str) -> ModelRow:
    value = task.step_time(task.share if scheme == ADAPTIVE else 0.0)
    text = f"{value:.3f}, experts {task.moe_share:.0%} of a step, assuming {task.assumed}"
    why = (explaining.more_steps(text),)
    return row(context, NAME, time_series(scheme), task.name, value, HOW, why=why)


def _implied_table() -> Table:
    rows = []
    for task in EVALUATED.values():
        implied = task.implied_moe_share
        top1_step = 1.0 - implied + implied * float(layer_time(0.0))
        rows.append(
            (
                task.name, f"{task.share:.1%}", f"{task.moe_share:.2f}", f"{implied:.2f}",
                f"{TIMES[TOP1][task.number] / top1_step:.2f}",
            )
        )  # fmt: skip
    return Table(
        "Values that published times imply",
        "Fitted: the experts' share of a step at which adaptive's published time comes out with as many "
        "steps as top-2. With that share, the last column says how many more steps top-1's published time "
        "means.",
        ("Task", "Two-expert share", "Experts by FLOPs", "Experts, fitted", "Steps of top-1, fitted"),
        tuple(rows),
    )


def _score_table() -> Table:
    rows = tuple(
        (task, *(f"{SCORES[scheme][number]:g}" for scheme in SCHEMES)) for number, task in enumerate(TASKS)
    )
    return Table(
        "Published scores, not repeated",
        "The six tasks are not trained. For text completion and dialogue, the text calls a score perplexity "
        "that is better when higher.",
        ("Task", *SCHEMES),
        rows,
    )


def _checks() -> list[Check]:
    times = [task.step_time(task.share) for task in EVALUATED.values()]
    gaps = [
        task.step_time(task.share) / TIMES[ADAPTIVE][task.number] - 1.0 for task in EVALUATED.values()
    ]  # fmt: skip
    implied = [task.implied_moe_share for task in EVALUATED.values()]
    slower = sum(time > 1 for time in TIMES[TOP1])
    return [
        Check(
            "Adaptive's time is predicted within 10 % for every task, without a fit",
            max(map(abs, gaps)) <= 0.10,
            ", ".join(f"{gap:+.1%}" for gap in gaps),
        ),
        Check(
            "Adaptive takes 0.77 to 0.89 of top-2's time",
            min(times) >= 0.765 and max(times) <= 0.895,
            f"{min(times):.3f} to {max(times):.3f}",
        ),
        Check(
            "Published times imply possible shares of a step",
            all(0.4 < share < 0.9 for share in implied),
            ", ".join(f"{share:.2f}" for share in implied),
        ),
        Check("Published: top-1 is slower than top-2 in four tasks of six", slower == 4, f"{slower}"),
    ]


def _drawing() -> Drawing:
    figure = base_figure(height=360)
    series = {
        "published": [TIMES[ADAPTIVE][task.number] for task in EVALUATED.values()],
        "ours, without a fit": [task.step_time(task.share) for task in EVALUATED.values()],
    }
    for number, (name, values) in enumerate(series.items()):
        figure.add_trace(go.Bar(x=list(EVALUATED), y=values, name=name, marker_color=PALETTE[number]))
    figure.update_yaxes(title_text="time over top-2", range=[0, 1.02])
    return Drawing(
        "adaptive-gating-time", "Training time of adaptive gating", "Top-2 is 1.", figure, wide=True
    )


FIGURE = FigureDefinition(NAME, "Training time over top-2", False, runs, report)
