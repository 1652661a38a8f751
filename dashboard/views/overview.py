"""The overview of the cluster, the queue and the promises."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from plotly.utils import PlotlyJSONEncoder

from cluster.selectors.utilisation import agent_counts
from dashboard.figures import OVERVIEW_PANELS, PanelRequest
from dashboard.views.access import data, page, person
from dashboard.views.rendering import Fragment, render_page
from scheduling.selectors.cluster.servers_page import server_cards
from scheduling.selectors.jobs.jobs_table import has_any_job
from scheduling.selectors.jobs.overview import queue, tiles

#: Selectable time windows of the charts; the first is the default.
WINDOWS = {
    "15m": ("15 min", timedelta(minutes=15)),
    "1h": ("1 h", timedelta(hours=1)),
    "6h": ("6 h", timedelta(hours=6)),
    "24h": ("24 h", timedelta(hours=24)),
    "7d": ("7 days", timedelta(days=7)),
}


def _tiles(request: HttpRequest) -> dict[str, Any]:
    return {"counts": tiles(person(request)), "agents": agent_counts()}


FRAGMENTS = {
    "tiles": Fragment("dashboard/parts/tiles.html", _tiles),
    "queue": Fragment(
        "dashboard/parts/jobs/queue.html", lambda request: queue(person(request), timezone.now())
    ),
    "agents": Fragment(
        "dashboard/parts/cluster/agents.html", lambda request: server_cards(person(request), timezone.now())
    ),
}


def chosen_window(request: HttpRequest) -> str:
    """Return the window that the address names, or the default one."""
    name = request.GET.get("window", "")
    return name if name in WINDOWS else "15m"


@page
def overview(request: HttpRequest) -> HttpResponse:
    """Show the page; its script fetches the figures."""
    context = {
        "panels": OVERVIEW_PANELS,
        "windows": {name: label for name, (label, _) in WINDOWS.items()},
        "window": chosen_window(request),
        "newcomer": not has_any_job(person(request)),
    }
    return render_page(request, "dashboard/overview.html", FRAGMENTS, section="overview", context=context)


@data
def overview_panel(request: HttpRequest, name: str) -> HttpResponse:
    """Return one figure of the overview as JSON."""
    panel = OVERVIEW_PANELS.get(name)
    if panel is None:
        raise Http404("no such panel")
    window = WINDOWS[chosen_window(request)][1]
    drawn = panel.draw(PanelRequest(user=person(request), now=timezone.now(), window=window))
    return JsonResponse(drawn, encoder=PlotlyJSONEncoder)
