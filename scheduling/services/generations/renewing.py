"""A job goes on in a new generation on the same GPUs, since the plan of its gradients is another one now."""

from __future__ import annotations

from django.db import transaction

from cluster.models import Cluster
from scheduling.choices import COMING_STATES, GenerationState, Goal, Purpose
from scheduling.models import Generation, Job
from scheduling.services.generations.generations import NewGeneration, create_generations
from scheduling.services.generations.server_ports import NoFreePort
from scheduling.services.rows.records import lock_cluster, planning_fact_changed, record
from scheduling.services.rows.wakeups import wake


def renew(generation: Generation, *, reason: str, event: str, sentence: str) -> bool:
    """Replace a living generation by one that follows the plan that there is now. Returns whether it is.

    Args:
        reason: of the new generation. event, sentence: told in the job's history.
    """
    with transaction.atomic():
        cluster = lock_cluster(generation.job.cluster_id)
        job = Job.objects.select_for_update(of=("self",)).get(pk=generation.job_id)
        job = Job.objects.select_related("curve", "function_version", "checkpoint").get(pk=job.pk)
        current = Generation.objects.get(pk=generation.pk)
        if not may_be_renewed(job, current):
            return False
        return renew_locked(job, current, cluster, reason=reason, event=event, sentence=sentence)


def may_be_renewed(job: Job, current: Generation) -> bool:
    """Whether it trains, and nothing else is on its way."""
    changing = job.generations.filter(purpose=Purpose.TRAINING, state__in=COMING_STATES).exists()
    trains = current.state == GenerationState.LIVE and current.goal == Goal.TRAIN
    return trains and not changing and not job.finished()


def renew_locked(
    job: Job, current: Generation, cluster: Cluster, *, reason: str, event: str, sentence: str
) -> bool:
    """`renew` for those who hold the cluster's row and the job's, and have asked `may_be_renewed`."""
    held = list(current.assignments.select_related("gpu__server").order_by("rank"))
    (made,) = create_generations(
        [
            NewGeneration(
                job=job,
                gpus=[one.gpu for one in held],
                reason=reason,
                flexible=[one.flexible for one in held],
            )
        ],
        epoch=cluster.epoch,
    )
    if isinstance(made, NoFreePort):
        return False
    record(job, event, sentence, generation=made.number)
    planning_fact_changed(cluster)
    wake("plan", trigger=f"{job.pk}: {reason}")
    return True
