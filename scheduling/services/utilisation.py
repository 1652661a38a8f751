"""One sample of how GPUs are used, for the chart of utilisation over time."""

from __future__ import annotations

from collections import Counter

from cluster.choices import DrainState, ServerState, Whitelist
from cluster.models import Cluster, Gpu, UtilisationSample
from scheduling.choices import (
    UNDECIDED_STATES,
    AssignmentState,
    GenerationState,
    JobState,
    Purpose,
    ServiceClass,
)
from scheduling.models import Assignment, Job
from scheduling.services.snapshots import Pool


def take_sample(cluster: Cluster, pool: Pool) -> UtilisationSample:
    """Count every GPU that training may use once, by what it is used for now."""
    uses: dict[int, str] = {}
    assignments = Assignment.objects.filter(job__cluster=cluster).exclude(
        state__in=[AssignmentState.RELEASED, AssignmentState.WAITING]
    )
    for assignment in assignments.select_related("generation", "job").order_by("generation__number"):
        uses[assignment.gpu_id] = _use(assignment)
    counts: Counter[str] = Counter()
    for gpu in (
        Gpu.objects.filter(server__cluster=cluster, server__whitelist=Whitelist.TRAINING)
        .exclude(server__state=ServerState.REMOVED)
        .select_related("server")
    ):
        out = gpu.server.state == ServerState.DOWN or not gpu.healthy
        drained = gpu.server.drain != DrainState.NONE and gpu.pk not in uses
        counts["unavailable" if out or drained else uses.get(gpu.pk, "idle")] += 1
    jobs = Job.objects.filter(cluster=cluster)
    return UtilisationSample.objects.create(
        cluster=cluster,
        total=sum(counts.values()),
        running_jobs=jobs.filter(state=JobState.RUNNING).count(),
        waiting_jobs=jobs.filter(
            state__in=[*UNDECIDED_STATES, JobState.ADMITTED, JobState.SUSPENDED]
        ).count(),
        **{use: counts[use] for use in _USES},
    )


_USES = ("promised", "soft", "best_effort", "profiling", "changing", "idle", "unavailable")


def _use(assignment: Assignment) -> str:
    generation, job = assignment.generation, assignment.job
    if generation.purpose == Purpose.PROFILING:
        return "profiling"
    if generation.state != GenerationState.LIVE:
        return "changing"
    if job.promised:
        return "promised"
    return "best_effort" if job.service_class == ServiceClass.BEST_EFFORT else "soft"
