"""Figures whose horizontal axis is one setting: series of runs, each compared with the baseline on the same
jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import plotly.graph_objects as go

from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.lyra.measuring import FIRST_WAITING, JCT, WAITING, Ratio, mean_ratio, pairs_of
from research.lyra.schemes import SCHEMES, baseline_of, size_of
from research.lyra.specs import LyraSpec, Override
from simulation.reports.style import PALETTE, Drawing, base_figure

PLOT_HEIGHT, LEGEND_ROW_HEIGHT = 300, 14
SYMBOLS = ("circle", "diamond", "square")


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One place of a series: its runs, one per seed. ``published``: reductions of queuing time and JCT, and
    preemptions per job."""

    series: str
    x: str
    specs: tuple[LyraSpec, ...]
    published: tuple[float | None, float | None, float | None] = (None, None, None)
    against: tuple[LyraSpec, ...] = ()

    @property
    def compared_with(self) -> tuple[LyraSpec, ...]:
        """Return the runs that are the numerators of its ratios: by default the baseline on the same jobs."""
        return self.against or tuple(baseline_of(spec) for spec in self.specs)


@dataclass(frozen=True)
class MeasuredPoint:
    """Results of a point; None if runs are missing, and the last two also without loans.

    ``first_queuing``: the reduction of queuing time until the first start. ``preemptions``: per submitted
    job. ``on_loan``: share of the GPUs on loan in use. ``shrinking``: share of the reclaimed servers that
    were freed by shrinking jobs.
    """

    point: SweepPoint
    queuing: Ratio | None
    jct: Ratio | None
    preemptions: float | None
    first_queuing: Ratio | None = None
    on_loan: float | None = None
    shrinking: float | None = None


def point(
    scheme: str, full: bool, x: str, *, series: str = "", rules: tuple[Override, ...] = (),
    seeds: Sequence[int] = (0,),
    published: tuple[float | None, float | None, float | None] = (None, None, None), **changed: object,
) -> SweepPoint:  # fmt: skip
    """Return a scheme of Table 3.5 with other rules or settings."""
    specs = tuple(
        replace(SCHEMES[scheme].spec(size_of(full), seed), rules=rules, **changed)  # type: ignore[arg-type]
        for seed in seeds
    )
    return SweepPoint(series or SCHEMES[scheme].label, x, specs, published)


def measured(context: Context, one: SweepPoint) -> MeasuredPoint:
    """Return ratios of a point to its reference, only if all of its runs are available, since seeds
    differ."""
    pairs = pairs_of(context.results, one.compared_with, one.specs)
    if len(pairs) < len(one.specs):
        pairs = []

    def share(name: str) -> float | None:
        known = [value for _, result in pairs if (value := result.summary[name]) is not None]
        return sum(known) / len(known) if known else None

    return MeasuredPoint(
        one, mean_ratio(pairs, WAITING), mean_ratio(pairs, JCT), share("preemption_ratio"),
        mean_ratio(pairs, FIRST_WAITING), share("on_loan_gpu_usage"), share("reclaim_flexible_share"),
    )  # fmt: skip


Verdicts = Callable[[Sequence[MeasuredPoint]], Sequence[Check]]


def no_verdicts(rows: Sequence[MeasuredPoint]) -> Sequence[Check]:
    """Return no checks."""
    return ()


def no_tables(context: Context) -> Sequence[Table]:
    """Return no tables above the table of points."""
    return ()


def sweep(
    name: str,
    title: str,
    axis: str,
    points: Callable[[bool], Sequence[SweepPoint]],
    *,
    notes: tuple[str, ...] = (),
    checks: Verdicts = no_verdicts,
    also_called: tuple[str, ...] = (),
    needs_traces: bool = False,
    more: Callable[[Context], Sequence[Table]] = no_tables,
) -> FigureDefinition:
    """Return a figure made of such points; ``more`` returns tables placed above its own."""

    def runs(full: bool) -> Sequence[LyraSpec]:
        return list(dict.fromkeys(spec for one in points(full) for spec in (*one.specs, *one.compared_with)))

    def report(context: Context) -> FigureReport:
        rows = [measured(context, one) for one in points(context.full)]
        return FigureReport(
            name=name,
            title=title,
            made="simulated; ratios of means, the baseline's over the run's, with 95 % intervals by "
            "bootstrap over quarters of days",
            notes=notes,
            tables=(*more(context), _table(title, axis, rows)),
            drawings=_drawings(name, axis, rows),
            checks=tuple(checks(rows)),
        )

    return FigureDefinition(name, title, needs_traces, runs, report, also_called)


def _table(title: str, axis: str, rows: Sequence[MeasuredPoint]) -> Table:
    def cell(told: float | None, ours: Ratio | float | None) -> str:
        shown = "–" if ours is None else f"{ours:.4f}" if isinstance(ours, float) else str(ours)
        return f"{'–' if told is None else f'{told:g}'} / {shown}"

    return Table(
        title.partition(":")[0],
        "Published / ours; preemptions per job submitted. The last three columns are ours: queuing until "
        "the first start alone (A14), the share of GPUs on loan in use, and of servers asked back those "
        "that shrinking made free.",
        ("Series", axis, "Queuing", "JCT", "Preemptions", "Queuing to first start", "On loan in use",
        "Shrinking"),
        tuple(
            (
                one.point.series, one.point.x, cell(one.point.published[0], one.queuing),
                cell(one.point.published[1], one.jct), cell(one.point.published[2], one.preemptions),
                "–" if one.first_queuing is None else f"{one.first_queuing.value:.2f}", _share(one.on_loan),
                _share(one.shrinking),
            )
            for one in rows
        ),
    )  # fmt: skip


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _drawings(name: str, axis: str, rows: Sequence[MeasuredPoint]) -> tuple[Drawing, ...]:
    series = list(dict.fromkeys(one.point.series for one in rows))
    places = list(dict.fromkeys(one.point.x for one in rows))
    if len(places) < 2 or not any(one.jct for one in rows):
        return ()
    drawn = []
    for key, label in (("queuing", "queuing time"), ("jct", "JCT")):
        figure = base_figure(
            height=PLOT_HEIGHT + LEGEND_ROW_HEIGHT * len(series),
            margin={"l": 56, "r": 16, "t": 12, "b": 70 + LEGEND_ROW_HEIGHT * len(series)},
            legend={"orientation": "h", "yanchor": "top", "y": -60 / PLOT_HEIGHT, "xanchor": "left", "x": 0},
        )
        for number, each in enumerate(series):
            known = [
                (one.point.x, ratio)
                for one in rows
                if one.point.series == each and (ratio := getattr(one, key)) is not None
            ]
            figure.add_trace(_line(number, each, known, joined=all(map(_is_number, places))))
        figure.update_xaxes(title_text=axis, type="category")
        # Reductions of queuing time go from one to hundreds, and 2 is as far from 1 as a half.
        figure.update_yaxes(
            title_text=f"reduction of {label}",
            type="log" if key == "queuing" else "linear",
            rangemode="tozero",
        )
        drawn.append(
            Drawing(f"{name}-{key}", f"Reduction of {label}", "The baseline over the scheme.", figure)
        )
    return tuple(drawn)


def _line(number: int, name: str, known: Sequence[tuple[str, Ratio]], *, joined: bool) -> go.Scatter:
    """Draw one series; points are joined if places are numbers, since other places have no order."""
    colour = PALETTE[number % len(PALETTE)]
    return go.Scatter(
        x=[x for x, _ in known], y=[ratio.value for _, ratio in known], name=name,
        mode="lines+markers" if joined else "markers", line={"color": colour, "width": 2},
        marker={"color": colour, "size": 8, "symbol": SYMBOLS[number // len(PALETTE) % len(SYMBOLS)]},
        error_y={
            "type": "data", "symmetric": False, "thickness": 1,
            "array": [ratio.high - ratio.value for _, ratio in known],
            "arrayminus": [ratio.value - ratio.low for _, ratio in known],
        },
    )  # fmt: skip


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def find(rows: Sequence[MeasuredPoint], series: str, x: str) -> MeasuredPoint | None:
    """Return the row of a series at a place."""
    return next((one for one in rows if (one.point.series, one.point.x) == (series, x)), None)
