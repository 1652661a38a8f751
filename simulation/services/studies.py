"""Starting studies."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from cluster.choices import FINAL_WORK_STATES
from projects.errors import Conflict, QuotaExceeded
from projects.models import User
from scheduling.core.question.snapshot import Newcomers
from scheduling.services.requests.jobs import default_cluster
from simulation.choices import StudySource
from simulation.live.capture import capture, live_settings
from simulation.live.lent import serving_now
from simulation.live.state import pack
from simulation.models import SimulationRun, SimulationStudy
from simulation.selectors.choices import traces_offered
from simulation.services.asking import (
    StudyRequest,
    check_newcomers,
    check_policies,
    check_size,
    invalid,
    newcomers_notes,
    runs_asked,
)
from simulation.services.lending import (
    UsualLoans,
    check_loans,
    lent_gpu_type,
    loan_columns,
    loan_notes,
    loans_of_live,
)
from simulation.services.runs import RUNS, tell_pages
from simulation.workloads.catalogue import TraceListing, gpu_types_of, load_workload, reference_gpu_type
from simulation.workloads.errors import TraceError, listed


def study_start(*, actor: User, request: StudyRequest) -> SimulationStudy:
    """Store and queue a study, with a run for each policy, number of servers, number of inference servers,
    and rule for newcomers.

    Raises:
        InvalidRequest: unknown policies or trace, or a limit is exceeded.
        QuotaExceeded: too many runs are waiting.
        Unavailable: there is no live cluster to start from.
    """
    check_policies(request.policies)
    check_newcomers(request)
    check_loans(request)
    if request.source == StudySource.LIVE:
        columns = _of_live_cluster(request)
        found = columns.pop("found_servers")
        default_name = "Live cluster"
    else:
        columns, listing = _of_trace(request)
        found = listing.servers
        default_name = listing.name
    servers = tuple(dict.fromkeys(request.servers)) or ((found,) if found else ())
    if not servers:
        raise invalid("servers", "Say how many servers: nobody published a cluster for this trace.")
    runs = runs_asked(request, servers, columns.pop("live_newcomers", Newcomers.OPEN))
    notes = [*newcomers_notes(request), *loan_notes(request, columns), *columns.pop("live_notes", ())]
    check_size(runs, columns)
    with transaction.atomic():
        _check_waiting(len(runs))
        study = SimulationStudy.objects.create(
            name=request.name or default_name,
            created_by=actor,
            source=request.source,
            notes=notes,
            **columns,
        )
        for asked in runs:
            RUNS.announce(SimulationRun.objects.create(study=study, **asked._asdict()))
        tell_pages()
    return study


def _of_trace(request: StudyRequest) -> tuple[dict[str, Any], TraceListing]:
    listings, _ = traces_offered()
    listing = next((one for one in listings if one.name == request.trace), None)
    if listing is None:
        known = listed([one.name for one in listings if one.available], 80)
        raise invalid("trace", f"There is no trace {request.trace!r} here. Known: {known}.")
    if not listing.available:
        raise invalid(
            "trace", f"Trace {listing.name} is not on this machine; it is public: {listing.original}."
        )
    jobs = min(request.limit_jobs or 10**9, listing.jobs or 10**9)
    limit = int(settings.SIMULATION_LIMITS["jobs"])
    if listing.jobs is not None and jobs > limit:
        raise invalid(
            "limit_jobs", f"The trace has {listing.jobs} jobs and a run may have {limit}; limit them."
        )
    gpus_per_server = request.gpus_per_server or listing.gpus_per_server
    if gpus_per_server is None:
        raise invalid("gpus_per_server", "Say how many: nobody published a cluster for this trace.")
    columns = {
        **_common(request),
        "trace": listing.name,
        "gpu_type": request.gpu_type,
        "gpus_per_server": gpus_per_server,
        "slot_seconds": request.slot_seconds or listing.slot_seconds or 60.0,
        "fill": request.fill or "uniform",
        "reserve_servers": request.reserve_servers or 0,
        "promise_margin": request.promise_margin or 0.0,
        **_loans_of_trace(request, listing),
    }
    return columns, listing


def _loans_of_trace(request: StudyRequest, listing: TraceListing) -> dict[str, Any]:
    if not request.lends:
        return {}
    try:
        workload = load_workload(
            listing.name,
            gpu_type=request.gpu_type or None,
            seed=request.seed,
            limit_jobs=1,
            allow_paths=False,
        )
    except TraceError as error:
        raise invalid("trace", f"It cannot be used: {error}.") from error
    own = request.gpu_type or reference_gpu_type(workload)
    kind = lent_gpu_type(request.inference_gpu_type, own, gpu_types_of(workload))
    return loan_columns(request, kind, UsualLoans())


def _of_live_cluster(request: StudyRequest) -> dict[str, Any]:
    if request.trace:
        raise invalid("trace", "Leave it out: the jobs are those of the live cluster.")
    cluster, now = default_cluster(), timezone.now()
    serving = serving_now(cluster, now, gpu_kind=request.inference_gpu_type) if request.lends else None
    state = capture(
        cluster,
        now,
        gpu_kind=request.gpu_type,
        with_declined=request.with_declined,
        inference=None if serving is None else serving.inference,
    )
    if not state.jobs:
        raise Conflict("The live cluster has no unfinished job to simulate now.")
    asked = {
        name: getattr(request, name)
        for name in ("slot_seconds", "fill", "reserve_servers", "promise_margin")
        if getattr(request, name) is not None
    }
    columns = {**_common(request), **live_settings(cluster), **asked}
    if columns["reserve_servers"] == 0:
        columns["reserve_slack_seconds"] = 0.0
    return {
        **columns,
        "live_state": pack(state),
        "live_newcomers": cluster.newcomers,
        "gpu_type": state.gpu_kind,
        "gpus_per_server": request.gpus_per_server or state.gpus_per_server,
        "found_servers": state.servers,
        **({} if serving is None else loans_of_live(request, state, serving)),
    }


def _common(request: StudyRequest) -> dict[str, Any]:
    return {
        "pauses": request.pauses,
        "failures_per_server_day": request.failures_per_server_day,
        "seed": request.seed,
        "limit_jobs": request.limit_jobs,
        "best_effort_share": request.best_effort_share,
        "bound": request.bound,
    }


def _check_waiting(more: int) -> None:
    most = int(settings.SIMULATION_LIMITS["waiting_runs"])
    waiting = SimulationRun.objects.exclude(state__in=FINAL_WORK_STATES).count()
    if waiting + more > most:
        raise QuotaExceeded(
            f"{waiting} runs are unfinished already and there may be {most}; wait, or cancel some.",
            extra={"retry_after_seconds": 60},
        )
