"""The planner's decisions, and their reasons."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from dashboard.views.access import page, person
from dashboard.views.rendering import Fragment, render_page
from scheduling.models import Decision, Incident
from scheduling.selectors.decisions.decisions_page import decisions_page
from scheduling.selectors.decisions.incidents import incidents_shown_to


def _rows(request: HttpRequest) -> dict[str, Any]:
    text = request.GET.get("page", "1")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 1
    kind = request.GET.get("kind", "")
    rows, found = decisions_page(person(request), number, kind, _asked_job_id(request))
    query = request.GET.copy()
    query.pop("page", None)
    query.pop("fragment", None)
    return {"rows": rows, "page": found, "query": query.urlencode()}


def _incidents(request: HttpRequest) -> list[Incident]:
    return incidents_shown_to(person(request), timezone.now())


def _asked_job_id(request: HttpRequest) -> str:
    text = request.GET.get("job", "")[:16]
    return text if text.isalnum() else ""


@page
def decisions(request: HttpRequest) -> HttpResponse:
    """Show decisions about the user's jobs, newest first."""
    query = request.GET.copy()
    query.pop("fragment", None)
    context = {
        "kinds": Decision.Kind.choices,
        "kind": request.GET.get("kind", ""),
        "job_id": _asked_job_id(request),
        "query_string": query.urlencode(),
    }
    fragments = {
        "incidents": Fragment("dashboard/parts/cluster/incidents.html", _incidents),
        "decisions": Fragment("dashboard/parts/cluster/decisions.html", _rows),
    }
    return render_page(request, "dashboard/decisions.html", fragments, section="decisions", context=context)
