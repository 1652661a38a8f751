"""The steps of a job's generations, driven by what agents report and by time-outs.

Level-triggered: `advance` looks at the rows and does the next step that they call for. Calling it once more,
or much later, is harmless. Callers hold the cluster's row.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils import timezone

from cluster.models import Cluster
from punctual.protocol.limits import MEMORY_EXCEEDED, PROCESSES_EXCEEDED
from scheduling.choices import (
    PLANNED_STATES,
    GenerationState,
    Goal,
    JobState,
    PromiseOutcome,
    Purpose,
    RetireReason,
    VoidReason,
)
from scheduling.models import CurveLevel, Generation, Job, Worker
from scheduling.services.blocking import release_bounds
from scheduling.services.generations import (
    COMING_STATES,
    begin_handover,
    begin_training,
    coming_generation,
    hold_gpus,
    let_go,
    live_generation,
    retire,
    suspend_live,
)
from scheduling.services.records import move, planning_fact_changed, record
from scheduling.services.wakeups import wake

#: How often a job may fail without having got further than before.
MAXIMUM_FAILURES = 3
#: Why a paused job's GPUs are taken, in its history.
PAUSED = "paused by its owner"
#: What a user has to mend: trying again would not help.
_FUNCTIONS_FAULTS = (
    "function_error",
    "function_load_error",
    "environment_failed",
    "data_unavailable",
    MEMORY_EXCEEDED,
    PROCESSES_EXCEEDED,
)
_WAITING_PHASES = ("ready", "loading", "training")
#: A job that is to suspend does so after its iteration. One that lasts longer than this and so many of its
#: usual ones never ends.
STUCK_SECONDS = 5.0
STUCK_ITERATIONS = 10.0
#: A worker that ended well has said all it had to say; how long its last event may still be on its way.
LAST_WORD_SECONDS = 30.0


def advance(job: Job, cluster: Cluster) -> None:
    """Do every step that the job's rows call for now."""
    now = timezone.now()
    live = live_generation(job)
    if live is not None:
        _advance_live(job, live, cluster, now)
        live = live_generation(job)
    coming = coming_generation(job)
    if coming is not None:
        _advance_coming(job, coming, live, cluster, now)
    for profiling in job.generations.filter(purpose=Purpose.PROFILING).exclude(state=GenerationState.RETIRED):
        _advance_profiling(job, profiling, cluster, now)
    obey_owner(job)


def obey_owner(job: Job) -> None:
    """Take a job's GPUs that its owner paused, as soon as the step allows it that it was in.

    No plan names a paused job, so nobody else would.
    """
    if job.paused_by_owner and not job.finished():
        suspend_live(job, PAUSED)


def became_live(job: Job, generation: Generation, iteration: int, cluster: Cluster) -> None:
    """Rank 0 has done its first iteration: this generation trains, its predecessor is retired."""
    if generation.state not in (GenerationState.PREPARING, GenerationState.READY, GenerationState.HANDOVER):
        return
    predecessor = live_generation(job)
    if predecessor is not None:
        retire(
            predecessor,
            RetireReason.TAKEN_OVER,
            f"generation {generation.number} took over at iteration {iteration - 1}",
        )
    now = timezone.now()
    generation.state = GenerationState.LIVE
    generation.live_at = now
    generation.step_expires_at = None
    if generation.start and generation.start.get("from") == "handover":
        generation.start_iteration = max(0, iteration - 1)
    generation.save(update_fields=["state", "live_at", "step_expires_at", "start_iteration"])
    job.iterations_done = iteration
    job.iterations_reported_at = now
    job.pause_until = None
    job.save(update_fields=["iterations_done", "iterations_reported_at", "pause_until"])
    gpus = f"{generation.world_size} GPU{'s' if generation.world_size > 1 else ''}"
    if job.state == JobState.RUNNING:
        record(job, "rescaled", f"Trains on {gpus} from iteration {iteration}.", generation=generation.number)
    else:
        move(
            job,
            JobState.RUNNING,
            f"Trains on {gpus} from iteration {iteration}.",
            generation=generation.number,
        )
    obey_owner(job)
    planning_fact_changed(cluster)
    wake("plan", trigger=f"{job.pk} trains on {gpus}")


def became_suspended(job: Job, generation: Generation, cluster: Cluster) -> None:
    """The state is durable and the generation has stopped: the job waits without a GPU."""
    retire(generation, RetireReason.SUSPENDED, "suspended")
    if job.state == JobState.RUNNING and coming_generation(job) is None:
        move(job, JobState.SUSPENDED, f"Suspended at iteration {job.iterations_done}; the state is kept.")
    planning_fact_changed(cluster)
    wake("plan", trigger=f"{job.pk} suspended")


def break_off_change(job: Job, reason: str) -> bool:
    """Retire a coming generation that nothing depends on yet, and leave the job as it was before. Returns
    whether there was one.

    Its predecessor trains on; a job without one waits again, with its last durable state. Left alone are a
    hand-over that is under way, as the predecessor may have stopped for it, and what a promise may count on:
    a promised job's start, and a change of the owned GPUs it has.
    """
    coming = coming_generation(job)
    live = live_generation(job)
    if coming is None or (live is not None and coming.goal != Goal.PREPARE):
        return False
    if job.promised and (live is None or _owned_gpus(coming) != _owned_gpus(live)):
        return False
    retire(coming, RetireReason.GIVEN_UP, reason)
    job.pause_until = None
    job.save(update_fields=["pause_until"])
    then = "it trains on as before" if live is not None else "it waits for other GPUs"
    record(
        job,
        "broken_off",
        f"Generation {coming.number} on {coming.world_size} GPUs is broken off before it trained: {reason}; "
        f"{then}.",
        generation=coming.number,
    )
    if live is None and job.state == JobState.RUNNING:
        move(job, JobState.SUSPENDED, f"Goes on from iteration {job.iterations_done} on other GPUs.")
    return True


def _owned_gpus(generation: Generation) -> set[int]:
    """GPUs of the cluster's own servers that the generation has."""
    own = generation.assignments.filter(gpu__server__inference_cluster__isnull=True)
    return set(own.values_list("gpu_id", flat=True))


def lose_generation(job: Job, generation: Generation, reason: str, cluster: Cluster) -> None:
    """A training generation is gone without having handed over: go on from the last durable state.

    One that was still coming is given up: its predecessor goes on, if it still trains.
    """
    was_live = generation.state == GenerationState.LIVE
    if generation.state in COMING_STATES:
        give_up(job, generation, live_generation(job), reason, cluster)
        return
    retire(generation, RetireReason.LOST, reason)
    record(
        job,
        "interrupted",
        f"Generation {generation.number} was lost: {reason}.",
        generation=generation.number,
    )
    _go_on_from_checkpoint(job, cluster, was_live=was_live)
    obey_owner(job)
    planning_fact_changed(cluster)
    wake("plan", trigger=f"{job.pk} lost generation {generation.number}")


def fail_job(job: Job, reason: str, message: str, cluster: Cluster, *, traceback: str = "") -> None:
    """End the job: its function, its environment or its data is at fault."""
    let_go(job, reason)
    job.failure = {"reason": reason, "message": message, "traceback": traceback}
    if job.promise_outcome == PromiseOutcome.OPEN:
        job.promise_outcome = PromiseOutcome.VOID
        job.void_reason = VoidReason.FUNCTION_FAILED
    if job.decided_at is None:
        job.decided_at = timezone.now()
    job.save()
    move(job, JobState.FAILED, f"Failed: {message}", reason=reason)
    planning_fact_changed(cluster)
    wake("plan", trigger=f"{job.pk} failed")


def _because(reason: str) -> RetireReason:
    """What ends a generation of which a worker said that it cannot go on. The agent ends a measurement whose
    time is up."""
    timed_out = reason == RetireReason.MEASURING_TIMEOUT
    return RetireReason.MEASURING_TIMEOUT if timed_out else RetireReason.FAILED


def worker_failed(
    job: Job, generation: Generation, reason: str, message: str, traceback: str, cluster: Cluster
) -> None:
    """One rank cannot go on. The user's own errors end the job once they repeat; the platform's never do.

    A rank that raises takes its peers down with it, and any of them may be heard first: the function's error
    counts even when the generation was given up for a lost peer before.
    """
    on_the_side = generation.purpose == Purpose.PROFILING and job.state in (
        *PLANNED_STATES, JobState.DECLINED
    )  # fmt: skip
    if job.finished() and not on_the_side:
        return
    retired = generation.state == GenerationState.RETIRED
    if on_the_side:
        # More levels of a running job, which trains on without them, or of one that was declined.
        retire(generation, _because(reason), f"{reason}: {message}")
    elif reason in _FUNCTIONS_FAULTS and not (
        retired and generation.retired_because == RetireReason.MEASURED
    ):
        _function_failed(job, generation, reason, message, traceback, cluster)
    elif retired:
        return
    elif generation.purpose == Purpose.PROFILING:
        retire(generation, _because(reason), f"{reason}: {message}")
    else:
        lose_generation(job, generation, f"{reason}: {message}"[:300], cluster)
    planning_fact_changed(cluster)


def _function_failed(
    job: Job, generation: Generation, reason: str, message: str, traceback: str, cluster: Cluster
) -> None:
    """At once where it never trained; after several errors without progress between them where it did."""
    if generation.number < job.last_generation and generation.state == GenerationState.RETIRED:
        # Heard late, of a generation that has been replaced: what replaced it will tell.
        return
    progressed = job.iterations_done > job.failed_at_iteration
    job.failures = 1 if progressed else job.failures + 1
    job.failed_at_iteration = job.iterations_done
    job.save(update_fields=["failures", "failed_at_iteration"])
    if reason != "function_error" or generation.live_at is None or job.failures >= MAXIMUM_FAILURES:
        fail_job(job, reason, message, cluster, traceback=traceback)
    elif generation.state != GenerationState.RETIRED:
        lose_generation(job, generation, f"{reason}: {message}"[:300], cluster)


def _advance_live(job: Job, live: Generation, cluster: Cluster, now: datetime) -> None:
    phases = _phases(live)
    if live.goal == Goal.SUSPEND and (_all(phases, live, ("suspended", "exited")) and _stored(job, live)):
        became_suspended(job, live, cluster)
    elif live.goal == Goal.SUSPEND and live.step_expires_at and now > live.step_expires_at:
        lose_generation(job, live, "it did not write its state in time", cluster)
    elif live.goal == Goal.SUSPEND and _is_stuck(live, phases, cluster, now):
        lose_generation(job, live, "it did not come to the end of its iteration", cluster)
    elif live.goal == Goal.TRAIN and _lost(live, now):
        lose_generation(job, live, "a worker is gone", cluster)


def _is_stuck(live: Generation, phases: dict[int, str], cluster: Cluster, now: datetime) -> bool:
    """Whether a generation that was told to suspend is still in the same iteration after far longer than one
    takes.

    Promises count on its GPUs. What it has begun to write it may finish.
    """
    if live.step_expires_at is None or not _all(phases, live, ("training",)):
        return False
    told_at = live.step_expires_at - timedelta(seconds=cluster.suspend_timeout_seconds)
    level = CurveLevel.objects.filter(curve=live.curve_id, gpus=live.world_size).first()
    if level is None or not level.iterations_per_second:
        return False
    longest = STUCK_SECONDS + STUCK_ITERATIONS / level.iterations_per_second
    if live.curve is not None:
        longest += 2 * live.curve.finishing_seconds
    return (now - told_at).total_seconds() > longest


def _advance_coming(
    job: Job, coming: Generation, live: Generation | None, cluster: Cluster, now: datetime
) -> None:
    if coming.held_at is None and not hold_gpus(coming):
        return
    phases = _phases(coming)
    if _lost(coming, now):
        give_up(job, coming, live, "a worker did not start", cluster)
        return
    if coming.step_expires_at and now > coming.step_expires_at:
        give_up(
            job,
            coming,
            live,
            f"it was not {'live' if coming.goal == Goal.TRAIN else 'ready'} in time",
            cluster,
        )
        return
    if coming.state == GenerationState.PREPARING and _all(phases, coming, _WAITING_PHASES):
        coming.state = GenerationState.READY
        coming.ready_at = now
        coming.save(update_fields=["state", "ready_at"])
    if coming.state == GenerationState.READY and coming.goal == Goal.PREPARE:
        if live is None:
            coming.step_expires_at = now + timedelta(seconds=cluster.handover_timeout_seconds)
            coming.save(update_fields=["step_expires_at"])
            begin_training(coming, job)
        elif live.goal == Goal.TRAIN:
            begin_handover(coming, live, cluster)
    elif coming.state == GenerationState.PREPARING and coming.goal == Goal.PREPARE and live is None:
        begin_training(coming, job)


def give_up(job: Job, coming: Generation, live: Generation | None, reason: str, cluster: Cluster) -> None:
    """The way back to the old generation: it goes on if it still trains, else the job restarts from its
    checkpoint."""
    stopped_for_it = live is not None and live.goal == Goal.HAND_OVER
    retire(coming, RetireReason.GIVEN_UP, reason)
    record(
        job, "change_failed", f"Generation {coming.number} was given up: {reason}.", generation=coming.number
    )
    if stopped_for_it and live is not None:
        retire(live, RetireReason.GIVEN_UP, f"generation {coming.number} did not take over")
        _go_on_from_checkpoint(job, cluster, was_live=True)
    elif live is None:
        _go_on_from_checkpoint(job, cluster, was_live=False)
    obey_owner(job)
    planning_fact_changed(cluster)
    wake("plan", trigger=f"{job.pk} gave up generation {coming.number}")


def _advance_profiling(job: Job, profiling: Generation, cluster: Cluster, now: datetime) -> None:
    if profiling.held_at is None and not hold_gpus(profiling):
        waited = (now - profiling.created_at).total_seconds()
        if waited > release_bounds(cluster).suspending_seconds:
            retire(
                profiling,
                RetireReason.BROKEN_OFF,
                "the jobs that it was to displace did not leave in time",
            )
            planning_fact_changed(cluster)
            wake("plan", trigger=f"profiling of {job.pk} ended")
        return
    phases = _phases(profiling)
    if profiling.state == GenerationState.PREPARING and any(
        phase == "profiling" for phase in phases.values()
    ):
        profiling.state = GenerationState.LIVE
        profiling.live_at = now
        profiling.save(update_fields=["state", "live_at"])
    lost = _lost(profiling, now)
    if lost or (profiling.step_expires_at and now > profiling.step_expires_at):
        retire(
            profiling,
            RetireReason.LOST if lost else RetireReason.BROKEN_OFF,
            "a worker is gone" if lost else "it took too long",
        )
        planning_fact_changed(cluster)
        wake("plan", trigger=f"profiling of {job.pk} ended")


def _go_on_from_checkpoint(job: Job, cluster: Cluster, *, was_live: bool) -> None:
    """Roll the job's progress back to its last durable state and let what is coming, or the next plan, go on
    from there."""
    if was_live:
        job.iterations_done = job.checkpoint.iteration if job.checkpoint else 0
        job.iterations_reported_at = None
        job.save(update_fields=["iterations_done", "iterations_reported_at"])
    coming = coming_generation(job)
    if coming is not None:
        begin_training(coming, job)
    elif job.state == JobState.RUNNING:
        move(
            job,
            JobState.SUSPENDED,
            f"Goes on from iteration {job.iterations_done} as soon as it has GPUs again.",
        )


def _lost(generation: Generation, now: datetime) -> bool:
    """Whether a worker of the generation has failed, or is gone without a word."""
    for phase, gone, ended, changed_at in Worker.objects.filter(generation=generation).values_list(
        "phase", "gone", "exit", "changed_at"
    ):
        if phase == "failed":
            return True
        ended_well = phase == "completed" or bool(ended and ended.get("code") == 0)
        overdue = (now - changed_at).total_seconds() > LAST_WORD_SECONDS
        if (phase == "exited" or gone) and (not ended_well or overdue):
            return True
    return False


def _phases(generation: Generation) -> dict[int, str]:
    return {
        rank: "exited" if gone else phase
        for rank, phase, gone in Worker.objects.filter(generation=generation).values_list(
            "rank", "phase", "gone"
        )
    }


def _all(phases: dict[int, str], generation: Generation, wanted: tuple[str, ...]) -> bool:
    return len(phases) == generation.world_size and all(phase in wanted for phase in phases.values())


def _stored(job: Job, generation: Generation) -> bool:
    """Whether the state that this generation stopped with is durable."""
    return job.checkpoints.filter(generation=generation.number, reason="suspend").exists()
