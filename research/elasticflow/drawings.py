"""Drawings of the comparison: published values beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from research.elasticflow.rows import PolicyRow, Variant
from research.store import RunResult
from simulation.reports.style import (
    DASHES,
    NEUTRAL,
    PALETTE,
    PROMISED,
    WARNING,
    Drawing,
    base_figure,
    plain_text,
)

AUTHORS = WARNING
NOTHING = "None of its runs is there."


def bars(
    name: str, title: str, rows: Sequence[PolicyRow], *, axis: str = "share on time", form: str = ".3f"
) -> Drawing:
    """Draw one group of bars per row: published, the authors' simulator if known, and ours."""
    note = "Grey: published. Orange: the authors' own simulator, where it is known. Blue: ours."
    kept = [row for row in rows if row.ours is not None]
    if not kept:
        return Drawing(name, title, note, None, NOTHING, wide=True)
    several = len({row.x for row in kept}) > 1
    labels = [_label(row, several) for row in kept]
    figure = base_figure(
        barmode="group", bargap=0.28, height=360, margin={"l": 120, "r": 16, "t": 12, "b": 110}
    )
    for series, values, colour in (
        ("Published", [row.published for row in kept], NEUTRAL),
        ("Authors' simulator", [row.authors for row in kept], AUTHORS),
        ("Ours", [row.ours for row in kept], PROMISED),
    ):
        if any(value is not None for value in values):
            figure.add_trace(
                go.Bar(
                    x=list(range(len(kept))), y=values, name=series, marker={"color": colour},
                    cliponaxis=False,
                    hovertemplate=f"%{{y:{form}}}<extra>{series}</extra>",
                )
            )  # fmt: skip
    figure.update_xaxes(
        tickmode="array", tickvals=list(range(len(kept))), ticktext=labels, tickangle=-35, automargin=True
    )
    figure.update_yaxes(title_text=axis, rangemode="tozero")
    return Drawing(name, title, note, figure, wide=True)


def _label(row: PolicyRow, several: bool) -> str:
    parts = [row.x] if several else []
    parts.append(row.policy + (" (batch)" if row.variant is Variant.TOGETHER else ""))
    return plain_text(", ".join(parts), 44)


def agreement(name: str, title: str, rows: Sequence[PolicyRow], *, authors: bool = False) -> Drawing:
    """Draw every value as a point: published (or the authors' simulator) across, ours up. On the diagonal
    both are equal."""
    other = "authors' simulator" if authors else "published"
    note = "On the diagonal both are equal; between the pale lines they differ by no more than 0.05."
    kept = [
        (row, value)
        for row in rows
        if row.ours is not None and (value := row.authors if authors else row.published) is not None
    ]
    if not kept:
        return Drawing(name, title, note, None, NOTHING, wide=True)
    figure = base_figure(height=460)
    for shift, colour, width in (
        (0.0, NEUTRAL, 1.5),
        (0.05, "rgba(128, 140, 156, 0.4)", 1),
        (-0.05, "rgba(128, 140, 156, 0.4)", 1),
    ):
        figure.add_trace(
            go.Scatter(x=[0, 1], y=[shift, 1 + shift], mode="lines", line={"color": colour, "width": width},
                       hoverinfo="skip", showlegend=False)
        )  # fmt: skip
    drawn: dict[str, list[tuple[PolicyRow, float]]] = {}
    for row, value in kept:
        drawn.setdefault(_label(row, several=False), []).append((row, value))
    for number, (label, points) in enumerate(drawn.items()):
        figure.add_trace(
            go.Scatter(
                x=[value for _, value in points], y=[row.ours for row, _ in points], mode="markers",
                name=label,
                text=[plain_text(row.x) for row, _ in points],
                marker={"color": PALETTE[number % len(PALETTE)], "size": 9,
                        "symbol": ("circle", "diamond", "square")[number // len(PALETTE) % 3]},
                hovertemplate=f"%{{text}}: {other} %{{x:.3f}}, ours %{{y:.3f}}<extra>{label}</extra>",
            )
        )  # fmt: skip
    figure.update_xaxes(title_text=f"{other}, share on time", range=[0, 1.02])
    figure.update_yaxes(title_text="ours, share on time", range=[0, 1.02])
    return Drawing(name, title, note, figure, wide=True)


def curves(name: str, title: str, rows: Sequence[PolicyRow], axis: str) -> Drawing:
    """Draw values over the places of a figure: published dashed, ours solid, one colour per series."""
    note = (
        "Dashed: published. Solid: ours, as the published code where there is such a variant. Dotted: "
        "punctual."
    )
    first: dict[str, PolicyRow] = {}
    for row in rows:
        first.setdefault(row.series, row)
    kept = [row for row in rows if row.ours is not None]
    if not kept:
        return Drawing(name, title, note, None, NOTHING, wide=True)
    figure = base_figure(height=420)
    for number, (series, chosen) in enumerate(first.items()):
        mine = [row for row in kept if (row.policy, row.variant) == (chosen.policy, chosen.variant)]
        colour = PALETTE[number % len(PALETTE)]
        for values, dash, label in (
            ([row.published for row in mine], "dash", f"{series}, published"),
            ([row.ours for row in mine], "solid", f"{series}, ours"),
        ):
            _line(figure, [row.x for row in mine], values, label, colour, dash)
    ours = [row for row in kept if row.variant is Variant.OURS]
    if ours:
        _line(figure, [row.x for row in ours], [row.ours for row in ours], "punctual", PROMISED, "dot")
    figure.update_xaxes(title_text="share of best-effort jobs", type="category")
    figure.update_yaxes(title_text=axis, rangemode="tozero")
    return Drawing(name, title, note, figure, wide=True)


def _line(
    figure: go.Figure, x: Sequence[str], y: Sequence[float | None], label: str, colour: str, dash: str
) -> None:
    figure.add_trace(
        go.Scatter(
            x=list(x), y=list(y), name=label, mode="lines+markers", marker={"size": 6},
            line={"color": colour, "dash": dash, "width": 1.5 if dash == "dash" else 2.5},
            hovertemplate=f"%{{x}}: %{{y:.3f}}<extra>{label}</extra>",
        )
    )  # fmt: skip


def histories(
    name: str,
    title: str,
    results: Mapping[str, RunResult],
    column: str | Sequence[str],
    axis: str,
    *,
    most_hours: float | None = None,
) -> Drawing:
    """Draw one or more columns of some runs over time, from the beginning to ``most_hours`` (None: the
    end)."""
    columns = (column,) if isinstance(column, str) else tuple(column)
    note = (
        "Means over equal spans of time, so that areas are exact. Simulated by us: nothing here is published."
    )
    drawn = {policy: result.series for policy, result in results.items() if result.series}
    if not drawn:
        return Drawing(name, title, note, None, NOTHING)
    figure = base_figure(height=340)
    number = 0
    for policy, series in drawn.items():
        for each in columns:
            label = plain_text(policy if len(columns) == 1 else f"{policy}: {each}")
            figure.add_trace(
                go.Scatter(
                    x=series["hours"], y=series[each], name=label, mode="lines",
                    line={"color": PALETTE[number % len(PALETTE)], "width": 1.5, "shape": "hv",
                          "dash": DASHES[number // len(PALETTE) % len(DASHES)]},
                    hovertemplate=f"hour %{{x:.1f}}: %{{y:.3~g}}<extra>{label}</extra>",
                )
            )  # fmt: skip
            number += 1
    end = max(series["hours"][-1] for series in drawn.values())
    if most_hours is not None and end > most_hours:
        figure.update_xaxes(range=[0, most_hours])
        note += f" The longest run ends after {end:,.0f} hours: move the axis to see it."
    figure.update_xaxes(title_text="hours since the run began")
    figure.update_yaxes(title_text=axis, rangemode="tozero")
    return Drawing(name, title, note, figure, wide=True)
