"""Instructions that follow a report about a job: a first iteration, an error, a lost generation, a
suspension."""

from __future__ import annotations

from dataclasses import replace

from punctual.protocol.limits import MEMORY_EXCEEDED, NONFINITE, PLAN_REFUSED, PROCESSES_EXCEEDED
from scheduling.choices import (
    PLANNED_STATES,
    GenerationState,
    Goal,
    JobEventKind,
    JobState,
    Purpose,
    RetireReason,
)
from scheduling.life_cycle.facts import GenerationFacts, JobFacts, StepBounds
from scheduling.life_cycle.instructions import (
    AwaitServers,
    BecomeLive,
    BeginRecovery,
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

#: How often a job may fail without progress in between.
MAXIMUM_FAILURES = 3
#: Faults that the user must correct; another attempt would not help.
_FUNCTIONS_FAULTS = (
    "function_error",
    "function_load_error",
    "environment_failed",
    "data_unavailable",
    MEMORY_EXCEEDED,
    PROCESSES_EXCEEDED,
    NONFINITE,
)

#: The server's disk took no state. Another server's may, so the job goes on; but not for ever.
_STORAGE_FAILED = "storage_failed"


def first_iteration(job: JobFacts, number: int, iteration: int) -> list[Instruction]:
    """Rank 0 of generation ``number`` has completed its first iteration: the generation trains, and its
    predecessor is retired."""
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
        found.append(Record(JobEventKind.RESCALED, text, number))
    else:
        found.append(MoveTo(JobState.RUNNING, text, number))
    return [*found, TellPlanner(f"{job.id} trains on {gpus}")]


def suspended(job: JobFacts, reason: str, bounds: StepBounds) -> list[Instruction]:
    """Take all GPUs from the job; its living generation stores its state first.

    A hand-over under way may complete. The suspension is then requested again: by the next plan, or, for a
    job that its owner paused, when the hand-over ends.
    """
    coming, live = job.coming, job.live
    found: list[Instruction] = []
    if coming is not None:
        if coming.state == GenerationState.HANDOVER and live is not None:
            # The predecessor may have stopped already.
            return []
        found.append(Retire(coming.number, RetireReason.LET_GO, reason))
        if live is None and job.state == JobState.RUNNING:
            found.append(MoveTo(JobState.SUSPENDED, f"Suspended: {reason}."))
    if live is not None and live.goal == Goal.TRAIN:
        found.append(TellToSuspend(live.number, bounds.suspend_seconds))
        found.append(Record(JobEventKind.SUSPENDING, f"Gives up its GPUs: {reason}.", live.number))
    return found


def broken_off(job: JobFacts, reason: str) -> list[Instruction]:
    """Give up a coming generation that is no longer wanted; empty where it must go on.

    Its predecessor keeps training; a job without a predecessor waits again with its last durable state. Two
    cases go on: a hand-over under way, because the predecessor may have stopped for it, and a generation on
    which a promise may count (the start of a promised job, or a change of its owned GPUs).
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
        Retire(coming.number, RetireReason.LET_GO, reason),
        NoPause(),
        Record(JobEventKind.BROKEN_OFF, text, coming.number),
    ]
    if live is None and job.state == JobState.RUNNING:
        found.append(AwaitServers(job.iterations_done))
    return found


def lost(
    job: JobFacts,
    generation: GenerationFacts,
    reason: str,
    coming_because: RetireReason = RetireReason.LOST,
    because: RetireReason = RetireReason.LOST,
) -> list[Instruction]:
    """A training generation was lost before a hand-over: continue from the last durable state.

    A generation that was still coming is given up (``coming_because``: a server that dies says nothing about
    the state that was being read); its predecessor continues if it still trains.
    """
    if job.coming is not None and generation.number == job.coming.number:
        return given_up(job, reason, coming_because)
    trained = job.live is not None and generation.number == job.live.number
    if not trained and generation.purpose == Purpose.TRAINING:
        return []
    found: list[Instruction] = [
        Retire(generation.number, because, reason),
        Record(
            JobEventKind.INTERRUPTED, f"Generation {generation.number} was lost: {reason}.", generation.number
        ),
    ]
    if trained:
        found.append(BeginRecovery(generation.number, reason))
        found += _from_the_last_state(replace(job, live=None), was_live=True)
    return [*found, TellPlanner(f"{job.id} lost generation {generation.number}")]


def given_up(job: JobFacts, reason: str, because: RetireReason = RetireReason.GIVEN_UP) -> list[Instruction]:
    """The coming generation will not train: its predecessor continues if it still trains; otherwise the job
    restarts from its last durable state."""
    coming, live = job.coming, job.live
    if coming is None:
        return []
    text = f"Generation {coming.number} was given up: {reason}."
    found: list[Instruction] = [
        Retire(coming.number, because, reason),
        Record("change_failed", text, coming.number),
    ]
    left = replace(job, coming=None, live=None)
    if live is None:
        found += _from_the_last_state(left, was_live=False)
    elif live.goal == Goal.HAND_OVER:
        # The predecessor stopped for a generation that will not train.
        why = f"generation {coming.number} did not take over"
        found.append(Retire(live.number, RetireReason.GIVEN_UP, why))
        found.append(BeginRecovery(live.number, why))
        found += _from_the_last_state(left, was_live=True)
    return [*found, TellPlanner(f"{job.id} gave up generation {coming.number}")]


def _from_the_last_state(job: JobFacts, *, was_live: bool) -> list[Instruction]:
    """Reset the job's progress to its last durable state. The coming generation or the next plan continues
    there, once every worker of the lost one has ended."""
    iteration = job.stored_iteration if was_live else job.iterations_done
    found: list[Instruction] = [GoBack(iteration)] if was_live else []
    if job.coming is None and job.state == JobState.RUNNING:
        found.append(AwaitServers(iteration))
    return found


def worker_failed(job: JobFacts, generation: GenerationFacts, fault: Fail) -> list[Instruction]:
    """One rank has failed. Repeated errors of the user's function end the job; errors of the platform never
    do.

    A rank that raises an error brings down its peers, and any of them may report first. So the function's
    error counts even if the generation was already given up for a lost peer.
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
        # It measured more levels of a running job, which continues without them, or of a declined job.
        return [] if generation.retired() else ended
    counts = fault.reason in (*_FUNCTIONS_FAULTS, _STORAGE_FAILED)
    if counts and generation.retired_because != RetireReason.MEASURED:
        return _function_failed(job, generation, fault)
    if generation.retired():
        return []
    could_not_start = fault.reason in ("start_failed", PLAN_REFUSED)
    because = RetireReason.GIVEN_UP if could_not_start else RetireReason.LOST
    return ended if measured else lost(job, generation, said[:300], because)


def _because(reason: str) -> RetireReason:
    """Why a generation with a failed worker is retired. The agent ends a measurement that exceeds its
    time."""
    timed_out = reason == RetireReason.MEASURING_TIMEOUT
    return RetireReason.MEASURING_TIMEOUT if timed_out else RetireReason.FAILED


def _function_failed(job: JobFacts, generation: GenerationFacts, fault: Fail) -> list[Instruction]:
    """End the job at once if it never trained, else after several errors without progress in between.

    So it is where a server's disk takes no state, too: one job's state may be larger than any disk here.
    """
    if generation.number < job.last_generation and generation.retired():
        # A late report about a replaced generation: its successor will report the same error.
        return []
    if generation.retired() and generation.retired_because == RetireReason.FAILED:
        # Another rank has said so. An error on all ranks is one failure, not as many as there are ranks.
        return []
    progressed = job.iterations_done > job.failed_at_iteration
    failures = 1 if progressed else job.failures + 1
    found: list[Instruction] = [CountFailure(failures, job.iterations_done)]
    may_be_tried_again = fault.reason == _STORAGE_FAILED or (
        fault.reason == "function_error" and generation.was_live
    )
    if not may_be_tried_again or failures >= MAXIMUM_FAILURES:
        found.append(fault)
    elif not generation.retired():
        reason = f"{fault.reason}: {fault.message}"[:300]
        found += lost(job, generation, reason, because=RetireReason.FAILED)
    return found
