"""Pages of deployments: their state, load, latencies and servers, and a form to send a request."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from plotly.utils import PlotlyJSONEncoder

from dashboard.figures import DEPLOYMENT_PANELS, PanelRequest
from dashboard.views.access import data, page, person
from dashboard.views.lending import WINDOWS
from dashboard.views.rendering import Fragment, render_page
from deployments.choices import ReplicaState
from deployments.models import Deployment
from deployments.selectors.deployments import (
    deployment_events,
    deployment_get,
    may_change,
    newest_deployments,
    present_replicas,
    rollouts_of,
)
from deployments.selectors.history import RECENT, answered_since, servers_home_and_lent
from deployments.selectors.rings import ring_of
from projects.errors import NotFound

#: Number of rows, newest first; the API lists all.
MOST_ROWS = 100
MOST_EVENTS = 30
MOST_ROLLOUTS = 3
#: Samples are kept for a day.
SHOWN_WINDOWS = {name: label for name, (label, length) in WINDOWS.items() if length.days < 2}
FIRST_WINDOW = "1h"


@page
def deployments(request: HttpRequest) -> HttpResponse:
    """Show the deployments that the user may see."""
    fragments = {"rows": Fragment("dashboard/parts/deployments/table.html", _rows)}
    return render_page(request, "dashboard/deployments.html", fragments, section="deployments")


def _rows(request: HttpRequest) -> list[dict[str, Any]]:
    since = timezone.now() - RECENT
    return [
        {
            "deployment": deployment,
            "serving": _count_serving(deployment),
            "recent": answered_since(deployment, since),
        }
        for deployment in newest_deployments(person(request), MOST_ROWS)
    ]


def _count_serving(deployment: Deployment) -> int:
    return sum(replica.state == ReplicaState.SERVING for replica in present_replicas(deployment))


def _deployment_or_404(request: HttpRequest, deployment_id: str) -> Deployment:
    try:
        return deployment_get(person(request), deployment_id)
    except NotFound as error:
        raise Http404("no such deployment") from error


def _window(request: HttpRequest) -> str:
    name = request.GET.get("window", FIRST_WINDOW)
    return name if name in SHOWN_WINDOWS else FIRST_WINDOW


@page
def deployment(request: HttpRequest, deployment_id: str) -> HttpResponse:
    """Show one deployment."""
    found = _deployment_or_404(request, deployment_id)
    fragments = {
        "summary": Fragment("dashboard/parts/deployments/summary.html", lambda asked: _summary(asked, found)),
        "events": Fragment(
            "dashboard/parts/deployments/events.html",
            lambda _: list(deployment_events(found)[:MOST_EVENTS]),
        ),
    }
    context = {
        "deployment": found,
        "panels": DEPLOYMENT_PANELS,
        "windows": SHOWN_WINDOWS,
        "window": _window(request),
        "may_ask": may_change(person(request), found) and not found.is_ending(),
    }
    return render_page(
        request, "dashboard/deployment.html", fragments, section="deployments", context=context
    )


def _summary(request: HttpRequest, found: Deployment) -> dict[str, Any]:
    return {
        "serving": _count_serving(found),
        "replicas": present_replicas(found),
        "rings": [
            (replica.server.name, ring)
            for replica in present_replicas(found)
            if (ring := ring_of(replica)) is not None
        ],
        "recent": answered_since(found, timezone.now() - RECENT),
        "servers": servers_home_and_lent(found),
        "rollouts": rollouts_of(found)[-MOST_ROLLOUTS:],
        "emulated": any(replica.gpu.emulated for replica in present_replicas(found)),
        "may_change": may_change(person(request), found) and not found.is_ending(),
        "may_roll_back": sum(rollout.served_at is not None for rollout in rollouts_of(found)) > 1,
    }


@data
def deployment_panel(request: HttpRequest, deployment_id: str, name: str) -> HttpResponse:
    """Return one figure of a deployment's page as JSON."""
    panel = DEPLOYMENT_PANELS.get(name)
    if panel is None:
        raise Http404("no such panel")
    found = _deployment_or_404(request, deployment_id)
    window = WINDOWS[_window(request)][1]
    asked = PanelRequest(user=person(request), now=timezone.now(), window=window, deployment=found)
    return JsonResponse(panel.draw(asked), encoder=PlotlyJSONEncoder)
