"""The backward pass of one MoE layer under each schedule: the text's example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from moe.lina.micro_operations import Traffic
from moe.lina.scheduler import Mode
from moe.lina.shared_link import Rates, SimulatedLink
from research.figure import Check, Context, FigureDefinition, FigureReport, Table, within
from research.lina import explaining
from research.model_rows import ModelRow, row
from research.runs import RunSpec
from simulation.reports.style import PALETTE, Drawing, base_figure

NAME = "timeline"
HOW = "moe/lina/shared_link.py with fitted durations"
#: Milliseconds, chosen so that the text's numbers come out: computation before the first all-to-all, one
#: all-to-all, the experts, computation after the second all-to-all.
BEFORE, ALL_TO_ALL, EXPERT, AFTER = 5.8, 7.5, 1.6, 2.2
#: All-reduces by time of submission and work: a whole bucket, or five pieces.
BUCKET = ((2.2, 8.0),)
PIECES = ((1.0, 1.6), (1.0, 1.6), (1.0, 1.6), (2.2, 1.6), (2.2, 1.6))
#: When the backward pass of the combine starts.
COMBINE = 4.8


@dataclass(frozen=True)
class LayerSchedule:
    """How the layer communicates.

    Attributes:
        all_reduces: time of submission and work of each.
        hold_from: when `hold` is set; None for never.
        is_deferred: `hold` stays until both all-to-alls have ended.
        pieces: micro-operations of an all-to-all.
        expected: the ends worked out by hand from the published times.
    """

    name: str
    mode: Mode
    all_reduces: tuple[tuple[float, float], ...]
    expected: tuple[float, float, float, float]
    hold_from: float | None = None
    is_deferred: bool = False
    pieces: int = 1


@dataclass(frozen=True)
class Ends:
    """When the two all-to-alls, the gradients and the all-reduces are done."""

    #: End of the first all-to-all.
    first: float
    #: End of the second all-to-all.
    second: float
    #: End of the last gradient's computation.
    gradients: float
    #: End of the last all-reduce.
    all_reduces: float

    def as_tuple(self) -> tuple[float, float, float, float]:
        """Return the four times in order."""
        return self.first, self.second, self.gradients, self.all_reduces


FAIR, PRIORITY, DEFERRED, IN_PIECES, PIPELINED = (
    LayerSchedule("fair sharing", Mode.TWO_STREAMS, BUCKET, (17.7, 26.8, 29.0, 14.6)),
    LayerSchedule("priority, whole bucket", Mode.STRICT, BUCKET, (17.7, 26.8, 29.0, 10.2)),
    LayerSchedule("all-reduce deferred", Mode.STRICT, BUCKET, (13.3, 22.4, 24.6, 30.4), is_deferred=True),
    LayerSchedule("five pieces", Mode.STRICT, PIECES, (13.3, 22.4, 24.6, 24.0), hold_from=COMBINE),
    LayerSchedule(
        "five pieces, pipelined", Mode.STRICT, PIECES, (13.3, 20.8, 23.0, 24.0), hold_from=COMBINE, pieces=2
    ),
)
SCHEDULES = (FAIR, PRIORITY, DEFERRED, IN_PIECES, PIPELINED)


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: everything is simulated at once."""
    return ()


def simulate(schedule: LayerSchedule) -> Ends:
    """Return when things end on a fairly shared link."""
    link = SimulatedLink(Rates(), schedule.mode)
    link.scheduler.hold = schedule.is_deferred
    all_reduces = []
    for submitted_at, work in schedule.all_reduces:
        link.advance(submitted_at)
        all_reduces.append(link.submit(Traffic.ALL_REDUCE, work))
    if schedule.hold_from is not None:
        link.advance(schedule.hold_from)
        link.scheduler.hold = True
    link.advance(BEFORE)
    pieces = schedule.pieces
    first = [link.submit(Traffic.ALL_TO_ALL, ALL_TO_ALL / pieces) for _ in range(pieces)]
    link.scheduler.hold = schedule.is_deferred
    second = []
    for transfer in first:
        link.wait(transfer)
        link.advance(link.now + EXPERT / pieces)
        second.append(link.submit(Traffic.ALL_TO_ALL, ALL_TO_ALL / pieces))
    second_end = link.wait(second[-1])
    link.scheduler.hold = False
    link.advance(link.now + AFTER)
    gradients = link.now
    return Ends(first[-1].ended_at, second_end, gradients, max(map(link.wait, all_reduces)))


def report(context: Context) -> FigureReport:
    """Report when things end under each schedule."""
    ends = {schedule.name: simulate(schedule) for schedule in SCHEDULES}
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="simulated by moe/lina/shared_link.py with the scheduler of moe/lina/scheduler.py",
        notes=(
            (
                "The text gives the ends of gradients and the time saved by pieces. The durations are fitted "
                "to these. They are unique up to rounding if both all-to-alls are equal and a piece fills "
                "the gap between them."
            ),
        ),
        rows=_rows(context, ends),
        tables=(_table(ends),),
        drawings=(_drawing(ends),),
        checks=_checks(ends),
    )


def _rows(context: Context, ends: dict[str, Ends]) -> list[ModelRow]:
    priority = ends[PRIORITY.name].gradients
    why = (explaining.measured_above_theory(f"{priority:.1f} ms in the model, 30.9 ms measured"),)
    values = (
        ("Gradients done, fair sharing", ends[FAIR.name].gradients, True),
        ("Gradients done, priority alone", priority, False),
        ("Gradients done, all-reduce deferred", ends[DEFERRED.name].gradients, True),
        ("All-reduce done, deferred", ends[DEFERRED.name].all_reduces, True),
        ("All-reduce done, in pieces", ends[IN_PIECES.name].all_reduces, False),
    )
    return [
        row(context, NAME, series, "ms", value, HOW, unit="ms", calibrated=is_fitted, why=why)
        for series, value, is_fitted in values
    ]


def _table(ends: dict[str, Ends]) -> Table:
    return Table(
        "Ends in the backward pass of one layer, ms",
        "Each class gets half of the link while both are active.",
        ("Schedule", "First all-to-all", "Second all-to-all", "Gradients", "All-reduce"),
        tuple((name, *(f"{end:.1f}" for end in each.as_tuple())) for name, each in ends.items()),
    )


def _drawing(ends: dict[str, Ends]) -> Drawing:
    figure = base_figure(height=320)
    for number, label in enumerate(("first all-to-all", "second all-to-all", "gradients", "all-reduce")):
        figure.add_trace(
            go.Bar(
                x=list(ends),
                y=[each.as_tuple()[number] for each in ends.values()],
                name=label,
                marker_color=PALETTE[number],
            )
        )
    figure.update_yaxes(title_text="ms")
    return Drawing("lina-timeline", "Backward pass of one layer", "Lower is earlier.", figure)


def _checks(ends: dict[str, Ends]) -> tuple[Check, ...]:
    worst = max(
        abs(found - expected)
        for schedule in SCHEDULES
        for found, expected in zip(ends[schedule.name].as_tuple(), schedule.expected, strict=True)
    )
    hidden = ends[IN_PIECES.name].gradients - ends[PIPELINED.name].gradients
    return (
        Check("All ends are those of the reconstruction", worst < 1e-6, f"at most {worst:.1e} ms apart"),
        within("All-reduce in pieces ends at 23.8 ms", ends[IN_PIECES.name].all_reduces, 23.8, 0.2, ".1f"),
        within("Pipelining hides the expert computation, ms", hidden, EXPERT, 1e-6, ".1f"),
    )


FIGURE = FigureDefinition(NAME, "Backward pass of one layer", False, runs, report)
