"""The jobs table and a job's page."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from plotly.utils import PlotlyJSONEncoder

from dashboard.figures import JOB_DETAIL_PANELS, JOB_PANELS, PanelRequest
from dashboard.views.access import data, page, person
from dashboard.views.rendering import Fragment, render_page
from deployments.selectors.servable import inference_cluster_names, is_deployable
from punctual.names import normalised
from scheduling.choices import JobState, ServiceClass
from scheduling.models import Job, LogChunk
from scheduling.selectors.jobs import job_page as selectors
from scheduling.selectors.jobs.environments import installer_output
from scheduling.selectors.jobs.experts import newest_decisions
from scheduling.selectors.jobs.job_times import (
    planned_finish_at,
    planned_start_at,
    progress_share,
    slack_seconds,
)
from scheduling.selectors.jobs.jobs_table import PROMISE_FILTERS, JobFilters, has_any_job, jobs_page
from scheduling.selectors.jobs.nonfinite import warning_of
from scheduling.selectors.jobs.standing import standing
from scheduling.selectors.recovery.recoveries import recoveries_of
from scheduling.selectors.scope.streams import log_chunks_after
from scheduling.selectors.scope.visibility import steerable_project_ids, visible_projects

_LOG_CHUNKS = 200
_RECOVERIES_SHOWN = 20
_DECISIONS_SHOWN = 20


def read_filters(request: HttpRequest) -> JobFilters:
    """Return the filters of the address; invalid values are ignored."""
    asked = request.GET
    service_class = asked.get("class", "")
    promise = asked.get("promise", "")
    return JobFilters(
        search=normalised(asked.get("search", "").strip().replace("\x00", "")[:200]),
        states=tuple(JobState(state) for state in asked.getlist("state") if state in JobState.values),
        service_class=ServiceClass(service_class) if service_class in ServiceClass.values else None,
        project=asked.get("project", "")[:64].replace("\x00", ""),
        promise=promise if promise in PROMISE_FILTERS else "",
        mine=asked.get("mine") == "1",
    )


def _page_number(request: HttpRequest) -> int:
    text = request.GET.get("page", "1")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 1


def _table(request: HttpRequest) -> dict[str, Any]:
    found = jobs_page(person(request), read_filters(request), _page_number(request), timezone.now())
    query = request.GET.copy()
    query.pop("page", None)
    query.pop("fragment", None)
    newcomer = not found.rows and not found.filters.any()
    return {
        "found": found,
        "query": query.urlencode(),
        "newcomer": newcomer and not has_any_job(person(request)),
    }


@page
def jobs(request: HttpRequest) -> HttpResponse:
    """Show all jobs that the user may see, filtered."""
    query = request.GET.copy()
    query.pop("fragment", None)
    context = {
        "filters": read_filters(request),
        "states": JobState.choices,
        "classes": ServiceClass.choices,
        "promises": PROMISE_FILTERS,
        "projects": visible_projects(person(request)),
        "query_string": query.urlencode(),
    }
    fragments = {"table": Fragment("dashboard/parts/jobs/table.html", _table)}
    return render_page(request, "dashboard/jobs.html", fragments, section="jobs", context=context)


def _job_or_404(request: HttpRequest, job_id: str) -> Job:
    found = selectors.visible_job(person(request), job_id)
    if found is None:
        # An invisible job and a missing one give the same response.
        raise Http404("no such job")
    return found


@page
def job(request: HttpRequest, job_id: str) -> HttpResponse:
    """Show one job: verdict, progress, figures, history, files and logs."""
    found = _job_or_404(request, job_id)

    fragments = {
        "summary": Fragment("dashboard/parts/jobs/summary.html", lambda request: _summary(request, found)),
        "events": Fragment(
            "dashboard/parts/jobs/events.html",
            lambda request: selectors.newest_events(person(request), found),
        ),
        "recoveries": Fragment(
            "dashboard/parts/jobs/recoveries.html", lambda _: list(recoveries_of(found)[:_RECOVERIES_SHOWN])
        ),
        "packing": Fragment(
            "dashboard/parts/jobs/packing.html", lambda _: newest_decisions(found, _DECISIONS_SHOWN)
        ),
        "files": Fragment("dashboard/parts/jobs/files.html", lambda _: _files(found)),
    }
    context = {"job": found, "panels": JOB_PANELS, "detail_panels": JOB_DETAIL_PANELS}
    return render_page(request, "dashboard/job.html", fragments, section="jobs", context=context)


def _summary(request: HttpRequest, found: Job) -> dict[str, Any]:
    now = timezone.now()
    steerable = steerable_project_ids(person(request))
    may_steer = steerable is None or found.project_id in steerable
    kinds = selectors.gpu_kinds(found)
    return {
        "now": now,
        "progress": progress_share(found),
        "planned_start_at": planned_start_at(found, now),
        "planned_finish_at": planned_finish_at(found),
        "slack_seconds": slack_seconds(found, now),
        "share": selectors.minimum_satisfactory_share(found),
        "verdict": selectors.verdict_shown(person(request), found),
        "installer_output": installer_output(found),
        "standing": standing(found, now),
        "warning": warning_of(found),
        "offer": selectors.open_offer(found, now),
        "successor": selectors.successor(found),
        "may_steer": may_steer,
        "deploys_to": inference_cluster_names() if may_steer and is_deployable(found) else [],
        "gpu_kinds": kinds,
        "reserved_memory": selectors.reserved_memory(found),
        "emulated": any(emulated for _, emulated in kinds),
    }


def _files(found: Job) -> dict[str, Any]:
    return {"artifacts": selectors.artifacts(found), "checkpoints": selectors.stored_checkpoints(found)}


@data
def job_panel(request: HttpRequest, job_id: str, name: str) -> HttpResponse:
    """Return one figure of a job's page as JSON."""
    panel = (JOB_PANELS | JOB_DETAIL_PANELS).get(name)
    if panel is None:
        raise Http404("no such panel")
    drawn = panel.draw(
        PanelRequest(
            user=person(request), now=timezone.now(), window=timedelta(0), job=_job_or_404(request, job_id)
        )
    )
    return JsonResponse(drawn, encoder=PlotlyJSONEncoder)


@data
def job_log(request: HttpRequest, job_id: str) -> HttpResponse:
    """Return pieces of the log as JSON: its end, or the pieces after `?after=<chunk id>`."""
    found = _job_or_404(request, job_id)
    after = request.GET.get("after", "")
    if after.isascii() and after.isdigit() and len(after) < 19:
        chunks = log_chunks_after(found.pk, int(after), _LOG_CHUNKS)
    else:
        chunks = selectors.newest_log_chunks(found, _LOG_CHUNKS)
    return JsonResponse({"chunks": [_chunk(chunk) for chunk in chunks], "finished": found.finished()})


def _chunk(chunk: LogChunk) -> dict[str, Any]:
    return {"id": chunk.id, "generation": chunk.generation, "rank": chunk.rank, "text": chunk.text}
