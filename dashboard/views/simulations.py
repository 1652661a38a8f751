"""Simulations with other policies or more servers. For operators, since they show the jobs of all
projects."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone

from dashboard.views.access import data, page, person
from dashboard.views.rendering import Fragment, render_page
from projects.errors import NotFound
from simulation.choices import TraceKind
from simulation.models import SimulationStudy
from simulation.selectors.pages import comparison_figure, comparison_table, run_rows, studies_page
from simulation.selectors.studies import COMPARISON_FIGURES, figures_of, study_get

#: Defaults for traces without a published cluster.
USUAL_SERVERS, USUAL_GPUS_PER_SERVER, USUAL_SLOT_SECONDS = 16, 8, 60.0
POLICIES_AT_FIRST = 2


def _operators_only(request: HttpRequest) -> None:
    if not person(request).operates():
        raise PermissionDenied(
            "Simulations are for operators: they show the jobs of all projects. Ask an operator for a study, "
            "or for the right."
        )


def _study_or_404(study_id: int) -> SimulationStudy:
    try:
        return study_get(study_id)
    except NotFound as error:
        raise Http404(error.detail) from error


def _list(request: HttpRequest) -> dict[str, Any]:
    text = request.GET.get("page", "1")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 1
    rows, found = studies_page(number)
    return {"rows": rows, "page": found}


@page
def simulations(request: HttpRequest) -> HttpResponse:
    """Show all studies, and the form for a new one."""
    _operators_only(request)
    # Imported here because it loads the simulator.
    from simulation.selectors import choices

    traces, problem = choices.traces_offered()
    context = {
        "groups": [
            (label, [trace for trace in traces if trace.kind == kind and trace.available])
            for kind, label in TraceKind.choices
        ],
        "problem": problem,
        "missing": sum(not trace.available for trace in traces),
        "policies": choices.policies_offered(),
        "policies_at_first": choices.policies_offered()[:POLICIES_AT_FIRST],
        "borrowing_policies": choices.borrowing_policies(),
        "pricing_policies": choices.pricing_policies(),
        "usages": [usage for usage in choices.usages_offered() if usage.available],
        "reclaims": choices.reclaims_offered(),
        "forecasters": choices.forecasters_offered(),
        "live": choices.live_cluster(),
        "usual": {
            "servers": USUAL_SERVERS,
            "gpus_per_server": USUAL_GPUS_PER_SERVER,
            "slot_seconds": USUAL_SLOT_SECONDS,
        },
    }
    fragments = {"studies": Fragment("dashboard/parts/simulations/studies.html", _list)}
    return render_page(
        request, "dashboard/simulations.html", fragments, section="simulations", context=context
    )


@page
def simulation(request: HttpRequest, study_id: int) -> HttpResponse:
    """Show one study: the progress of its runs, and the comparison of finished ones."""
    _operators_only(request)
    study = _study_or_404(study_id)
    panels = {
        name: {"title": title, "height": 300, "refresh_on": ("compared",), "has_note": True}
        for name, title in figures_of(study).items()
    }
    fragments = {
        "runs": Fragment("dashboard/parts/simulations/runs.html", lambda _: run_rows(study, timezone.now())),
        "comparison": Fragment(
            "dashboard/parts/simulations/comparison.html", lambda _: comparison_table(study)
        ),
    }
    context = {"study": study, "panels": panels}
    return render_page(
        request, "dashboard/simulation.html", fragments, section="simulations", context=context
    )


@data
def simulation_panel(request: HttpRequest, study_id: int, name: str) -> HttpResponse:
    """Return one figure of the comparison as JSON."""
    _operators_only(request)
    if name not in COMPARISON_FIGURES:
        raise Http404("no such panel")
    return JsonResponse(comparison_figure(_study_or_404(study_id), name))
