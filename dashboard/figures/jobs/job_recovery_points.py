"""Iterations that a job would lose if a server died now, for each server that trains it or keeps its
state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.panel import Panel, PanelRequest, base_figure, plain_text
from dashboard.templatetags.punctual_display import duration_text
from scheduling.choices import StateSource
from scheduling.selectors.recovery.memory_states import (
    CopyTraffic,
    Loss,
    MemoryState,
    Point,
    copy_traffic,
    durable_point,
    memory_state,
)

SOURCE_COLOURS = {
    StateSource.OWN_MEMORY: colours.GOOD,
    StateSource.PEER_MEMORY: colours.PROMISED,
    StateSource.DURABLE: colours.WARNING,
    StateSource.NONE: colours.BAD,
}
#: Width of a bar of zero, as a share of the widest, so that it can be hovered over.
_SMALLEST = 0.015
#: More bars cannot be distinguished.
MOST_BARS = 24


@dataclass(frozen=True)
class RecoveryPoints:
    """Latest states of a job. ``state``: None while it does not train. ``traffic``: schedule of its
    copies."""

    state: MemoryState | None
    durable: Point
    now: datetime
    traffic: CopyTraffic | None = None


def load(request: PanelRequest) -> RecoveryPoints:
    """Return the states that agents last reported."""
    job = request.the_job()
    return RecoveryPoints(memory_state(job), durable_point(job), request.now, copy_traffic(job))


def figure(data: RecoveryPoints) -> go.Figure | None:
    """Draw a bar of lost iterations for each server, coloured by the state that the job would recover
    from."""
    losses = [] if data.state is None else data.state.losses()
    if data.state is None or not losses:
        return None
    losses = _costliest(losses)
    holders = {one.server: one for one in data.state.holders()}
    least = max(1, *(one.iterations for one in losses)) * _SMALLEST
    drawn = base_figure(margin={"l": 110, "r": 16, "t": 28, "b": 46}, barmode="overlay", showlegend=True)
    for source in StateSource:
        some = [one for one in losses if one.source == source]
        if not some:
            continue
        texts = []
        for one in some:
            holder = holders.get(one.server)
            ranks = "nothing" if holder is None else f"ranks {', '.join(map(str, holder.ranks[:12]))}"
            seconds = "" if one.seconds is None else f" ({duration_text(one.seconds)} of training)"
            texts.append(f"{one.iterations} iterations{seconds}<br>keeps {ranks}")
        drawn.add_trace(
            go.Bar(
                y=[plain_text(one.name, 30) for one in some],
                x=[max(one.iterations, least) for one in some],
                orientation="h",
                name=f"Resumes from: {source.label.lower()}",
                marker={"color": SOURCE_COLOURS[source]},
                customdata=texts,
                text=[str(one.iterations) for one in some],
                hovertemplate="%{y}: %{customdata}<extra></extra>",
            )
        )
    drawn.update_xaxes(title_text="iterations lost if it died now", rangemode="tozero")
    drawn.update_yaxes(autorange="reversed", automargin=True)
    return drawn


def _costliest(losses: list[Loss]) -> list[Loss]:
    """Return at most `MOST_BARS` losses, the costliest first if there are more."""
    if len(losses) <= MOST_BARS:
        return losses
    return sorted(losses, key=lambda one: (-one.iterations, one.name))[:MOST_BARS]


def caption(data: RecoveryPoints) -> str:
    """Return the latest states with their ages."""
    in_memory = None if data.state is None else data.state.in_memory
    words = [_newest("In memory", in_memory, data.now), _newest("On disk", data.durable, data.now)]
    if data.state is not None:
        why = f" ({data.state.reason})" if data.state.reason else ""
        words.append(f"Protection: {data.state.protection.label.lower()}{why}.")
        if (servers := len(data.state.losses())) > MOST_BARS:
            words.append(f"The figure shows the {MOST_BARS} costliest of its {servers} servers.")
    if data.traffic is not None:
        words.append(_copies(data.traffic))
    return " ".join(words)


def _copies(traffic: CopyTraffic) -> str:
    """Return when and how often copies are sent, and their cost."""
    often = "each iteration" if traffic.every == 1 else f"every {traffic.every} iterations"
    spread = "" if traffic.iterations == 1 else f", spread over {traffic.iterations} iterations"
    cost = traffic.cost
    measured = (
        "" if cost is None else f" Measured, the time of iterations with copies differs by {cost:+.1%}."
    )
    return (
        f"Copies: the network is idle for {_milliseconds(traffic.idle_seconds)} of an iteration's "
        f"{_milliseconds(traffic.iteration_seconds)}; a copy takes {_milliseconds(traffic.copy_seconds)}"
        f"{spread}, lengthens an iteration by {_milliseconds(traffic.extension_seconds)} by the plan, and is "
        f"made {often}.{measured}"
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _newest(where: str, point: Point | None, now: datetime) -> str:
    age = None if point is None else point.age_seconds(now)
    if point is None or age is None:
        return f"{where}: none."
    return f"{where}: iteration {point.iteration}, {duration_text(age)} old."


PANEL = Panel(
    title="Recovery points",
    load=load,
    figure=figure,
    empty="Shown while the job trains.",
    refresh_on=("metrics", "changed"),
    caption=caption,
    caption_when_empty=True,
)
