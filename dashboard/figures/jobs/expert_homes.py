"""Servers that host the experts of a job's model."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from dashboard.colours import IDLE, JOB_PALETTE, NEUTRAL
from dashboard.figures.jobs.expert_heat import heat_map, layer_name
from dashboard.figures.panel import Panel, plain_text
from scheduling.selectors.jobs.experts import experts_of

#: Maximum number of an expert's workers named in its cell and in its hover text.
_NAMED_IN_CELL, _NAMED_IN_HOVER = 3, 12
#: Number of servers with distinct colours.
_COLOURED_SERVERS = len(JOB_PALETTE)
_EVERYWHERE, _SEVERAL = -2, -1


def figure(experts: dict[str, Any]) -> go.Figure | None:
    """Colour each expert by its server; its cell names its workers."""
    layers = [layer for layer in experts["layers"] if layer["hosts"] is not None]
    if not any(hosts for layer in layers for hosts in layer["hosts"]):
        return None
    servers = {worker["rank"]: worker["server"] for worker in experts["workers"]}
    numbers = {name: number for number, name in enumerate(dict.fromkeys(servers.values()))}
    colours = [IDLE, NEUTRAL, *(JOB_PALETTE[number % _COLOURED_SERVERS] for number in range(len(numbers)))]
    return heat_map(
        layers,
        [[_colour(ranks, servers, numbers) for ranks in layer["hosts"]] for layer in layers],
        [[_cell(ranks) for ranks in layer["hosts"]] for layer in layers],
        [_hovers(layer, experts["workers"]) for layer in layers],
        zmin=_EVERYWHERE - 0.5,
        zmax=len(numbers) - 0.5,
        colorscale=_steps(colours),
        showscale=False,
    )


def _colour(ranks: list[int], servers: dict[int, str], numbers: dict[str, int]) -> int:
    if not ranks:
        return _EVERYWHERE
    named = {servers.get(rank, "") for rank in ranks}
    return numbers.get(named.pop(), _SEVERAL) if len(named) == 1 else _SEVERAL


def _cell(ranks: list[int]) -> str:
    if not ranks:
        return "all"
    return "+".join(map(str, ranks)) if len(ranks) <= _NAMED_IN_CELL else f"{len(ranks)} workers"


def _hovers(layer: dict[str, Any], workers: list[dict[str, Any]]) -> list[str]:
    places = {each["rank"]: f"{plain_text(each['server'], 30)}:{each['gpu']}" for each in workers}
    return [
        f"{layer_name(layer)}, expert {expert}<br>{_workers(ranks, places)}"
        for expert, ranks in enumerate(layer["hosts"])
    ]


def _workers(ranks: list[int], places: dict[int, str]) -> str:
    if not ranks:
        return "on every worker"
    named = [f"worker {rank} on {places.get(rank, 'an unknown server')}" for rank in ranks[:_NAMED_IN_HOVER]]
    others = len(ranks) - len(named)
    return "<br>".join([*named, *([f"and {others} more"] if others else [])])


def _steps(colours: list[str]) -> list[list[object]]:
    count = len(colours)
    return [[edge / count, colour] for place, colour in enumerate(colours) for edge in (place, place + 1)]


def caption(experts: dict[str, Any]) -> str:
    """Return the workers of each server."""
    if all(layer["hosts"] is None for layer in experts["layers"]):
        return ""
    servers: dict[str, list[int]] = {}
    for worker in experts["workers"]:
        servers.setdefault(worker["server"], []).append(worker["rank"])
    named = [f"{name}: {_ranks(ranks)}" for name, ranks in list(servers.items())[:_COLOURED_SERVERS]]
    more = len(servers) - len(named)
    return f"Workers by server: {'; '.join(named)}{f'; and {more} more servers' if more else ''}."


def _ranks(ranks: list[int]) -> str:
    is_run = len(ranks) > 1 and ranks[-1] - ranks[0] == len(ranks) - 1
    return f"{ranks[0]} to {ranks[-1]}" if is_run else ", ".join(map(str, ranks))


PANEL = Panel(
    title="Servers of the experts",
    load=lambda request: experts_of(request.the_job()),
    figure=figure,
    empty="Every worker has all experts.",
    refresh_on=("metrics", "changed"),
    caption=caption,
    caption_when_empty=True,
    is_absent=lambda experts: not any(layer["hosts"] is not None for layer in experts["layers"]),
    height=180,
)
