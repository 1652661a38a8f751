"""Samples of GPU use, for the chart of utilisation over time."""

from __future__ import annotations

from cluster.models import Cluster, Gpu, UtilisationSample
from cluster.selectors.utilisation import USES
from scheduling.choices import UNDECIDED_STATES, JobState
from scheduling.models import Job
from scheduling.selectors.cluster.gpu_uses import count_uses


def take_sample(cluster: Cluster) -> UtilisationSample:
    """Count each GPU that training may use once, by its present use."""
    counts = count_uses(Gpu.objects.for_training().filter(server__cluster=cluster))
    jobs = Job.objects.filter(cluster=cluster)
    return UtilisationSample.objects.create(
        cluster=cluster,
        total=counts.total(),
        running_jobs=jobs.filter(state=JobState.RUNNING).count(),
        waiting_jobs=jobs.filter(
            state__in=[*UNDECIDED_STATES, JobState.ADMITTED, JobState.SUSPENDED]
        ).count(),
        **{use: counts[use] for use in USES},
    )
