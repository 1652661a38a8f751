"""Due steps of a job's generations, derived from its rows (docs/protocols.md 1).

Level-triggered: a call gives the steps that are due at that moment, however late or often it comes. Carrying
out an instruction changes the facts, so that the instruction is not given again.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from scheduling.choices import GenerationState, Goal, JobState, RetireReason
from scheduling.life_cycle.events import failed_for_good, given_up, lost, suspended, timed_out
from scheduling.life_cycle.facts import GenerationFacts, JobFacts, StepBounds
from scheduling.life_cycle.instructions import (
    BeginHandover,
    BeginMeasuring,
    BeginTraining,
    CallReady,
    Instruction,
    MoveTo,
    Retire,
    TellPlanner,
)

#: The reason in a job's history for taking the GPUs of a paused job.
PAUSED = "paused by its owner"
#: Reason for the loss of a generation whose worker has not reported why it failed.
WORKER_GONE = "a worker is gone"
#: A job suspends at the end of its iteration. An iteration that takes longer than `STUCK_SECONDS` and
#: `STUCK_ITERATIONS` measured iterations together counts as stuck.
STUCK_SECONDS = 5.0
STUCK_ITERATIONS = 10.0
#: Seconds for which a completed worker's last report may be under way.
LAST_WORD_SECONDS = 30.0
_WAITING = ("ready", "loading", "training")
#: Phases in which a worker runs its function's code. In earlier phases, and in phase `ready`, its agent
#: fetches data from the platform's stores.
_OWN_WORK = ("preparing", "loading", "training")


def next_steps(job: JobFacts, bounds: StepBounds, now: datetime) -> list[Instruction]:
    """Return the instructions that are due now. After they are carried out, a further call may return
    more."""
    found = failed_for_good(job) or _live_steps(job, bounds, now) or _coming_steps(job, bounds, now)
    for measurement in job.measurements:
        found = found or _measuring_steps(job, measurement, bounds, now)
    return found or owner_steps(job, bounds)


def owner_steps(job: JobFacts, bounds: StepBounds) -> list[Instruction]:
    """Take the GPUs of a job that its owner paused, as soon as its present step allows it.

    Plans do not name a paused job, so no plan would take them.
    """
    return suspended(job, PAUSED, bounds) if job.paused_by_owner and not job.finished() else []


def _live_steps(job: JobFacts, bounds: StepBounds, now: datetime) -> list[Instruction]:
    """Return due steps of the live generation."""
    live = job.live
    if live is None:
        return []
    if live.goal == Goal.TRAIN:
        return lost(job, live, WORKER_GONE) if worker_missing(live, now) else []
    if live.goal != Goal.SUSPEND:
        return []
    if live.all_are(("suspended", "exited")) and live.state_stored:
        return _has_suspended(job, live)
    if _overdue(live, now):
        return lost(job, live, "it did not write its state in time")
    if _is_stuck(live, bounds, now):
        reason = "it did not come to the end of its iteration"
        return [*timed_out(job, live, reason), *lost(job, live, reason)]
    return []


def _has_suspended(job: JobFacts, live: GenerationFacts) -> list[Instruction]:
    """Return the instructions for a suspended generation: its state is durable, and the job waits without
    GPUs."""
    found: list[Instruction] = [Retire(live.number, RetireReason.SUSPENDED, "suspended")]
    if job.state == JobState.RUNNING and job.coming is None:
        text = f"Suspended at iteration {job.iterations_done}; the state is kept."
        found.append(MoveTo(JobState.SUSPENDED, text))
    return [*found, TellPlanner(f"{job.id} suspended")]


def _is_stuck(live: GenerationFacts, bounds: StepBounds, now: datetime) -> bool:
    """Return whether a suspending generation has been in one iteration far longer than an iteration takes.

    Promises count on its GPUs. A generation that has begun to store its state may finish.
    """
    if live.step_expires_at is None or not live.all_are(("training",)) or not live.iterations_per_second:
        return False
    told_at = live.step_expires_at - timedelta(seconds=bounds.suspend_seconds)
    longest = STUCK_SECONDS + STUCK_ITERATIONS / live.iterations_per_second + 2 * live.storing_seconds
    return (now - told_at).total_seconds() > longest


def _coming_steps(job: JobFacts, bounds: StepBounds, now: datetime) -> list[Instruction]:
    """Return due steps of the coming generation."""
    coming, live = job.coming, job.live
    if coming is None or not coming.holds_gpus:
        return []
    if worker_missing(coming, now):
        return given_up(job, "a worker did not start")
    awaits_the_end = live is None and job.ending and coming.goal == Goal.PREPARE
    if _overdue(coming, now) and not (awaits_the_end and coming.state == GenerationState.READY):
        reason = f"it was not {'live' if coming.goal == Goal.TRAIN else 'ready'} in time"
        own = coming.all_are(_OWN_WORK)
        return [*(timed_out(job, coming, reason) if own else ()), *given_up(job, reason)]
    if coming.state == GenerationState.PREPARING and coming.all_are(_WAITING):
        return [CallReady(coming.number)]
    if coming.goal != Goal.PREPARE or awaits_the_end:
        return []
    if live is None:
        ready = coming.state == GenerationState.READY
        return [BeginTraining(coming.number, bounds.handover_seconds if ready else None)]
    if coming.state == GenerationState.READY and live.goal == Goal.TRAIN:
        return [BeginHandover(live.number, coming.number)]
    return []


def _measuring_steps(
    job: JobFacts, measurement: GenerationFacts, bounds: StepBounds, now: datetime
) -> list[Instruction]:
    """Return due steps of one measurement."""
    ended = TellPlanner(f"profiling of {job.id} ended")
    if not measurement.holds_gpus:
        if (now - measurement.created_at).total_seconds() <= bounds.displacing_seconds:
            return []
        reason = "the jobs that it was to displace did not leave in time"
        return [Retire(measurement.number, RetireReason.BROKEN_OFF, reason), ended]
    if measurement.state == GenerationState.PREPARING and any(
        worker.step() == "profiling" for worker in measurement.workers
    ):
        return [BeginMeasuring(measurement.number)]
    if worker_missing(measurement, now):
        return [Retire(measurement.number, RetireReason.LOST, WORKER_GONE), ended]
    if _overdue(measurement, now):
        return [Retire(measurement.number, RetireReason.BROKEN_OFF, "it took too long"), ended]
    return []


def worker_missing(generation: GenerationFacts, now: datetime) -> bool:
    """Return whether a worker of the generation has failed, or its process ended without a report."""
    for worker in generation.workers:
        if worker.phase == "failed":
            return True
        overdue = (now - worker.changed_at).total_seconds() > LAST_WORD_SECONDS
        if worker.step() == "exited" and (not worker.ended_well() or overdue):
            return True
    return False


def _overdue(generation: GenerationFacts, now: datetime) -> bool:
    """Return whether the generation's present step has exceeded its bound."""
    return generation.step_expires_at is not None and now > generation.step_expires_at
