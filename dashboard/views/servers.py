"""Servers: leases, GPUs, assignments, and draining."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from plotly.utils import PlotlyJSONEncoder

from cluster.selectors.machines import cluster_shown
from dashboard.colours import job_colours
from dashboard.figures import SERVERS_PANELS, PanelRequest
from dashboard.views.access import data, page, person
from dashboard.views.rendering import Fragment, render_page
from scheduling.selectors.cluster.servers_page import server_cards
from scheduling.selectors.cluster.standby import standby_of
from scheduling.selectors.network.codec_times import codec_times


def _cards(request: HttpRequest) -> dict[str, Any]:
    cards = server_cards(person(request), timezone.now())
    shown = {
        gpu.occupant.job_id
        for card in cards
        for gpu in card.gpus
        if gpu.occupant and gpu.occupant.job_id is not None
    }
    cluster = cluster_shown()
    standby = None if cluster is None else standby_of(cluster)
    return {"cards": cards, "colours": job_colours(shown), "standby": standby}


@page
def servers(request: HttpRequest) -> HttpResponse:
    """Show every server of the cluster; operators can also drain them here."""
    fragments = {
        "cards": Fragment("dashboard/parts/cluster/servers.html", _cards),
        "codecs": Fragment("dashboard/parts/cluster/codecs.html", lambda _request: codec_times()),
    }
    return render_page(
        request, "dashboard/servers.html", fragments, section="servers", context={"panels": SERVERS_PANELS}
    )


@data
def servers_panel(request: HttpRequest, name: str) -> HttpResponse:
    """Return one figure of the page as JSON."""
    panel = SERVERS_PANELS.get(name)
    if panel is None:
        raise Http404("no such panel")
    drawn = panel.draw(PanelRequest(user=person(request), now=timezone.now(), window=timedelta()))
    return JsonResponse(drawn, encoder=PlotlyJSONEncoder)
