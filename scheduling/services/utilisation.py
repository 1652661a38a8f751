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
    for gpu_id, purpose, state, promised, service_class in assignments.order_by(
        "generation__number"
    ).values_list(
        "gpu_id", "generation__purpose", "generation__state", "job__promised", "job__service_class"
    ):
        uses[gpu_id] = _use(purpose, state, promised, service_class)
    counts: Counter[str] = Counter()
    for gpu_id, healthy, state, drain in (
        Gpu.objects.filter(server__cluster=cluster, server__whitelist=Whitelist.TRAINING)
        .exclude(server__state=ServerState.REMOVED)
        .values_list("pk", "healthy", "server__state", "server__drain")
    ):
        out = state == ServerState.DOWN or not healthy
        drained = drain != DrainState.NONE and gpu_id not in uses
        counts["unavailable" if out or drained else uses.get(gpu_id, "idle")] += 1
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


def _use(purpose: str, state: str, promised: bool, service_class: str) -> str:
    """What an assignment's GPU is used for, by its generation's purpose and state and its job."""
    if purpose == Purpose.PROFILING:
        return "profiling"
    if state != GenerationState.LIVE:
        return "changing"
    if promised:
        return "promised"
    return "best_effort" if service_class == ServiceClass.BEST_EFFORT else "soft"
