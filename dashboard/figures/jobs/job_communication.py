"""A job's communication plan beside the plans that it beat, predicted and measured."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from dashboard import colours
from dashboard.figures.panel import Panel, base_figure, plain_text
from scheduling.selectors.network.communication import communication_of

_NAMES = {
    "dense": "no plan",
    "zen": "Zen",
    "cupcake": "Cupcake",
    "espresso": "Espresso",
    "lina": "Lina's schedule",
    "combined": "combined",
}


def figure(report: dict[str, Any]) -> go.Figure | None:
    """Draw a bar for each plan: predicted iteration time, and the measured one if there is any."""
    chosen = report["chosen"]
    if chosen is None:
        return None
    plans = [chosen, *report["beaten"]]
    names = [_name(plan) for plan in plans]
    measured = [report["measured_seconds"], *(_without(report, plan) for plan in report["beaten"])]
    drawn = base_figure(margin={"l": 130, "r": 16, "t": 28, "b": 46}, barmode="group", showlegend=True)
    drawn.add_trace(
        go.Bar(
            y=names,
            x=[_milliseconds(plan["predicted"]["iteration_seconds"]) for plan in plans],
            orientation="h",
            name="Predicted",
            marker={"color": [colours.PROMISED, *[colours.NEUTRAL] * (len(plans) - 1)]},
            customdata=[_details(plan) for plan in plans],
            hovertemplate="%{y}: %{x:.1f} ms predicted<br>%{customdata}<extra></extra>",
        )
    )
    if any(seconds is not None for seconds in measured):
        drawn.add_trace(
            go.Bar(
                y=names,
                x=[None if seconds is None else _milliseconds(seconds) for seconds in measured],
                orientation="h",
                name="Measured",
                marker={"color": colours.GOOD},
                hovertemplate="%{y}: %{x:.1f} ms measured<extra></extra>",
            )
        )
    drawn.update_xaxes(title_text="ms an iteration", rangemode="tozero")
    drawn.update_yaxes(autorange="reversed", automargin=True)
    return drawn


def _without(report: dict[str, Any], plan: dict[str, Any]) -> float | None:
    return report["seconds_without_plan"] if plan["planner"] == "dense" else None


def _name(plan: dict[str, Any]) -> str:
    name = _NAMES.get(plan["planner"], plain_text(plan["planner"], 20))
    return name if plan["codec"] == "none" else f"{name}, {plain_text(plan['codec'], 20)}"


def _details(plan: dict[str, Any]) -> str:
    predicted = plan["predicted"]
    loss = "nothing is lost" if plan["lossless"] else "what is lost is sent later"
    return (
        f"{predicted['bytes_between'] / 1e6:.1f} MB to each server, "
        f"{_milliseconds(predicted['exposed_seconds']):.1f} ms waited for<br>"
        f"{plan['buffer_bytes'] / 1e6:.1f} MB of each GPU's memory; {loss}"
    )


def _milliseconds(seconds: float) -> float:
    return 1e3 * seconds


def caption(report: dict[str, Any]) -> str:
    """Return why this plan was chosen, for which links, and its measured results."""
    if report["chosen"] is None:
        return ""
    links = report["links"]
    words = [f"Predicted {report['speedup']:.2f} times as fast as without a plan"]
    if links is not None:
        rate = 8e-9 * links["between"]["bytes_per_second"]
        told_by = "emulated, measured" if _measured_emulated(links) else links["told_by"]
        words[0] += f" on {rate:.3g} Gbit/s between servers ({told_by})"
    window = report["window"]
    if window and window.get("dense_bytes"):
        saved = 1.0 - window["received_bytes"] / window["dense_bytes"]
        words.append(f"{saved:.0%} of the bytes of all-reduces are saved")
    if window and max(window.get("push_imbalance", 1.0), window.get("pull_imbalance", 1.0)) > 1.0:
        worst = max(window["push_imbalance"], window["pull_imbalance"])
        words.append(f"the fullest server receives {worst:.2f} times the mean")
    if window and window.get("residual_norm"):
        words.append(f"error feedback keeps a norm of {window['residual_norm']:.3g}")
    if report["given_up"]:
        words.append(f"Given up: {report['given_up']}")
    return ". ".join(words) + ". Promises count on measured speeds only."


def _measured_emulated(links: dict[str, Any]) -> bool:
    return bool(links.get("emulated")) and links["told_by"] == "measured"


PANEL = Panel(
    title="Gradients on the wire",
    load=lambda request: communication_of(request.the_job()),
    figure=figure,
    empty="The job has no communication plan: its gradients are all-reduced uncompressed.",
    refresh_on=("changed",),
    caption=caption,
)
