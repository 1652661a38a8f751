"""Reads the facts of the life cycle from a job's rows. Callers hold the cluster's row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db.models import QuerySet

from cluster.choices import ServerState
from cluster.models import Cluster, Server
from projects.prepared import PreparedRows
from scheduling.choices import COMING_STATES, AssignmentState, GenerationState, Goal, JobState, Purpose
from scheduling.life_cycle.events import MAXIMUM_FAILURES
from scheduling.life_cycle.facts import GenerationFacts, JobFacts, StepBounds, WorkerFacts
from scheduling.life_cycle.instructions import Fail
from scheduling.models import Assignment, CurveLevel, Generation, Job, Worker
from scheduling.services.generations.blocking import release_bounds
from scheduling.services.generations.held_gpus import hold_gpus


def _is_ending(job: Job) -> bool:
    """Return whether an earlier generation's end is still unconfirmed on some server."""
    return Assignment.objects.filter(
        job=job,
        generation__purpose=Purpose.TRAINING,
        generation__state=GenerationState.RETIRED,
        state__in=[AssignmentState.HELD, AssignmentState.CLEARING],
    ).exists()


def servers_of(generations: Iterable[Generation]) -> QuerySet[Server]:
    """Return the servers whose GPUs were assigned to any of these generations."""
    return Server.objects.filter(gpus__assignments__generation__in=list(generations)).distinct()


def _last_failure(job: Job) -> Fail | None:
    """Return the job's last failure, once every server of that generation has reported since."""
    failed = job.generations.filter(failure__isnull=False, retired_at__isnull=False).last()
    if failed is None or failed.failure is None:
        return None
    silent = servers_of([failed]).exclude(state=ServerState.UP, agent__last_report_at__gt=failed.retired_at)
    return None if silent.exists() else Fail(failed.failure["reason"], failed.failure["message"])


def step_bounds(cluster: Cluster) -> StepBounds:
    """Return the cluster's time-outs."""
    return StepBounds(
        suspend_seconds=cluster.suspend_timeout_seconds,
        handover_seconds=cluster.handover_timeout_seconds,
        displacing_seconds=release_bounds(cluster).suspending_seconds,
    )


_UNRETIRED = PreparedRows(
    lambda job_ids: (
        Generation.objects.filter(job__pk__any_of=job_ids)
        .exclude(state=GenerationState.RETIRED)
        .order_by("job_id", "number")
    )
)
_THEIR_WORKERS = PreparedRows(
    lambda job_ids: (
        Worker.objects.filter(generation__job__pk__any_of=job_ids)
        .exclude(generation__state=GenerationState.RETIRED)
        .order_by("rank")
    )
)


@dataclass(frozen=True)
class Unretired:
    """Unretired generations of a job, in order, and their workers by the generation's primary key."""

    generations: Sequence[Generation]
    workers: Mapping[int, Sequence[WorkerFacts]]


def unretired(jobs: Sequence[Job]) -> dict[str, Unretired]:
    """Return the unretired generations of each job, in two queries."""
    by_job: dict[str, list[Generation]] = {job.pk: [] for job in jobs}
    rows = {job.pk: job for job in jobs}
    for generation in _UNRETIRED.ask(list(rows)):
        generation.job = rows[generation.job_id]
        by_job[generation.job_id].append(generation)
    with_any = [job_id for job_id, generations in by_job.items() if generations]
    workers = _workers(with_any) if with_any else {}
    return {job_id: Unretired(generations, workers) for job_id, generations in by_job.items()}


def facts_of(
    job: Job, *, holding: bool = False, owned_gpus: bool = False, known: Unretired | None = None
) -> JobFacts:
    """Return the facts of a job and its unretired generations.

    ``holding``: first take awaited GPUs that are free now. ``owned_gpus``: include which of the cluster's own
    GPUs the generations have. ``known``: the generations, if they were just read.
    """
    known = known or unretired([job])[job.pk]
    workers = known.workers
    own = _own_gpus(known.generations) if owned_gpus else {}
    live = coming = None
    measurements = []
    for one in known.generations:
        facts = generation_facts(one, workers.get(one.pk, ()), own.get(one.pk, frozenset()))
        if holding and not facts.holds_gpus and hold_gpus(one):
            facts = replace(facts, holds_gpus=True, step_expires_at=one.step_expires_at)
        if one.purpose == Purpose.PROFILING:
            measurements.append(facts)
        elif one.state in COMING_STATES:
            coming = facts
        else:
            live = facts
    return JobFacts(
        id=job.pk,
        state=JobState(job.state),
        paused_by_owner=job.paused_by_owner,
        promised=job.promised,
        iterations_done=job.iterations_done,
        stored_iteration=job.checkpoint.iteration if job.checkpoint else 0,
        failures=job.failures,
        failed_at_iteration=job.failed_at_iteration,
        last_failure=_last_failure(job) if job.failures >= MAXIMUM_FAILURES else None,
        last_generation=job.last_generation,
        live=live,
        coming=coming,
        ending=coming is not None and live is None and _is_ending(job),
        measurements=tuple(measurements),
    )


def generation_facts(
    generation: Generation,
    workers: Iterable[WorkerFacts] = (),
    owned_gpus: frozenset[int] = frozenset(),
) -> GenerationFacts:
    """Return the facts of one generation. Its suspension is read only if it was ordered to suspend."""
    suspends = generation.goal == Goal.SUSPEND and generation.state == GenerationState.LIVE
    return GenerationFacts(
        number=generation.number,
        purpose=Purpose(generation.purpose),
        state=GenerationState(generation.state),
        goal=Goal(generation.goal),
        world_size=generation.world_size,
        created_at=generation.created_at,
        holds_gpus=generation.held_at is not None,
        was_live=generation.live_at is not None,
        step_expires_at=generation.step_expires_at,
        retired_because=generation.retired_because,
        failure_reason=(generation.failure or {}).get("reason", ""),
        workers=tuple(workers),
        owned_gpus=owned_gpus,
        **(_suspending(generation) if suspends else {}),
    )


def _suspending(generation: Generation) -> dict[str, Any]:
    stored = generation.job.checkpoints.filter(
        generation=generation.number, reason="suspend", complete_at__isnull=False
    )
    level = CurveLevel.objects.filter(curve=generation.curve_id, gpus=generation.world_size).first()
    return {
        "state_stored": stored.exists(),
        "iterations_per_second": level.iterations_per_second if level else 0.0,
        "storing_seconds": generation.curve.finishing_seconds if generation.curve else 0.0,
    }


def _workers(job_ids: Sequence[str]) -> Mapping[int, list[WorkerFacts]]:
    found: dict[int, list[WorkerFacts]] = defaultdict(list)
    for worker in _THEIR_WORKERS.ask(job_ids):
        found[worker.generation_id].append(
            WorkerFacts(
                phase=worker.phase,
                gone=worker.gone,
                exit_code=(worker.exit or {}).get("code"),
                changed_at=worker.changed_at,
            )
        )
    return found


def _own_gpus(generations: Iterable[Generation]) -> Mapping[int, frozenset[int]]:
    found: dict[int, set[int]] = defaultdict(set)
    own = Assignment.objects.filter(generation__in=generations, gpu__server__inference_cluster__isnull=True)
    for generation_id, gpu_id in own.values_list("generation_id", "gpu_id"):
        found[generation_id].add(gpu_id)
    return {generation_id: frozenset(gpus) for generation_id, gpus in found.items()}
