"""Pages made of fragments: a page contains all of them, and its script refetches single ones to stay
current."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from cluster.selectors.utilisation import servers_without_sandbox
from dashboard.views.access import person
from scheduling.selectors.cluster.planner_presence import PlannerAbsence, planner_absence

Loader = Callable[[HttpRequest], Any]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a page: its template receives the result of ``load`` under the fragment's name."""

    template: str
    load: Loader


def _planner(request: HttpRequest) -> PlannerAbsence | None:
    return planner_absence(timezone.now())


#: Parts of the frame around every page that are refreshed too.
_FRAME = {"planner": Fragment("dashboard/parts/cluster/planner.html", _planner)}


def render_page(
    request: HttpRequest,
    template: str,
    fragments: Mapping[str, Fragment],
    *,
    section: str,
    context: Mapping[str, Any] | None = None,
) -> HttpResponse:
    """Return the whole page, or the one fragment that `?fragment=` names."""
    wanted = request.GET.get("fragment")
    if wanted is not None:
        fragment = {**_FRAME, **fragments}.get(wanted)
        if fragment is None:
            raise Http404("no such fragment")
        values = {**(context or {}), wanted: fragment.load(request), "operates": person(request).operates()}
        return render(request, fragment.template, values)
    values = {name: fragment.load(request) for name, fragment in fragments.items()}
    return render(request, template, {**base_context(request, section), **(context or {}), **values})


def base_context(request: HttpRequest, section: str) -> dict[str, Any]:
    """Return the context of the frame around every page."""
    return {
        "section": section,
        "operates": person(request).operates(),
        "servers_without_sandbox": servers_without_sandbox(),
        **{name: fragment.load(request) for name, fragment in _FRAME.items()},
    }
