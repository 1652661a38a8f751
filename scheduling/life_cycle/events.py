"""Instructions that follow a report about a job: a first iteration, an error, a lost generation, a
suspension."""

from __future__ import annotations

from dataclasses import replace

from punctual.protocol.limits import (
    DISK_WRITES_EXCEEDED,
    MEMORY_EXCEEDED,
    NONFINITE,
    PLAN_REFUSED,
    PROCESSES_EXCEEDED,
)
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
    ExcuseFailure,
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

#: Failures without passing the furthest iteration after which a job ends.
MAXIMUM_FAILURES = 3
#: Faults that the user must correct; another attempt would not help.
FUNCTIONS_FAULTS = (
    "function_error",
    "function_load_error",
    "environment_failed",
    "data_unavailable",
    MEMORY_EXCEEDED,
    PROCESSES_EXCEEDED,
    DISK_WRITES_EXCEEDED,
    NONFINITE,
)

#: Faults that are not the fault of the rank that reports them.
PEER_LOST = "peer_lost"
#: The agent did not reach the control plane.
_LEASE_ENDED = "lease_ended"
#: Intended ends of a generation; its workers' later reports are no failures.
_IN_ORDER = (RetireReason.TAKEN_OVER, RetireReason.SUSPENDED, RetireReason.LET_GO)


def first_iteration(job: JobFacts, number: int, iteration: int) -> list[Instruction]:
    """Make generation ``number`` live after rank 0's first iteration, and retire its predecessor."""
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
    """Take all GPUs from the job; its live generation stores its state first.

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
    """Give up a coming generation that is no longer needed; empty if it must go on.

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
    """Continue from the last durable state after a training generation was lost before a hand-over.

    If it was still coming, it is given up with the reason ``coming_because`` (a lost server says nothing
    about the state that was being read); its predecessor continues if it still trains.
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
    """Give up the coming generation. Its predecessor continues if it still trains; otherwise the job
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
    from there, once every worker of the lost one has ended."""
    iteration = job.stored_iteration if was_live else job.iterations_done
    found: list[Instruction] = [GoBack(iteration)] if was_live else []
    if job.coming is None and job.state == JobState.RUNNING:
        found.append(AwaitServers(iteration))
    return found


def worker_failed(
    job: JobFacts, generation: GenerationFacts, fault: Fail, reached: int = 0
) -> list[Instruction]:
    """Handle the failure of one rank. A job that fails repeatedly without progress ends; the end of a server
    never counts.

    A rank that raises an error brings down its peers, and any of them may report first. So the function's
    error counts even if the generation was already given up for a lost peer.

    Args:
        reached: iterations that the rank had completed.
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
    if fault.reason in FUNCTIONS_FAULTS and generation.retired_because != RetireReason.MEASURED:
        return _function_failed(job, generation, fault, reached)
    if measured:
        return [] if generation.retired() else ended
    found = _counted(job, generation, fault, reached)
    if not generation.retired():
        could_not_start = fault.reason in ("start_failed", PLAN_REFUSED)
        because = RetireReason.GIVEN_UP if could_not_start else RetireReason.LOST
        found += lost(job, generation, said[:300], because)
    return found


def _because(reason: str) -> RetireReason:
    """Return the code for retiring a generation with a failed worker. The agent ends a measurement that
    exceeds its time."""
    timed_out = reason == RetireReason.MEASURING_TIMEOUT
    return RetireReason.MEASURING_TIMEOUT if timed_out else RetireReason.FAILED


def _function_failed(
    job: JobFacts, generation: GenerationFacts, fault: Fail, reached: int
) -> list[Instruction]:
    """End the job at once if it never trained, else after several errors without progress in between."""
    if generation.number < job.last_generation and generation.retired():
        # A late report about a replaced generation: its successor will report the same error.
        return []
    if generation.retired() and generation.retired_because == RetireReason.FAILED:
        # Another rank has reported it. An error on all ranks is one failure.
        return []
    may_be_tried_again = fault.reason == "function_error" and generation.was_live
    if not may_be_tried_again:
        return [fault]
    counting = _count(job, generation, fault, reached)
    found: list[Instruction] = [] if generation.failure_reason in FUNCTIONS_FAULTS else [counting]
    if counting.failures >= MAXIMUM_FAILURES:
        found.append(fault)
    elif not generation.retired():
        reason = f"{fault.reason}: {fault.message}"[:300]
        found += lost(job, generation, reason, because=RetireReason.FAILED)
    return found


def timed_out(job: JobFacts, generation: GenerationFacts, reason: str) -> list[Instruction]:
    """Count a failure if a generation with all its workers exceeds a step's bound. ``lost`` or
    ``given_up`` says how the job continues."""
    return _counted(job, generation, Fail("timed_out", reason), 0)


def _counted(job: JobFacts, generation: GenerationFacts, fault: Fail, reached: int) -> list[Instruction]:
    """Count the end of a training generation as a failure of its job, if it is one (decision 0007).

    It is none if a server or the network between servers may have failed, if the end was intended, or if the
    job still trains on an earlier generation.
    """
    if fault.reason == _LEASE_ENDED:
        return [ExcuseFailure(generation.number)] if generation.failure_reason else []
    if generation.retired_because in _IN_ORDER:
        return []
    if fault.reason == PEER_LOST and not generation.on_one_server:
        return []
    live = job.live
    if live is not None and live.number < generation.number and live.goal == Goal.TRAIN:
        return []
    if generation.failure_reason and (generation.failure_reason != PEER_LOST or fault.reason == PEER_LOST):
        # Another rank has reported the cause.
        return []
    return [_count(job, generation, fault, reached)]


def _count(job: JobFacts, generation: GenerationFacts, fault: Fail, reached: int) -> CountFailure:
    furthest = max(job.iterations_done, reached)
    if generation.failure_reason:
        # Counted already, with a less specific cause.
        failures = job.failures
    else:
        failures = 1 if furthest > job.failed_at_iteration else job.failures + 1
    iteration = max(furthest, job.failed_at_iteration)
    return CountFailure(generation.number, failures, iteration, fault.reason, fault.message)


def failed_for_good(job: JobFacts) -> list[Instruction]:
    """End a job that has failed too often without passing its furthest iteration."""
    fault = job.last_failure
    if fault is None or job.state not in PLANNED_STATES or job.failures < MAXIMUM_FAILURES:
        return []
    if job.iterations_done > job.failed_at_iteration:
        return []
    text = (
        f"it failed {job.failures} times without passing iteration {job.failed_at_iteration}, the last time "
        f"because: {fault.message}"
    )
    return [replace(fault, message=text)]
