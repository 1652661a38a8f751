"""Panels, and the common look of all figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import plotly.graph_objects as go

from deployments.models import Deployment
from lending.models import InferenceCluster
from projects.models import User
from scheduling.models import Job, Recovery

Data = TypeVar("Data")


@dataclass(frozen=True, slots=True)
class PanelRequest:
    """Request for a panel: its user, time and time window, and the job, inference cluster, recovery or
    deployment of its page."""

    user: User
    #: Time of the request.
    now: datetime
    #: Length of the time window.
    window: timedelta
    job: Job | None = None
    inference_cluster: InferenceCluster | None = None
    recovery: Recovery | None = None
    deployment: Deployment | None = None

    @property
    def since(self) -> datetime:
        return self.now - self.window

    def the_job(self) -> Job:
        """Return the job of a job's page. Raises LookupError on another page."""
        if self.job is None:
            raise LookupError("this panel belongs on a job's page")
        return self.job

    def the_recovery(self) -> Recovery:
        """Return the recovery of a recovery's page. Raises LookupError on another page."""
        if self.recovery is None:
            raise LookupError("this panel belongs on a recovery's page")
        return self.recovery

    def the_deployment(self) -> Deployment:
        """Return the deployment of a deployment's page. Raises LookupError on another page."""
        if self.deployment is None:
            raise LookupError("this panel belongs on a deployment's page")
        return self.deployment

    def the_inference_cluster(self) -> InferenceCluster:
        """Return the inference cluster of the lending page. Raises LookupError on another page."""
        if self.inference_cluster is None:
            raise LookupError("this panel belongs on the lending page")
        return self.inference_cluster


@dataclass(frozen=True, slots=True)
class Panel(Generic[Data]):
    """One figure of a page: how to load its data, how to draw it, and the text to show if there is none.

    ``figure`` is pure and returns None if there is nothing to draw. ``refresh_on`` names the kinds of change
    (docs/dashboard.md) after which it is drawn again.
    """

    #: Heading of the panel.
    title: str
    #: Reads the data of the figure.
    load: Callable[[PanelRequest], Data]
    figure: Callable[[Data], go.Figure | None]
    #: Text without a figure.
    empty: str
    refresh_on: tuple[str, ...]
    #: A sentence below the title that explains the figure.
    note: str = ""
    #: Height of the figure in pixels.
    height: int = 260
    #: The same, computed from the data.
    caption: Callable[[Data], str] | None = None
    #: Whether the caption is also shown without a figure.
    caption_when_empty: bool = False
    #: Whether the page omits the panel for this data; None: never.
    is_absent: Callable[[Data], bool] | None = None

    @property
    def has_note(self) -> bool:
        """Whether the sentence is computed with the figure."""
        return self.caption is not None

    def draw(self, request: PanelRequest) -> dict[str, Any]:
        """Return the figure as JSON-able dicts for Plotly with its caption, or the text for an empty one, or
        that the panel is absent.

        An empty panel of a job that has ended is absent, since nothing will come.
        """
        data = self.load(request)
        if self.is_absent is not None and self.is_absent(data):
            return {"absent": True}
        figure = self.figure(data)
        if figure is None and request.job is not None and request.job.finished():
            return {"absent": True}
        told = self.caption is not None and (figure is not None or self.caption_when_empty)
        note = {"note": self.caption(data)} if told and self.caption is not None else {}
        if figure is None:
            return {"empty": self.empty, **note}
        return {"figure": figure.to_plotly_json(), **note}


def base_figure(**layout: Any) -> go.Figure:
    """Return an empty figure without Plotly's own template: text and grid colours are those of the page
    (light or dark)."""
    # One call, since setting them one by one takes ten times as long.
    figure = go.Figure(
        layout={
            "template": go.layout.Template(),
            "margin": {"l": 52, "r": 16, "t": 12, "b": 46},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "hovermode": "closest",
            "legend": {
                "orientation": "h",
                "yanchor": "bottom",
                "y": 1.02,
                "xanchor": "left",
                "x": 0,
                "traceorder": "normal",
            },
            "bargap": 0.25,
            "uirevision": "keep",
        }
    )
    figure.update_layout(**layout)
    return figure


def mark_time(
    figure: go.Figure, moment: datetime, text: str, colour: str, dash: str = "dash", side: str = "auto"
) -> None:
    """Add a vertical line at a time, with its name at the top and without a legend entry.

    Args:
        side: `right` ends the name at the line and `left` begins it there, as Plotly's anchors do.
    """
    figure.add_shape(
        type="line", xref="x", yref="paper", x0=moment, x1=moment, y0=0, y1=1,
        line={"color": colour, "width": 1.5, "dash": dash},
    )  # fmt: skip
    figure.add_annotation(
        x=moment, xref="x", y=1, yref="paper", text=text, showarrow=False,
        xanchor=side, yanchor="bottom", font={"color": colour, "size": 11},
    )  # fmt: skip


def plain_text(text: str, maximum_length: int = 60) -> str:
    """Return external text for use in a figure, escaped because Plotly interprets some HTML tags."""
    shortened = text if len(text) <= maximum_length else f"{text[: maximum_length - 1]}…"
    return shortened.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
