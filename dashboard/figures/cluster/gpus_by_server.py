"""GPUs by server, coloured by job."""

from __future__ import annotations

import plotly.graph_objects as go

from cluster.choices import DrainState, ServerState
from dashboard.colours import BUSY_ELSEWHERE, IDLE, UNAVAILABLE, job_colours
from dashboard.figures.panel import Panel, base_figure, plain_text
from scheduling.selectors.cluster.occupancy import GpuCell, ServerCells, servers_with_occupants

_FREE, _ELSEWHERE, _DOWN = "", "\x00elsewhere", "\x00down"
#: Figures with more columns have no names in cells.
_LABELLED_COLUMNS = 12


def figure(servers: list[ServerCells]) -> go.Figure | None:
    """Draw one row per server and one cell per GPU; a click on a cell opens its job."""
    if not any(server.gpus for server in servers):
        return None
    columns = max(len(server.gpus) for server in servers)
    colours = job_colours(
        gpu.occupant.job_id
        for server in servers
        for gpu in server.gpus
        if gpu.occupant and gpu.occupant.job_id
    )
    scale = {_FREE: IDLE, _ELSEWHERE: BUSY_ELSEWHERE, _DOWN: UNAVAILABLE, **colours}
    place = {key: number for number, key in enumerate(scale)}
    keys = [[_key(server, gpu) for gpu in server.gpus] for server in servers]
    drawn = base_figure(margin={"l": 8, "r": 8, "t": 8, "b": 8}, height=_height(len(servers)))
    drawn.add_trace(
        go.Heatmap(
            z=[[place[key] for key in row] + [None] * (columns - len(row)) for row in keys],
            x=list(range(columns)),
            y=list(range(len(servers))),
            zmin=-0.5,
            zmax=len(scale) - 0.5,
            colorscale=_steps(list(scale.values())),
            showscale=False,
            xgap=4 if columns <= _LABELLED_COLUMNS else 1,
            ygap=4 if len(servers) <= 24 else 1,
            text=[[_label(gpu, columns) for gpu in server.gpus] for server in servers],
            texttemplate="%{text}",
            textfont={"color": "#ffffff", "size": 11},
            customdata=[[_custom(server, gpu) for gpu in server.gpus] for server in servers],
            hovertemplate="%{customdata[1]}<extra></extra>",
        )
    )
    drawn.update_xaxes(
        showgrid=False, zeroline=False, showline=False, showticklabels=False, ticks="", fixedrange=True
    )
    drawn.update_yaxes(
        showgrid=False,
        zeroline=False,
        showline=False,
        autorange="reversed",
        fixedrange=True,
        automargin=True,
        ticks="",
        tickvals=list(range(len(servers))) if len(servers) <= 64 else None,
        ticktext=[_server_label(server) for server in servers] if len(servers) <= 64 else None,
    )
    return drawn


def _height(servers: int) -> int:
    return int(max(96, 16 + servers * (44 if servers <= 8 else 24 if servers <= 24 else 10)))


def _key(server: ServerCells, gpu: GpuCell) -> str:
    if gpu.occupant is not None:
        return gpu.occupant.job_id or _ELSEWHERE
    return _DOWN if server.state != ServerState.UP or not gpu.healthy else _FREE


def _label(gpu: GpuCell, columns: int) -> str:
    if gpu.occupant is None or columns > _LABELLED_COLUMNS:
        return ""
    return plain_text(gpu.occupant.job_name or "busy", 72 // columns + 2)


def _custom(server: ServerCells, gpu: GpuCell) -> list[str]:
    occupant = gpu.occupant
    doing = "free" if occupant is None else f"{plain_text(occupant.job_name or 'busy')}: {occupant.phase}"
    if occupant is None and server.state != ServerState.UP:
        doing = f"server {server.state.label.lower()}"
    kind = f"{plain_text(gpu.kind)}{' (emulated)' if gpu.emulated else ''}"
    address = occupant.job_id if occupant and occupant.job_id else ""
    return [address, f"<b>{plain_text(server.name)}:{gpu.index}</b><br>{kind}<br>{doing}"]


def _server_label(server: ServerCells) -> str:
    marks = [server.state.label.lower()] if server.state != ServerState.UP else []
    if server.drain != DrainState.NONE:
        marks.append(server.drain.label.lower())
    name = plain_text(server.name, 24)
    return f"{name}<br><sub>{', '.join(marks)}</sub>  " if marks else f"{name}  "


def _steps(colours: list[str]) -> list[list[object]]:
    # A colour scale of flat steps: value k has exactly the k-th colour.
    count = len(colours)
    return [[edge / count, colour] for place, colour in enumerate(colours) for edge in (place, place + 1)]


PANEL = Panel(
    title="GPUs by server",
    load=lambda request: servers_with_occupants(request.user),
    figure=figure,
    empty="No server yet. An operator issues an enrolment token; `make run` starts two agents.",
    refresh_on=("planned", "servers", "jobs"),
    note="One cell per GPU, coloured by job. Grey cells belong to other projects.",
    height=96,
)
