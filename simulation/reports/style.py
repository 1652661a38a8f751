"""The common style of all figures of reports, and texts for times and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from scheduling.core.question.quantities import duration_text
from scheduling.core.question.snapshot import FloatArray
from simulation.outcome import RunOutcome
from simulation.reports import measures

PROMISED = "#3b6fd4"
PROMISED_PALE = "rgba(59, 111, 212, 0.45)"
UNPROMISED = "#4fa58c"
#: Half transparent, so that it recedes on light and on dark backgrounds.
IDLE = "rgba(128, 140, 156, 0.22)"
GOOD = "#2e8b57"
WARNING = "#e08e1b"
BAD = "#c94a44"
NEUTRAL = "#8a94a3"
DECLINED = "#8d6e63"
#: For runs or jobs side by side.
PALETTE = (
    "#3b6fd4", "#c65d3a", "#3f8f6b", "#8a5bb8", "#b0792a", "#2f8fa8",
    "#b84a78", "#5d7f2c", "#5763b8", "#a34f4f", "#3d7a8c", "#7a6a3a",
)  # fmt: skip
DASHES = ("solid", "dash", "dot", "dashdot")

_UNITS = ((240.0, 1.0, "seconds"), (4 * 3600.0, 60.0, "minutes"), (21 * 86400.0, 3600.0, "hours"))


@dataclass(frozen=True)
class Drawing:
    """One figure of a report. ``figure`` is None if there is nothing to draw; ``empty`` then says why."""

    name: str
    title: str
    note: str
    figure: go.Figure | None
    empty: str = ""
    wide: bool = False

    def as_json(self, made: str) -> dict[str, Any]:
        """Return the figure as Plotly's JSON; ``layout.meta`` has its title, note and how it was made."""
        figure = go.Figure(self.figure) if self.figure is not None else base_figure()
        figure.update_layout(
            meta={"title": self.title, "note": self.note, "made": made, "wide": self.wide}
            | ({"empty": self.empty} if self.figure is None else {})
        )
        drawn: dict[str, Any] = figure.to_plotly_json()
        return drawn


@dataclass(frozen=True)
class TimeUnit:
    """The unit of a time axis: its length in ``seconds``, its plural name, and the time of its zero."""

    seconds: float
    name: str
    begin_at: float = 0.0

    @property
    def axis_title(self) -> str:
        """Title of the axis, which counts from the beginning of the run, not of the trace."""
        return f"{self.name} since the run began"

    def of(self, seconds: FloatArray) -> FloatArray:
        """Return times in this unit."""
        return (seconds - self.begin_at) / self.seconds

    def lengths(self, seconds: FloatArray) -> FloatArray:
        """Return lengths of time in this unit."""
        return seconds / self.seconds


def time_unit(span_seconds: float) -> TimeUnit:
    """Return the unit that suits a span: seconds, minutes, hours or days."""
    for limit, seconds, name in _UNITS:
        if span_seconds <= limit:
            return TimeUnit(seconds, name)
    return TimeUnit(86400.0, "days")


def time_axis(*outcomes: RunOutcome) -> TimeUnit:
    """Return the time axis that fits all of these runs, from the earliest beginning on."""
    begin = min(measures.begin_at(outcome) for outcome in outcomes)
    unit = time_unit(max(outcome.end_at for outcome in outcomes) - begin)
    return TimeUnit(unit.seconds, unit.name, begin)


def base_figure(**layout: Any) -> go.Figure:
    """Return an empty figure without Plotly's template: the page sets the colours (light or dark)."""
    # Passed together: setting them one by one takes ten times as long.
    figure = go.Figure(
        layout={
            "template": go.layout.Template(),
            "margin": {"l": 56, "r": 16, "t": 12, "b": 46},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "hovermode": "closest",
            "legend": {
                "orientation": "h", "yanchor": "bottom", "y": 1.02, "xanchor": "left", "x": 0,
                "traceorder": "normal",
            },
            "bargap": 0.25,
        }
    )  # fmt: skip
    figure.update_layout(**layout)
    return figure


def step_line(figure: go.Figure, x: FloatArray, y: FloatArray, name: str, colour: str, **trace: Any) -> None:
    """Draw a line of steps, in single precision, which is enough for a screen and keeps pages small."""
    figure.add_trace(
        go.Scatter(
            x=x.astype(np.float32), y=y.astype(np.float32), name=name, mode="lines",
            **({"line": {"color": colour, "width": 2, "shape": "hv"}} | trace),
        )
    )  # fmt: skip


def label_axis(figure: go.Figure, labels: Sequence[str]) -> None:
    """Make one line per label, the first on top. Lines are numbered, so that equal labels stay separate."""
    figure.update_yaxes(
        tickmode="array", tickvals=list(range(len(labels))),
        ticktext=[plain_text(each, 36) for each in labels],
        range=[len(labels) - 0.45, -0.55], automargin=True, ticks="", showgrid=False, zeroline=False,
        ticklabelstandoff=8,
    )  # fmt: skip


def log_ticks(values: FloatArray) -> dict[str, Any]:
    """Return a logarithmic axis: marks at 1, 2 and 5 if it is short, else at powers of ten."""
    low, high = math.floor(math.log10(float(values.min()))), math.ceil(math.log10(float(values.max())))
    digits = (1, 2, 5) if high - low < 4 else (1,)
    marks = [float(f"{digit}e{power}") for power in range(low - 1, high + 2) for digit in digits]
    # The axis ends at marks, so that at least two are visible.
    ends = [
        max(each for each in marks if each <= values.min()),
        min(each for each in marks if each >= values.max()),
    ]
    if ends[0] == ends[1]:
        ends = [ends[0] / 2, ends[1] * 2]
    return {
        "type": "log", "tickmode": "array", "tickvals": marks, "ticktext": [f"{each:g}" for each in marks],
        "range": [math.log10(each) for each in ends],
    }  # fmt: skip


def plain_text(text: str, maximum_length: int = 60) -> str:
    """Escape external text for a figure, since Plotly interprets some HTML tags."""
    shortened = text if len(text) <= maximum_length else f"{text[: maximum_length - 1]}…"
    return shortened.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def made_how(outcome: RunOutcome) -> str:
    """Describe the origin of a run's figures in one line: that it is a simulation, and its settings."""
    settings = outcome.settings
    parts = ["Simulated"]
    for name, form in (("policy", "policy {}"), ("trace", "trace {}"), ("seed", "seed {}")):
        if name in settings:
            parts.append(form.format(settings[name]))
    if settings.get("newcomers", "open") != "open":
        parts.append(f"newcomers {settings['newcomers']}")
    if "servers" in settings and "gpus_per_server" in settings:
        parts.append(f"{settings['servers']} servers × {settings['gpus_per_server']} GPUs")
    if "slot_seconds" in settings:
        parts.append(f"slot {settings['slot_seconds']:g} s")
    if "pauses" in settings:
        parts.append(f"pauses {settings['pauses']}")
    if outcome.interrupted:
        parts.append(f"stopped early, after {duration_text(measures.simulated_seconds(outcome))}")
    return " · ".join(parts)
