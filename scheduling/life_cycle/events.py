"""What follows when something is told of a job: a first iteration, an error, a lost generation, a pause."""

from __future__ import annotations

from dataclasses import replace

from punctual.protocol.limits import MEMORY_EXCEEDED, PROCESSES_EXCEEDED
from scheduling.choices import (
    PLANNED_STATES,
    GenerationState,
    Goal,
    JobState,
    Purpose,
    RetireReason,
)
from scheduling.life_cycle.facts import GenerationFacts, JobFacts, StepBounds
from scheduling.life_cycle.instructions import (
    BecomeLive,
    BeginTraining,
    CountFailure,
    Fail,
    GoBack,
    Instruction,
    MoveTo,
    NoPause,
    Record,
    Retire,
    TellPlanner,
    TellToSuspend,
)

#: How often a job may fail without having got further than before.
MAXIMUM_FAILURES = 3
#: What a user has to mend: trying again would not help.
_FUNCTIONS_FAULTS = (
    "function_error",
    "function_load_error",
    "environment_failed",
    "data_unavailable",
    MEMORY_EXCEEDED,
    PROCESSES_EXCEEDED,
)


def first_iteration(job: JobFacts, number: int, iteration: int) -> list[Instruction]:
    """Rank 0 of generation ``number`` has done its first iteration: it trains, its predecessor is retired."""
    coming = job.coming
    if coming is None or coming.number != number:
        return []
    found: list[Instruction] = []
    if job.live is not None:
        reason = f"generation {number} took over at iteration {iteration - 1}"
        found.append(Retire(job.live.number, RetireReason.TAKEN_OVER, reason))
    found.append(BecomeLive(number, iteration))
    gpus = f"{coming.world_size} GPU{'s' if coming.world_size > 1 else ''}"
    text = f"Trains on {gpus} from iteration {iteration}."
    if job.state == JobState.RUNNING:
        found.append(Record("rescaled", text, number))
    else:
        found.append(MoveTo(JobState.RUNNING, text, number))
    return [*found, TellPlanner(f"{job.id} trains on {gpus}")]


def suspended(job: JobFacts, reason: str, bounds: StepBounds) -> list[Instruction]:
    """All GPUs are taken from the job; a living generation writes its state first.

    A hand-over that is under way is let finish. Whoever wants the job suspended asks again then: the next
    plan does, and for a job that its owner paused whatever ends the hand-over.
    """
    coming, live = job.coming, job.live
    found: list[Instruction] = []
    if coming is not None:
        if coming.state == GenerationState.HANDOVER and live is not None:
            # The old one may have stopped already.
            return []
        found.append(Retire(coming.number, RetireReason.LET_GO, reason))
        if live is None and job.state == JobState.RUNNING:
            found.append(MoveTo(JobState.SUSPENDED, f"Suspended: {reason}."))
    if live is not None and live.goal == Goal.TRAIN:
        found.append(TellToSuspend(live.number, bounds.suspend_seconds))
        found.append(Record("suspending", f"Gives up its GPUs: {reason}.", live.number))
    return found


def broken_off(job: JobFacts, reason: str) -> list[Instruction]:
    """A coming generation that nothing depends on yet is not wanted any more. Empty where it goes on.

    Its predecessor trains on; a job without one waits again, with its last durable state. Left alone are a
    hand-over that is under way, as the predecessor may have stopped for it, and what a promise may count on:
    a promised job's start, and a change of the owned GPUs it has.
    """
    coming, live = job.coming, job.live
    if coming is None or (live is not None and coming.goal != Goal.PREPARE):
        return []
    if job.promised and (live is None or coming.owned_gpus != live.owned_gpus):
        return []
    then = "it trains on as before" if live is not None else "it waits for other GPUs"
    text = (
        f"Generation {coming.number} on {coming.world_size} GPUs is broken off before it trained: {reason}; "
        f"{then}."
    )
    found: list[Instruction] = [
        Retire(coming.number, RetireReason.GIVEN_UP, reason),
        NoPause(),
        Record("broken_off", text, coming.number),
    ]
    if live is None and job.state == JobState.RUNNING:
        text = f"Goes on from iteration {job.iterations_done} on other GPUs."
        found.append(MoveTo(JobState.SUSPENDED, text))
    return found


def lost(job: JobFacts, generation: GenerationFacts, reason: str) -> list[Instruction]:
    """A training generation is gone without having handed over: go on from the last durable state.

    One that was still coming is given up: its predecessor goes on, if it still trains.
    """
    if job.coming is not None and generation.number == job.coming.number:
        return given_up(job, reason)
    trained = job.live is not None and generation.number == job.live.number
    if not trained and generation.purpose == Purpose.TRAINING:
        return []
    found: list[Instruction] = [
        Retire(generation.number, RetireReason.LOST, reason),
        Record("interrupted", f"Generation {generation.number} was lost: {reason}.", generation.number),
    ]
    if trained:
        found += _from_the_last_state(replace(job, live=None), was_live=True)
    return [*found, TellPlanner(f"{job.id} lost generation {generation.number}")]


def given_up(job: JobFacts, reason: str) -> list[Instruction]:
    """The coming generation will not train. The old one goes on if it still trains; else the job restarts
    from its last durable state."""
    coming, live = job.coming, job.live
    if coming is None:
        return []
    text = f"Generation {coming.number} was given up: {reason}."
    found: list[Instruction] = [
        Retire(coming.number, RetireReason.GIVEN_UP, reason),
        Record("change_failed", text, coming.number),
    ]
    left = replace(job, coming=None, live=None)
    if live is None:
        found += _from_the_last_state(left, was_live=False)
    elif live.goal == Goal.HAND_OVER:
        # It stopped for the one that does not come.
        why = f"generation {coming.number} did not take over"
        found.append(Retire(live.number, RetireReason.GIVEN_UP, why))
        found += _from_the_last_state(left, was_live=True)
    return [*found, TellPlanner(f"{job.id} gave up generation {coming.number}")]


def _from_the_last_state(job: JobFacts, *, was_live: bool) -> list[Instruction]:
    """Count progress from the last durable state; what is coming, or the next plan, goes on from there."""
    iteration = job.stored_iteration if was_live else job.iterations_done
    found: list[Instruction] = [GoBack(iteration)] if was_live else []
    if job.coming is not None:
        found.append(BeginTraining(job.coming.number))
    elif job.state == JobState.RUNNING:
        text = f"Goes on from iteration {iteration} as soon as it has GPUs again."
        found.append(MoveTo(JobState.SUSPENDED, text))
    return found


def worker_failed(job: JobFacts, generation: GenerationFacts, fault: Fail) -> list[Instruction]:
    """One rank cannot go on. The user's own errors end the job once they repeat; the platform's never do.

    A rank that raises takes its peers down with it, and any of them may be heard first: the function's error
    counts even when the generation was given up for a lost peer before.
    """
    measured = generation.purpose == Purpose.PROFILING
    on_the_side = measured and job.state in (*PLANNED_STATES, JobState.DECLINED)
    if job.finished() and not on_the_side:
        return []
    said = f"{fault.reason}: {fault.message}"
    ended: list[Instruction] = [
        Retire(generation.number, _because(fault.reason), said),
        TellPlanner(f"{job.id}: {fault.reason}"),
    ]
    if on_the_side:
        # More levels of a running job, which trains on without them, or of one that was declined.
        return [] if generation.retired() else ended
    if fault.reason in _FUNCTIONS_FAULTS and generation.retired_because != RetireReason.MEASURED:
        return _function_failed(job, generation, fault)
    if generation.retired():
        return []
    return ended if measured else lost(job, generation, said[:300])


def _because(reason: str) -> RetireReason:
    """What ends a generation of which a worker said that it cannot go on. The agent ends a measurement whose
    time is up."""
    timed_out = reason == RetireReason.MEASURING_TIMEOUT
    return RetireReason.MEASURING_TIMEOUT if timed_out else RetireReason.FAILED


def _function_failed(job: JobFacts, generation: GenerationFacts, fault: Fail) -> list[Instruction]:
    """At once where it never trained; after several errors without progress between them where it did."""
    if generation.number < job.last_generation and generation.retired():
        # Heard late, of a generation that has been replaced: what replaced it will tell.
        return []
    progressed = job.iterations_done > job.failed_at_iteration
    failures = 1 if progressed else job.failures + 1
    found: list[Instruction] = [CountFailure(failures, job.iterations_done)]
    if fault.reason != "function_error" or not generation.was_live or failures >= MAXIMUM_FAILURES:
        found.append(fault)
    elif not generation.retired():
        found += lost(job, generation, f"{fault.reason}: {fault.message}"[:300])
    return found
