"""The page of one recovery."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from plotly.utils import PlotlyJSONEncoder

from dashboard.figures import RECOVERY_PANELS, PanelRequest
from dashboard.views.access import data, page, person
from dashboard.views.rendering import Fragment, render_page
from scheduling.choices import StateSource
from scheduling.models import Recovery
from scheduling.selectors.recovery.recoveries import names_of_servers, visible_recovery

#: The page of a large job shows only the first ranks; the API returns all.
RANKS_SHOWN = 64


def _recovery_or_404(request: HttpRequest, job_id: str, number: int) -> Recovery:
    found = visible_recovery(person(request), job_id, number)
    if found is None:
        raise Http404("no such recovery")
    return found


@page
def recovery(request: HttpRequest, job_id: str, number: int) -> HttpResponse:
    """Show the lost work, the source of each rank's state, and the length of each phase."""
    found = _recovery_or_404(request, job_id, number)
    fragments = {"summary": Fragment("dashboard/parts/jobs/recovery_summary.html", lambda _: _summary(found))}
    context = {"recovery": found, "job": found.job, "panels": RECOVERY_PANELS}
    return render_page(request, "dashboard/recovery.html", fragments, section="jobs", context=context)


def _summary(found: Recovery) -> dict[str, Any]:
    names = names_of_servers([found])
    return {
        "down_seconds": found.down_seconds(timezone.now()),
        "lost_work_seconds": found.lost_work_seconds(),
        "iterations_lost": found.iterations_lost(),
        "sources": [
            {
                "rank": one["rank"],
                "server": names.get(one["server"], one["server"]),
                "source": StateSource(one["source"]).label,
                "holders": [names.get(holder, holder) for holder in one["holders"]],
            }
            for one in found.sources[:RANKS_SHOWN]
        ],
        "more_ranks": max(0, len(found.sources) - RANKS_SHOWN),
    }


@data
def recovery_panel(request: HttpRequest, job_id: str, number: int, name: str) -> HttpResponse:
    """Return one figure of a recovery's page as JSON."""
    panel = RECOVERY_PANELS.get(name)
    if panel is None:
        raise Http404("no such panel")
    found = _recovery_or_404(request, job_id, number)
    asked = PanelRequest(
        user=person(request), now=timezone.now(), window=timedelta(0), job=found.job, recovery=found
    )
    return JsonResponse(panel.draw(asked), encoder=PlotlyJSONEncoder)
