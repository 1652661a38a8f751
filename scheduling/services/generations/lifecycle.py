"""Carries out the life cycle of a job: reads facts from rows and executes the instructions of
`scheduling.life_cycle`. Callers hold the cluster's row.

Level-triggered: `advance` does every step that the rows call for. Calling it again, or much later, is
harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.db.models import F, QuerySet
from django.utils import timezone

from cluster.models import Cluster
from scheduling.choices import GenerationState, JobEventKind, JobState, VoidReason
from scheduling.life_cycle import events, steps
from scheduling.life_cycle import instructions as to_do
from scheduling.life_cycle.instructions import Fail, Instruction
from scheduling.models import Generation, Job
from scheduling.services.generations.generations import (
    begin_handover,
    begin_training,
    let_go,
    retire,
    tell_to_suspend,
)
from scheduling.services.generations.job_facts import facts_of, generation_facts, servers_of, step_bounds
from scheduling.services.generations.recoveries import announce_recovery, begin_recovery, words_on_going_on
from scheduling.services.rows.records import Move, move, move_all, planning_fact_changed, read_cluster, record
from scheduling.services.rows.repeated_lines import record_or_count
from scheduling.services.rows.scoring import void_promise
from scheduling.services.rows.wakeups import wake

#: Limit of steps at once. No job needs as many; more would be an endless cycle.
MOST_STEPS = 20


class EndlessSteps(Exception):
    """The rows of a job call for one step after another without end."""


def advance(job: Job, cluster: Cluster) -> None:
    """Do every step that the job's rows call for now.

    Raises:
        EndlessSteps: the steps do not end.
    """
    now = timezone.now()
    bounds = step_bounds(cluster)
    for _ in range(MOST_STEPS):
        found = steps.next_steps(facts_of(job, holding=True), bounds, now)
        if not found:
            return
        carry_out(job, found, cluster)
    raise EndlessSteps(f"job {job.pk}: {found}")


def suspend(job: Job, reason: str) -> None:
    """Take all GPUs from the job. A live generation stores its state first; a hand-over under way is
    completed.
    """
    cluster = read_cluster(job.cluster_id)
    carry_out(job, events.suspended(facts_of(job), reason, step_bounds(cluster)), cluster)


def obey_owner(job: Job, cluster: Cluster) -> None:
    """Release a paused job's GPUs as soon as its current step permits."""
    if job.paused_by_owner:
        carry_out(job, steps.owner_steps(facts_of(job), step_bounds(cluster)), cluster)


def became_live(job: Job, generation: Generation, iteration: int, cluster: Cluster) -> None:
    """Make this generation live after rank 0's first iteration, and retire its predecessor."""
    carry_out(job, events.first_iteration(facts_of(job), generation.number, iteration), cluster)
    obey_owner(job, cluster)


def break_off_change(job: Job, reason: str, cluster: Cluster) -> bool:
    """Retire a coming generation that nothing depends on yet and leave the job as before. Return whether
    there was one.
    """
    found = events.broken_off(facts_of(job, owned_gpus=True), reason)
    carry_out(job, found, cluster)
    return bool(found)


def lose_generation(job: Job, generation: Generation, reason: str, cluster: Cluster) -> None:
    """Continue from the last durable state after a generation is lost without a hand-over."""
    carry_out(job, events.lost(facts_of(job), generation_facts(generation), reason), cluster)
    obey_owner(job, cluster)


def give_up(job: Job, reason: str, cluster: Cluster) -> None:
    """Give up the coming generation: the old one goes on, or the job restarts from its last durable state."""
    carry_out(job, events.given_up(facts_of(job), reason), cluster)
    obey_owner(job, cluster)


def fail_worker(job: Job, generation: Generation, fault: Fail, cluster: Cluster, *, reached: int = 0) -> None:
    """Handle the failure of one rank. Errors that repeat without progress end the job. ``reached``:
    iterations that the rank had completed.
    """
    facts = replace(generation_facts(generation), on_one_server=len(servers_of([generation])) == 1)
    carry_out(job, events.worker_failed(facts_of(job), facts, fault, reached), cluster)
    obey_owner(job, cluster)


def excuse(generations: QuerySet[Generation]) -> None:
    """Do not count the ends of these generations as failures of their jobs: one of their servers failed."""
    for generation in generations.filter(failure__isnull=False).select_related("job"):
        generation.failure = None
        generation.save(update_fields=["failure"])
        Job.objects.filter(pk=generation.job_id, failures__gt=0).update(failures=F("failures") - 1)


def fail_all(faults: Sequence[tuple[Job, Fail]], cluster: Cluster) -> None:
    """Fail jobs whose function, environment or data is at fault. Jobs without workers take only a few
    statements.
    """
    jobs = [job.pk for job, _ in faults]
    begun = Generation.objects.filter(job__in=jobs).exclude(state=GenerationState.RETIRED)
    running = set(begun.values_list("job_id", flat=True))
    moves = []
    for job, fault in faults:
        if job.pk in running:
            carry_out(job, [fault], cluster)
            continue
        _note_fault(job, fault)
        moves.append(Move(job, JobState.FAILED, _failed_because(fault), {"reason": fault.reason}))
    move_all(moves, fields=_OF_A_FAULT)
    if moves:
        planning_fact_changed(cluster)
        wake("plan", trigger=f"{moves[0].job.pk} and others failed")


# Carrying out ------------------------------------------------------------------------------------------


def carry_out(job: Job, found: Sequence[Instruction], cluster: Cluster) -> None:
    """Execute the instructions in order."""
    for instruction in found:
        _HOW[type(instruction)](job, instruction, cluster)


def _named(job: Job, number: int) -> Generation:
    return job.generations.get(number=number)


def _retire(job: Job, asked: to_do.Retire, cluster: Cluster) -> None:
    retire(_named(job, asked.generation), asked.because, asked.reason)


def _call_ready(job: Job, asked: to_do.CallReady, cluster: Cluster) -> None:
    generation = _named(job, asked.generation)
    generation.state, generation.ready_at = GenerationState.READY, timezone.now()
    generation.save(update_fields=["state", "ready_at"])


def _begin_training(job: Job, asked: to_do.BeginTraining, cluster: Cluster) -> None:
    generation = _named(job, asked.generation)
    if asked.seconds is not None:
        generation.step_expires_at = timezone.now() + timedelta(seconds=asked.seconds)
        generation.save(update_fields=["step_expires_at"])
    begin_training(generation, job)


def _begin_handover(job: Job, asked: to_do.BeginHandover, cluster: Cluster) -> None:
    predecessor = _named(job, asked.predecessor)
    begin_handover(_named(job, asked.generation), predecessor, cluster)
    announce_recovery(job, predecessor, timezone.now())


def _tell_to_suspend(job: Job, asked: to_do.TellToSuspend, cluster: Cluster) -> None:
    generation = _named(job, asked.generation)
    tell_to_suspend(generation, asked.seconds)
    announce_recovery(job, generation, timezone.now())


def _begin_measuring(job: Job, asked: to_do.BeginMeasuring, cluster: Cluster) -> None:
    generation = _named(job, asked.generation)
    generation.state, generation.live_at = GenerationState.LIVE, timezone.now()
    generation.save(update_fields=["state", "live_at"])


def _become_live(job: Job, asked: to_do.BecomeLive, cluster: Cluster) -> None:
    generation, now = _named(job, asked.generation), timezone.now()
    generation.state = GenerationState.LIVE
    generation.live_at = now
    generation.step_expires_at = None
    if generation.start and generation.start.get("from") in ("handover", "memory"):
        generation.start_iteration = max(0, asked.iteration - 1)
    generation.save(update_fields=["state", "live_at", "step_expires_at", "start_iteration"])
    job.iterations_done = asked.iteration
    job.iterations_reported_at = now
    job.pause_until = None
    job.save(update_fields=["iterations_done", "iterations_reported_at", "pause_until"])


def _go_back(job: Job, asked: to_do.GoBack, cluster: Cluster) -> None:
    job.iterations_done, job.iterations_reported_at = asked.iteration, None
    job.save(update_fields=["iterations_done", "iterations_reported_at"])


def _begin_recovery(job: Job, asked: to_do.BeginRecovery, cluster: Cluster) -> None:
    begin_recovery(job, _named(job, asked.generation), asked.reason, timezone.now())


def _await_servers(job: Job, asked: to_do.AwaitServers, cluster: Cluster) -> None:
    move(job, JobState.SUSPENDED, words_on_going_on(job, asked.iteration))


def _no_pause(job: Job, asked: to_do.NoPause, cluster: Cluster) -> None:
    job.pause_until = None
    job.save(update_fields=["pause_until"])


def _count_failure(job: Job, asked: to_do.CountFailure, cluster: Cluster) -> None:
    generation = _named(job, asked.generation)
    again = generation.failure is not None
    generation.failure = {"reason": asked.reason, "message": asked.message}
    generation.save(update_fields=["failure"])
    job.failures, job.failed_at_iteration = asked.failures, asked.iteration
    job.save(update_fields=["failures", "failed_at_iteration"])
    times = f"{asked.failures} of {events.MAXIMUM_FAILURES}"
    text = f"Failure {times} without passing iteration {asked.iteration}: {asked.message[:300]}"
    known = job.events.filter(kind=JobEventKind.FAILURE, detail__generation=asked.generation)
    if not again or not known.update(message=text):
        record(job, JobEventKind.FAILURE, text, reason=asked.reason, generation=asked.generation)


def _excuse_failure(job: Job, asked: to_do.ExcuseFailure, cluster: Cluster) -> None:
    excuse(job.generations.filter(number=asked.generation))
    job.refresh_from_db(fields=["failures"])


def _fail(job: Job, asked: Fail, cluster: Cluster) -> None:
    let_go(job, asked.reason)
    _note_fault(job, asked)
    job.save()
    kept = f" Its state at iteration {job.checkpoint.iteration} is kept for 7 days." if job.checkpoint else ""
    move(job, JobState.FAILED, _failed_because(asked) + kept, reason=asked.reason)
    _tell_planner(job, to_do.TellPlanner(f"{job.pk} failed"), cluster)


_OF_A_FAULT = ("failure", "promise_outcome", "void_reason", "decided_at")


def _note_fault(job: Job, fault: Fail) -> None:
    """Store the failure in the job's fields; the caller saves them."""
    job.failure = {"reason": fault.reason, "message": fault.message, "traceback": fault.traceback}
    own = fault.reason in events.FUNCTIONS_FAULTS
    void_promise(job, VoidReason.FUNCTION_FAILED if own else VoidReason.FAILED_REPEATEDLY)
    if job.decided_at is None:
        job.decided_at = timezone.now()


def _failed_because(fault: Fail) -> str:
    return f"Failed: {fault.message}"


def _move_to(job: Job, asked: to_do.MoveTo, cluster: Cluster) -> None:
    move(job, asked.state, asked.message, **_of_generation(asked.generation))


def _record(job: Job, asked: to_do.Record, cluster: Cluster) -> None:
    record_or_count(job, asked.kind, asked.message, **_of_generation(asked.generation))


def _of_generation(number: int | None) -> dict[str, Any]:
    return {} if number is None else {"generation": number}


def _tell_planner(job: Job, asked: to_do.TellPlanner, cluster: Cluster) -> None:
    planning_fact_changed(cluster)
    wake("plan", trigger=asked.trigger)


_HOW: dict[type[Instruction], Callable[[Job, Any, Cluster], None]] = {
    to_do.Retire: _retire,
    to_do.CallReady: _call_ready,
    to_do.BeginTraining: _begin_training,
    to_do.BeginHandover: _begin_handover,
    to_do.TellToSuspend: _tell_to_suspend,
    to_do.BeginMeasuring: _begin_measuring,
    to_do.BecomeLive: _become_live,
    to_do.GoBack: _go_back,
    to_do.BeginRecovery: _begin_recovery,
    to_do.AwaitServers: _await_servers,
    to_do.NoPause: _no_pause,
    to_do.CountFailure: _count_failure,
    to_do.ExcuseFailure: _excuse_failure,
    to_do.Fail: _fail,
    to_do.MoveTo: _move_to,
    to_do.Record: _record,
    to_do.TellPlanner: _tell_planner,
}
