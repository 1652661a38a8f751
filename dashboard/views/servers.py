"""Servers: leases, GPUs, what runs where, and draining."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from cluster.selectors.machines import cluster_shown
from dashboard.colours import job_colours
from dashboard.views.access import page, person
from dashboard.views.rendering import Fragment, render_page
from scheduling.selectors.servers_page import server_cards
from scheduling.selectors.standby import standby_of


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
    """Every server of the cluster; operators also drain them here."""
    fragments = {"cards": Fragment("dashboard/parts/servers.html", _cards)}
    return render_page(request, "dashboard/servers.html", fragments, section="servers")
