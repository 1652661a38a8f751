"""Replaces a generation on the same GPUs because its communication plan has changed."""

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
    """Replace a live generation by one that follows the present plan. Return whether that was done.

    Args:
        reason: reason of the new generation. event, sentence: entry in the job's history.
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
    """Return whether the generation trains and no other is coming."""
    changing = job.generations.filter(purpose=Purpose.TRAINING, state__in=COMING_STATES).exists()
    trains = current.state == GenerationState.LIVE and current.goal == Goal.TRAIN
    return trains and not changing and not job.finished()


def renew_locked(
    job: Job, current: Generation, cluster: Cluster, *, reason: str, event: str, sentence: str
) -> bool:
    """Call `renew` with the cluster's and the job's rows locked, after `may_be_renewed`."""
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
