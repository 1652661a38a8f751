"""Repairs lasting differences between desired and actual state of a job.

The steps of a generation have time-outs of their own (`lifecycle.py`). These rules catch differences of any
other cause: they run at every tick and read rows only. Callers hold the cluster's row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import structlog

from cluster.choices import ServerState
from cluster.models import Cluster
from projects.prepared import PreparedValues
from scheduling.choices import (
    COMING_STATES,
    PLANNED_STATES,
    AssignmentState,
    GenerationState,
    Goal,
    JobEventKind,
    JobState,
    Purpose,
)
from scheduling.core.question.quantities import duration_text
from scheduling.life_cycle.events import MAXIMUM_FAILURES
from scheduling.life_cycle.steps import next_steps
from scheduling.models import Assignment, Generation, Job
from scheduling.services.generations.blocking import release_bounds
from scheduling.services.generations.generations import coming_generation, let_go
from scheduling.services.generations.job_facts import facts_of, step_bounds, unretired
from scheduling.services.generations.lifecycle import give_up, lose_generation
from scheduling.services.generations.recoveries import words_on_going_on
from scheduling.services.rows.records import move, planning_fact_changed, record
from scheduling.services.rows.wakeups import wake

log = structlog.get_logger(__name__)


@dataclass
class _Look:
    """A job and its generations, read once. A new one is made after each repair."""

    job: Job
    cluster: Cluster
    now: datetime

    @cached_property
    def unretired(self) -> list[Generation]:
        return list(self.job.generations.exclude(state=GenerationState.RETIRED))

    @property
    def training(self) -> list[Generation]:
        return [one for one in self.unretired if one.purpose == Purpose.TRAINING]

    @property
    def live(self) -> Generation | None:
        """The live training generation, if any."""
        return next((one for one in self.training if one.state == GenerationState.LIVE), None)

    @property
    def coming(self) -> Generation | None:
        """The coming training generation, if any."""
        return next((one for one in self.training if one.state in COMING_STATES), None)


Rule = Callable[[_Look], str]
"""Repairs one kind of difference of a job. Returns what was wrong, or an empty string."""


def mend_differences(job: Job, cluster: Cluster, now: datetime) -> list[str]:
    """Make the job's generations agree with its desired state. Return what was wrong."""
    found = []
    look = _Look(job, cluster, now)
    for rule in RULES:
        if text := rule(look):
            found.append(text)
            look = _Look(job, cluster, now)
    for text in found:
        log.warning("desired and actual state differed", job=job.pk, difference=text)
        record(job, JobEventKind.RECONCILED, f"{text[0].upper()}{text[1:]}: put right.")
    if found:
        planning_fact_changed(cluster)
        wake("plan", trigger=f"{job.pk} was reconciled")
    return found


_LEFT = PreparedValues(
    lambda job_ids: Assignment.objects.filter(
        job__pk__any_of=job_ids,
        generation__state=GenerationState.RETIRED,
        state__in=[AssignmentState.WAITING, AssignmentState.HELD],
    ).values_list("job_id")
)


def disturbed(jobs: Sequence[Job], cluster: Cluster, now: datetime) -> list[str]:
    """Return the ids of jobs that a step or a rule may have to act on, in three queries. Most jobs train on
    one generation that has its GPUs and continues; they need nothing.
    """
    if not jobs:
        return []
    known = unretired(jobs)
    left = {job_id for (job_id,) in _LEFT.ask([job.pk for job in jobs])}
    bounds = step_bounds(cluster)

    def trains_on(job: Job) -> bool:
        generations = known[job.pk].generations
        return (
            job.state == JobState.RUNNING
            and not job.paused_by_owner
            and job.failures < MAXIMUM_FAILURES
            and job.pk not in left
            and [(one.purpose, one.state, one.goal) for one in generations]
            == [(Purpose.TRAINING, GenerationState.LIVE, Goal.TRAIN)]
            and not next_steps(facts_of(job, known=known[job.pk]), bounds, now)
        )

    return [job.pk for job in jobs if not trains_on(job)]


def _finished_but_trained(look: _Look) -> str:
    job = look.job
    if not job.finished() or not (look.training if job.may_be_measured() else look.unretired):
        return ""
    let_go(job, f"the job is {job.state}")
    return f"it was {job.state} and had a generation that was not told to stop"


def _paused_but_holding(look: _Look) -> str:
    """Release the GPUs of a paused job that still holds them after a hand-over, a suspension and their
    confirmation have had all their time."""
    job, live = look.job, look.live
    if not job.paused_by_owner or job.finished() or not look.training:
        return ""
    paused = job.events.filter(kind=JobEventKind.PAUSED).order_by("-happened_at").first()
    bounds = release_bounds(look.cluster)
    longest = bounds.handover_seconds + bounds.suspending_seconds
    if paused is None or (look.now - paused.happened_at).total_seconds() <= longest:
        return ""
    let_go(job, "the job is paused")
    if live is not None and job.checkpoint is not None:
        job.iterations_done = min(job.iterations_done, job.checkpoint.iteration)
        job.save(update_fields=["iterations_done"])
    return f"it was paused and had not left its GPUs after {duration_text(longest)}"


def _stopped_for_nobody(look: _Look) -> str:
    live = look.live
    if live is None or live.goal != Goal.HAND_OVER or look.coming is not None:
        return ""
    lose_generation(look.job, live, "it had stopped for a successor that is gone", look.cluster)
    return "it stood still for a successor that was gone"


def _waits_for_ever(look: _Look) -> str:
    """Give up a successor that waits for GPUs although their holders' time to leave is over."""
    coming = look.coming
    if coming is None or coming.held_at is not None:
        return ""
    bounds = release_bounds(look.cluster)
    longest = bounds.handover_seconds + bounds.suspending_seconds + bounds.silence_seconds
    if (look.now - coming.created_at).total_seconds() <= longest:
        return ""
    give_up(look.job, f"its GPUs were not free after {duration_text(longest)}", look.cluster)
    return f"it waited {duration_text(longest)} for GPUs that were not left"


def _waits_for_the_silent(look: _Look) -> str:
    """Give up a successor that waits for GPUs of a silent server whose holder has no order to leave, so that
    the planner finds other GPUs."""
    coming = look.coming
    if coming is None or coming.held_at is not None:
        return ""
    awaited = coming.assignments.filter(state=AssignmentState.WAITING).values("gpu_id")
    staying = Generation.objects.filter(
        state=GenerationState.LIVE,
        goal=Goal.TRAIN,
        assignments__gpu__in=awaited,
        assignments__gpu__server__state=ServerState.SUSPECT,
        assignments__state=AssignmentState.HELD,
    ).select_related("job")
    if all(coming_generation(generation.job) is not None for generation in staying):
        return ""
    give_up(look.job, "its GPUs stay with a job on a silent server", look.cluster)
    return "it waited for GPUs of a silent server that nobody is leaving"


def _running_without_workers(look: _Look) -> str:
    job = look.job
    if job.state != JobState.RUNNING or look.training:
        return ""
    move(job, JobState.SUSPENDED, words_on_going_on(job, job.iterations_done))
    return "it was called running and nothing trained it"


def _training_unnoticed(look: _Look) -> str:
    job, live = look.job, look.live
    if live is None or job.state not in PLANNED_STATES or job.state == JobState.RUNNING:
        return ""
    before = job.state
    move(job, JobState.RUNNING, f"Trains on {live.world_size} GPUs.", generation=live.number)
    return f"it was called {before} and generation {live.number} trained it"


def _held_by_the_dead(look: _Look) -> str:
    """Release GPUs of a retired generation: no other step would."""
    left = Assignment.objects.filter(
        job=look.job,
        generation__state=GenerationState.RETIRED,
        state__in=[AssignmentState.WAITING, AssignmentState.HELD],
    )
    if not left.exists():
        return ""
    left.filter(state=AssignmentState.WAITING).update(state=AssignmentState.RELEASED, released_at=look.now)
    left.filter(state=AssignmentState.HELD).update(state=AssignmentState.CLEARING)
    return "GPUs were held for a generation that is retired"


RULES: tuple[Rule, ...] = (
    _finished_but_trained,
    _paused_but_holding,
    _stopped_for_nobody,
    _waits_for_ever,
    _waits_for_the_silent,
    _running_without_workers,
    _training_unnoticed,
    _held_by_the_dead,
)
