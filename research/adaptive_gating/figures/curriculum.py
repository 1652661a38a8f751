"""What the curriculum saves (Table 5.6), on drawn samples whose ranks wait for the slowest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import fmean

import plotly.graph_objects as go

from moe.gating.curriculum import Curriculum
from moe.gating.curriculum_timing import OrderTimes, SamplePopulation, simulate_orders
from moe.gating.timing import Waiting
from research.adaptive_gating import explaining
from research.adaptive_gating.model import EVALUATED, HETEROGENEOUS, order_times
from research.adaptive_gating.published import INFLATION, INFLATIONS, MEAN, SCORE_CHANGES, TASKS
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.model_rows import ModelRow, row
from research.runs import RunSpec
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "curriculum"
HOW = f"moe/gating/curriculum_timing.py: magnitude order, concentration {HETEROGENEOUS:g}"
CONCENTRATIONS = (0.5, 1.0, 3.0, 10.0)
SHORT_SEEDS, FULL_SEEDS = 1, 10


@dataclass(frozen=True)
class Setting:
    """A setting of the timing model. ``expected``: the times by the independent reference program
    (docs/reproduction/README.md) in random, cosine and magnitude order."""

    name: str
    expected: tuple[float, float, float]
    concentration: float
    samples_per_rank: int = 3
    mean_share: float = 0.113
    layers: int = 12
    moe_share: float = 0.82
    waiting: Waiting = Waiting.SLOWEST


USUAL = Setting("3 samples per rank, concentration 3", (0.836, 0.822, 0.784), 3)
MEAN_RANK = Setting("the same, no waiting", (0.773, 0.773, 0.772), 3, waiting=Waiting.MEAN)
VARIED = Setting("concentration 1", (0.861, 0.826, 0.780), 1)
ALIKE = Setting("concentration 10", (0.812, 0.809, 0.785), 10)
ONE_EACH = Setting("1 sample per rank", (0.877, 0.853, 0.792), 3, 1)
MANY_EACH = Setting("24 samples per rank", (0.793, 0.787, 0.779), 3, 24)
SETTINGS = (
    USUAL,
    MEAN_RANK,
    VARIED,
    ALIKE,
    ONE_EACH,
    Setting("1 sample per rank, concentration 1", (0.904, 0.852, 0.786), 1, 1),
    MANY_EACH,
    Setting("text completion: 24 layers, 1 sample per rank", (0.961, 0.949, 0.905), 3, 1, 0.218, 24, 0.48),
)


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: the simulation takes seconds."""
    return ()


@cache
def simulate(setting: Setting) -> OrderTimes:
    """Return the times of a setting."""
    return simulate_orders(
        SamplePopulation(setting.mean_share, setting.concentration, setting.layers),
        moe_share=setting.moe_share,
        samples_per_rank=setting.samples_per_rank,
        waiting=setting.waiting,
    )


def report(context: Context) -> FigureReport:
    """Report the inflation by task, the reference program's settings, and the effect of heterogeneity."""
    seeds = range(FULL_SEEDS if context.full else SHORT_SEEDS)
    found = {task: _inflation(task, Curriculum.MAGNITUDE, seeds) for task in TASKS}
    rows = [_row(context, task, value) for task, value in found.items()]
    rows.append(_row(context, MEAN, fmean(found.values())))
    return FigureReport(
        name=NAME,
        title=FIGURE.title,
        made="simulated by moe/gating/curriculum_timing.py: 4,800 drawn samples, 8 ranks",
        notes=(
            (
                "Times follow Table 5.1 for the slowest rank of each layer. The heterogeneity of samples is "
                f"not published: concentration {HETEROGENEOUS:g}, very heterogeneous, is assumed, not fitted."
            ),
        ),
        rows=rows,
        tables=(_settings_table(), _tasks_table(seeds)),
        drawings=(_drawing(),),
        checks=_checks(found),
    )


def _inflation(
    task: str, curriculum: Curriculum, seeds: Sequence[int], concentration: float = HETEROGENEOUS
) -> float:
    return fmean(order_times(task, concentration, seed).inflation(curriculum) for seed in seeds)


def _row(context: Context, task: str, value: float) -> ModelRow:
    each = f"{EVALUATED[task].samples_per_rank} samples per rank" if task in EVALUATED else "six tasks"
    why = (explaining.unknown_samples(f"{value:.1%} with {each}"),)
    return row(context, NAME, INFLATION, task, value, HOW, why=why)


def _settings_table() -> Table:
    rows = []
    for setting in SETTINGS:
        times = simulate(setting)
        rows.append(
            (
                setting.name, f"{times.random:.3f}", f"{times.cosine:.3f}", f"{times.magnitude:.3f}",
                f"{times.inflation(Curriculum.COSINE):+.1%}", f"{times.inflation(Curriculum.MAGNITUDE):+.1%}",
                " ".join(f"{time:.3f}" for time in setting.expected),
            )
        )  # fmt: skip
    return Table(
        "Step time over top-2, by order of samples",
        "Sentiment, with a two-expert share of 11.3 % and experts 0.82 of a step, unless said otherwise. "
        "Samples with a smaller concentration differ more. The last column is the result of an "
        "independent reference program.",
        ("Setting", "Random", "Cosine", "Magnitude", "Random over cosine", "Over magnitude", "Expected"),
        tuple(rows),
    )


def _tasks_table(seeds: Sequence[int]) -> Table:
    rows = tuple(
        (
            task, f"{INFLATIONS[number]:+.0%}", f"{SCORE_CHANGES[number]:+g}",
            *(f"{_inflation(task, Curriculum.MAGNITUDE, seeds, each):+.1%}" for each in CONCENTRATIONS),
            f"{_inflation(task, Curriculum.COSINE, seeds):+.1%}",
        )
        for number, task in enumerate(TASKS)
    )  # fmt: skip
    return Table(
        "How much longer the random order takes, by heterogeneity of samples",
        "Over the magnitude order, by concentration; the last column over the cosine order, as published. "
        "Scores are not repeated.",
        (
            "Task", "Published", "Published score", *(f"{each:g}" for each in CONCENTRATIONS),
            f"Cosine, {HETEROGENEOUS:g}",
        ),
        rows,
    )  # fmt: skip


def _checks(found: dict[str, float]) -> list[Check]:
    times = {setting: simulate(setting) for setting in SETTINGS}
    apart = max(
        abs(ours - expected)
        for setting, each in times.items()
        for ours, expected in zip((each.random, each.cosine, each.magnitude), setting.expected, strict=True)
    )
    without_waiting = max(abs(times[MEAN_RANK].inflation(each)) for each in Curriculum)
    gains = [
        [times[setting].inflation(Curriculum.MAGNITUDE) for setting in settings]
        for settings in ((ALIKE, USUAL, VARIED), (MANY_EACH, USUAL, ONE_EACH))
    ]
    return [
        Check(
            "Magnitude order beats cosine order, which beats random order",
            all(
                each.magnitude < each.cosine < each.random
                for setting, each in times.items()
                if setting is not MEAN_RANK
            ),
            "every setting",
        ),
        Check("Without waiting an order saves nothing", without_waiting < 0.003, f"{without_waiting:.2%}"),
        Check(
            "Gains grow with heterogeneity and with fewer samples per rank",
            all(one < more for values in gains for one, more in pairwise(values)),
            "; ".join(", ".join(f"{gain:.1%}" for gain in values) for values in gains),
        ),
        Check(
            "Every setting is within 0.02 of the reference program",
            apart <= 0.02,
            f"at most {apart:.4f} apart",
        ),
        Check(
            "Random order costs time for every task",
            min(found.values()) > 0.0,
            ", ".join(f"{value:.1%}" for value in found.values()),
        ),
    ]


def _drawing() -> Drawing:
    figure = base_figure(height=360)
    series = {"published": list(INFLATIONS)}
    for curriculum in Curriculum:
        series[f"over {curriculum.value} order"] = [order_times(task).inflation(curriculum) for task in TASKS]
    for number, (name, values) in enumerate(series.items()):
        figure.add_trace(go.Bar(x=list(TASKS), y=values, name=name, marker_color=PALETTE[number]))
    figure.update_yaxes(title_text="longer in random order", tickformat=".0%")
    return Drawing(
        "adaptive-gating-curriculum", "Cost of a random order", "Concentration 1.", figure, wide=True
    )


FIGURE = FigureDefinition(NAME, "Time that the curriculum saves", False, runs, report)
