"""Rates of the links between servers, measured where possible."""

from __future__ import annotations

from math import log10

import plotly.graph_objects as go

from dashboard.figures.panel import Panel, base_figure, plain_text
from dashboard.templatetags.punctual_display import byte_rate, duration_text, milliseconds
from scheduling.selectors.network.link_matrix import LinkMatrix, MatrixLink, link_matrix

#: From slow to fast; distinguishable on light and dark backgrounds, and readable under black or white text.
_SLOW, _FAST = "#c65d3a", "#3b6fd4"
#: Figures of more servers have no rates in cells.
_LABELLED_SERVERS = 10
_NAMED_SERVERS = 64
_SOURCES = {
    "measured": "measured",
    "emulated": "as its agents tell, not measured",
    "default": "the library's default, not measured",
}


def figure(matrix: LinkMatrix) -> go.Figure | None:
    """Draw a row and a column for each server. Cells of unknown links stay empty."""
    servers = matrix.servers
    if len(servers) < 2:
        return None
    place = {name: number for number, name in enumerate(servers)}
    size = len(servers)
    rates: list[list[float | None]] = [[None] * size for _ in servers]
    texts = [[""] * size for _ in servers]
    hover = [[""] * size for _ in servers]
    for link in matrix.links:
        for one, other in ((link.first, link.second), (link.second, link.first)):
            row, column = place[one], place[other]
            hover[row][column] = _explained(link, matrix)
            if link.source != "default":
                rates[row][column] = log10(link.bytes_per_second)
                texts[row][column] = _short(link) if size <= _LABELLED_SERVERS else ""
    drawn = base_figure(margin={"l": 8, "r": 8, "t": 8, "b": 8}, height=_height(size))
    drawn.add_trace(
        go.Heatmap(
            z=rates,
            x=list(range(size)),
            y=list(range(size)),
            colorscale=[[0.0, _SLOW], [1.0, _FAST]],
            **_range([rate for row in rates for rate in row if rate is not None]),
            showscale=False,
            xgap=2 if size <= 24 else 0.5,
            ygap=2 if size <= 24 else 0.5,
            text=texts,
            texttemplate="%{text}",
            textfont={"color": "#ffffff", "size": 11},
            customdata=hover,
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
    names = [plain_text(name, 24) for name in servers]
    axis = {
        "showgrid": False, "zeroline": False, "showline": False, "ticks": "", "fixedrange": True,
        "automargin": True, "tickvals": list(range(size)) if size <= _NAMED_SERVERS else [],
        "ticktext": names if size <= _NAMED_SERVERS else [], "tickfont": {"size": 11 if size <= 24 else 8},
    }  # fmt: skip
    drawn.update_xaxes(side="top", tickangle=0 if size <= _LABELLED_SERVERS else -90, **axis)
    drawn.update_yaxes(autorange="reversed", **axis)
    return drawn


def caption(matrix: LinkMatrix) -> str:
    """Return how many links were measured, the slowest one, and the latest failed measurement."""
    measured = [link for link in matrix.links if link.source == "measured"]
    word = "pair" if len(matrix.links) == 1 else "pairs"
    said = [f"Measured while idle: {len(measured)} of {len(matrix.links)} {word} of servers."]
    if measured:
        worst = min(measured, key=lambda link: link.bytes_per_second)
        said.append(
            f"Slowest: {worst.first} – {worst.second}, {byte_rate(worst.bytes_per_second)}, "
            f"{milliseconds(worst.latency_seconds)}, {_age(worst, matrix)}."
        )
    if any(link.emulated for link in matrix.links):
        said.append("Emulated links.")
    failed = [link for link in matrix.links if link.problem]
    if failed:
        last = max(failed, key=lambda link: link.tried_at or matrix.now)
        said.append(f"Last without result: {last.first} – {last.second}, {last.problem}.")
    return " ".join(said)


def _explained(link: MatrixLink, matrix: LinkMatrix) -> str:
    emulated = " (emulated)" if link.emulated else ""
    rows = [
        f"{plain_text(link.first)} – {plain_text(link.second)}",
        f"{byte_rate(link.bytes_per_second)}, latency {milliseconds(link.latency_seconds)}{emulated}",
        _SOURCES[link.source] + (f" {_age(link, matrix)}" if link.source == "measured" else ""),
    ]
    if link.measuring:
        rows.append("being measured now")
    elif link.problem:
        rows.append(f"last try: {plain_text(link.problem, 100)}")
    return "<br>".join(rows)


def _short(link: MatrixLink) -> str:
    suffix = "" if link.source == "measured" else " told"
    return f"{byte_rate(link.bytes_per_second)}<br>{milliseconds(link.latency_seconds)}{suffix}"


def _age(link: MatrixLink, matrix: LinkMatrix) -> str:
    if link.since is None:
        return ""
    return f"{duration_text((matrix.now - link.since).total_seconds())} ago"


def _range(rates: list[float]) -> dict[str, float]:
    """Return the colour range, at least a factor of ten, so that equally fast links share one colour."""
    if not rates:
        return {"zmin": 0.0, "zmax": 1.0}
    return {"zmin": min(*rates, max(rates) - 1.0), "zmax": max(rates)}


def _height(servers: int) -> int:
    return int(max(140, 60 + servers * (56 if servers <= _LABELLED_SERVERS else 24 if servers <= 24 else 11)))


PANEL = Panel(
    title="Links between servers",
    load=lambda request: link_matrix(request.now),
    figure=figure,
    empty="There are no two servers.",
    refresh_on=("servers",),
    caption=caption,
)
