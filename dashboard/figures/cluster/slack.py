"""Slack of admitted jobs: time from the planned finish to the deadline."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.panel import Panel, base_figure, plain_text
from scheduling.selectors.jobs.overview import JobSlack, running_slacks

#: Round bar widths, in seconds.
_WIDTHS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
_WANTED_BARS = 12


def figure(slacks: list[JobSlack]) -> go.Figure | None:
    """Draw a histogram; jobs that are planned to be late are left of zero, in red."""
    if not slacks:
        return None
    width = _bar_width([slack.slack_seconds for slack in slacks])
    bars: dict[int, list[JobSlack]] = {}
    for slack in slacks:
        bars.setdefault(math.floor(slack.slack_seconds / width), []).append(slack)
    unit, unit_name = _unit(width)
    places = list(range(min(bars), max(bars) + 1))
    drawn = base_figure(showlegend=False, bargap=0.08)
    drawn.add_trace(
        go.Bar(
            x=[(place + 0.5) * width / unit for place in places],
            y=[len(bars.get(place, ())) for place in places],
            width=width / unit * 0.92,
            marker={"color": [colours.BAD if place < 0 else colours.PROMISED for place in places]},
            customdata=[_names(bars.get(place, [])) for place in places],
            hovertemplate="%{y} jobs<br>%{customdata}<extra></extra>",
        )
    )
    drawn.add_vline(x=0, line={"color": colours.BAD, "width": 1.5, "dash": "dash"})
    drawn.update_xaxes(title_text=f"slack ({unit_name})", zeroline=False)
    drawn.update_yaxes(title_text="jobs", rangemode="tozero", tickformat="d", dtick=_whole_steps(bars))
    return drawn


def _bar_width(seconds: list[float]) -> float:
    span = max(*seconds, 0.0) - min(*seconds, 0.0)
    return next((width for width in _WIDTHS if span / width <= _WANTED_BARS), _WIDTHS[-1])


def _unit(width: float) -> tuple[float, str]:
    return (1.0, "seconds") if width < 60 else (60.0, "minutes") if width < 3600 else (3600.0, "hours")


def _whole_steps(bars: dict[int, list[JobSlack]]) -> int:
    return max(1, math.ceil(max(len(jobs) for jobs in bars.values()) / 5))


def _names(jobs: list[JobSlack]) -> str:
    named = "<br>".join(plain_text(job.job_name, 40) for job in jobs[:5])
    return f"{named}<br>and {len(jobs) - 5} more" if len(jobs) > 5 else named


PANEL = Panel(
    title="Slack",
    load=lambda request: running_slacks(request.user, request.now),
    figure=figure,
    empty="No admitted job has a deadline at the moment.",
    refresh_on=("planned", "jobs"),
    note="Time between planned finish and deadline of admitted jobs. Left of zero: late.",
)
