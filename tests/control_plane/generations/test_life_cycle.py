"""The life cycle of jobs as pure functions: from any rows, steps terminate and break no rule."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.choices import (
    JOB_TRANSITIONS,
    PLANNED_STATES,
    GenerationState,
    Goal,
    JobState,
    Purpose,
    RetireReason,
)
from scheduling.life_cycle import events, steps
from scheduling.life_cycle import instructions as to_do
from scheduling.life_cycle.facts import GenerationFacts, JobFacts, StepBounds, WorkerFacts
from scheduling.life_cycle.instructions import Fail, Instruction

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BOUNDS = StepBounds(suspend_seconds=60.0, handover_seconds=30.0, displacing_seconds=90.0)
PHASES = (
    "starting", "loading", "ready", "training", "suspending", "suspended", "profiling", "completed",
    "exited", "failed",
)  # fmt: skip
MOST_STEPS = 12


def training(number: int, *phases: str, **facts: object) -> GenerationFacts:
    """Return a training generation with ranks in these phases."""
    usual = GenerationFacts(
        number=number, purpose=Purpose.TRAINING, state=GenerationState.LIVE, goal=Goal.TRAIN,
        world_size=len(phases), created_at=NOW, was_live=True,
        workers=tuple(WorkerFacts(phase, gone=False, exit_code=None, changed_at=NOW) for phase in phases),
    )  # fmt: skip
    return replace(usual, **facts)  # type: ignore[arg-type]


def coming(number: int, *phases: str, **facts: object) -> GenerationFacts:
    """Return a generation that is starting."""
    usual = {"state": GenerationState.PREPARING, "goal": Goal.PREPARE, "was_live": False}
    return training(number, *phases, **{**usual, **facts})


def running(**facts: object) -> JobFacts:
    usual = JobFacts(
        id="j", state=JobState.RUNNING, iterations_done=70, stored_iteration=50, last_generation=2
    )
    return replace(usual, **facts)  # type: ignore[arg-type]


def kinds(instructions: list[Instruction]) -> list[type]:
    return [type(instruction) for instruction in instructions]


# A model of what each instruction changes in the facts ----------------------------------------------------


def carried_out(job: JobFacts, instructions: list[Instruction]) -> JobFacts:
    for instruction in instructions:
        job = _after(job, instruction)
    return job


def _after(job: JobFacts, instruction: Instruction) -> JobFacts:
    live, coming = job.live, job.coming
    if isinstance(instruction, to_do.Retire):
        number = instruction.generation
        remaining = tuple(measurement for measurement in job.measurements if measurement.number != number)
        return replace(
            job,
            live=None if live and live.number == number else live,
            coming=None if coming and coming.number == number else coming,
            measurements=remaining,
            ending=job.ending or number not in {measurement.number for measurement in job.measurements},
        )
    if isinstance(instruction, to_do.AwaitServers):
        return replace(job, state=JobState.SUSPENDED)
    if isinstance(instruction, to_do.MoveTo):
        assert instruction.state in JOB_TRANSITIONS[job.state], f"{job.state} to {instruction.state}"
        return replace(job, state=instruction.state)
    if isinstance(instruction, Fail):
        return replace(job, state=JobState.FAILED, live=None, coming=None, measurements=())
    if isinstance(instruction, to_do.GoBack):
        return replace(job, iterations_done=instruction.iteration)
    if isinstance(instruction, to_do.CountFailure):
        return replace(job, failures=instruction.failures, failed_at_iteration=instruction.iteration)
    if isinstance(instruction, to_do.CallReady):
        assert coming is not None
        return replace(job, coming=replace(coming, state=GenerationState.READY))
    if isinstance(instruction, to_do.BeginTraining):
        assert coming is not None
        assert coming.number == instruction.generation
        assert live is None, "two generations would train at once"
        assert not job.ending, "an earlier generation's worker may still train"
        state = GenerationState.HANDOVER if coming.state == GenerationState.READY else coming.state
        return replace(job, coming=replace(coming, goal=Goal.TRAIN, state=state))
    if isinstance(instruction, to_do.BeginHandover):
        assert coming is not None
        assert live is not None
        assert live.goal == Goal.TRAIN
        assert coming.state == GenerationState.READY
        return replace(
            job,
            live=replace(live, goal=Goal.HAND_OVER),
            coming=replace(coming, goal=Goal.TRAIN, state=GenerationState.HANDOVER),
        )
    if isinstance(instruction, to_do.TellToSuspend):
        assert live is not None
        until = NOW + timedelta(seconds=instruction.seconds)
        return replace(job, live=replace(live, goal=Goal.SUSPEND, step_expires_at=until))
    if isinstance(instruction, to_do.BeginMeasuring):
        measured = tuple(
            replace(measurement, state=GenerationState.LIVE)
            if measurement.number == instruction.generation
            else measurement
            for measurement in job.measurements
        )
        return replace(job, measurements=measured)
    if isinstance(instruction, to_do.BecomeLive):
        assert coming is not None
        assert coming.number == instruction.generation
        assert live is None, "its predecessor is retired first"
        began = replace(coming, state=GenerationState.LIVE, goal=Goal.TRAIN, was_live=True)
        return replace(job, live=began, coming=None, iterations_done=instruction.iteration)
    return job


def settled(job: JobFacts) -> JobFacts:
    """Return the facts once no further step is due."""
    for _ in range(MOST_STEPS):
        instructions = steps.next_steps(job, BOUNDS, NOW)
        if not instructions:
            return job
        job = carried_out(job, instructions)
    raise AssertionError(f"the steps of {job} do not come to an end")


# Any rows -------------------------------------------------------------------------------------------------


@st.composite
def workers(draw: st.DrawFn, most: int) -> tuple[WorkerFacts, ...]:
    def draw_worker() -> WorkerFacts:
        return WorkerFacts(
            phase=draw(st.sampled_from(PHASES)),
            gone=draw(st.booleans()),
            exit_code=draw(st.sampled_from([None, 0, 1])),
            changed_at=NOW - timedelta(seconds=draw(st.sampled_from([0, 29, 31]))),
        )

    return tuple(draw_worker() for _ in range(draw(st.integers(0, most))))


@st.composite
def generations(
    draw: st.DrawFn, number: int, purpose: Purpose, states: list[GenerationState]
) -> GenerationFacts:
    state = draw(st.sampled_from(states))
    live = state == GenerationState.LIVE
    goals = [Goal.TRAIN, Goal.SUSPEND, Goal.HAND_OVER] if live else [Goal.PREPARE, Goal.TRAIN]
    world_size = draw(st.sampled_from([1, 2]))
    return GenerationFacts(
        number=number, purpose=purpose, state=state, goal=draw(st.sampled_from(goals)),
        world_size=world_size, created_at=NOW - timedelta(seconds=draw(st.sampled_from([0, 100]))),
        holds_gpus=live or draw(st.booleans()), was_live=live,
        step_expires_at=draw(st.sampled_from([None, NOW - timedelta(seconds=1), NOW + timedelta(seconds=9)])),
        workers=draw(workers(world_size)), state_stored=draw(st.booleans()),
        iterations_per_second=draw(st.sampled_from([0.0, 1.0, 100.0])),
        owned_gpus=draw(st.sampled_from([frozenset(), frozenset({1})])),
    )  # fmt: skip


MEASURED = (*PLANNED_STATES, JobState.SUBMITTED, JobState.PROFILING, JobState.DECLINED)
COMING = [GenerationState.PREPARING, GenerationState.READY, GenerationState.HANDOVER]


@st.composite
def jobs(draw: st.DrawFn) -> JobFacts:
    state = draw(st.sampled_from(list(JobState)))
    planned = state in PLANNED_STATES
    live = (
        draw(generations(1, Purpose.TRAINING, [GenerationState.LIVE]))
        if planned and draw(st.booleans())
        else None
    )
    coming_generation = (
        draw(generations(2, Purpose.TRAINING, COMING)) if planned and draw(st.booleans()) else None
    )
    if live is not None:
        state = JobState.RUNNING
    measurements = (
        (draw(generations(3, Purpose.PROFILING, [GenerationState.PREPARING, GenerationState.LIVE])),)
        if state in MEASURED and draw(st.booleans())
        else ()
    )
    return JobFacts(
        id="j", state=state, paused_by_owner=draw(st.booleans()), promised=draw(st.booleans()),
        iterations_done=draw(st.integers(0, 90)), stored_iteration=draw(st.integers(0, 90)),
        failures=draw(st.integers(0, 3)), failed_at_iteration=draw(st.integers(0, 90)), last_generation=3,
        live=live, coming=coming_generation, measurements=measurements, ending=draw(st.booleans()),
    )  # fmt: skip


@given(jobs())
def test_steps_come_to_an_end_and_two_generations_never_train_at_once(job: JobFacts) -> None:
    settled(job)


@given(jobs())
def test_paused_job_holds_gpus_only_to_hand_over_or_store_its_state(job: JobFacts) -> None:
    job = settled(replace(job, paused_by_owner=True))
    if job.finished():
        return
    if job.coming is not None:
        assert job.coming.state == GenerationState.HANDOVER
        assert job.live is not None
    elif job.live is not None:
        assert job.live.goal in (Goal.SUSPEND, Goal.HAND_OVER)


@given(jobs(), st.sampled_from(["function_error", "data_unavailable", "peer_lost", "memory_exceeded"]))
def test_whatever_fails_no_dead_generation_is_left_with_work(job: JobFacts, reason: str) -> None:
    for generation in (job.live, job.coming, *job.measurements):
        if generation is None:
            continue
        after = carried_out(job, events.worker_failed(job, generation, Fail(reason, "text")))
        if after.state == JobState.FAILED:
            continue
        numbers = {
            remaining.number
            for remaining in (after.live, after.coming, *after.measurements)
            if remaining is not None
        }
        assert generation.number not in numbers
        settled(after)


@given(jobs(), st.integers(1, 3))
def test_a_lost_generation_costs_what_was_done_since_the_last_state(job: JobFacts, number: int) -> None:
    generation = next(
        (candidate for candidate in (job.live, job.coming) if candidate and candidate.number == number), None
    )
    if generation is None:
        return
    after = carried_out(job, events.lost(job, generation, "its server is silent"))
    assert after.iterations_done in (job.iterations_done, job.stored_iteration)
    if after.live is None and after.coming is None:
        assert after.state != JobState.RUNNING, "a running job without a generation is never started again"
    settled(after)


# The transitions that docs/protocols.md describes ---------------------------------------------------------


def test_a_hand_over_begins_when_every_rank_of_the_successor_waits() -> None:
    job = running(live=training(1, "training"), coming=coming(2, "ready", "loading"))
    assert steps.next_steps(job, BOUNDS, NOW) == [to_do.CallReady(2)]
    after = settled(job)
    assert after.live is not None
    assert after.live.goal == Goal.HAND_OVER
    assert after.coming is not None
    assert after.coming.state == GenerationState.HANDOVER


def test_a_successor_waits_for_its_gpus_and_for_every_rank() -> None:
    live = training(1, "training")
    assert not steps.next_steps(running(live=live, coming=coming(2, holds_gpus=False)), BOUNDS, NOW)
    half = coming(2, "ready", world_size=2)
    assert not steps.next_steps(running(live=live, coming=half), BOUNDS, NOW)


def test_the_first_iteration_retires_the_predecessor() -> None:
    predecessor = training(1, "training", goal=Goal.HAND_OVER)
    successor = coming(2, "training", "training", state=GenerationState.HANDOVER, goal=Goal.TRAIN)
    instructions = events.first_iteration(running(live=predecessor, coming=successor), 2, 71)
    assert instructions[0] == to_do.Retire(
        1, RetireReason.TAKEN_OVER, "generation 2 took over at iteration 70"
    )
    assert to_do.BecomeLive(2, 71) in instructions
    assert events.first_iteration(running(live=predecessor, coming=successor), 1, 71) == [], "a late report"


def test_failed_successor_leaves_its_predecessor_training() -> None:
    job = running(live=training(1, "training"), coming=coming(2, "failed"))
    after = settled(job)
    assert after.live == job.live
    assert after.coming is None
    assert after.iterations_done == job.iterations_done


def test_failed_handover_suspends_the_job_with_its_progress() -> None:
    predecessor = training(1, "training", goal=Goal.HAND_OVER)
    successor = coming(2, "failed", state=GenerationState.HANDOVER, goal=Goal.TRAIN)
    after = settled(running(live=predecessor, coming=successor))
    assert (after.live, after.coming, after.state) == (None, None, JobState.SUSPENDED)
    assert after.iterations_done == 50


def test_generation_trains_only_after_all_earlier_workers_ended() -> None:
    late = NOW + timedelta(seconds=61)
    waiting = coming(3, "ready", state=GenerationState.READY, step_expires_at=NOW)
    job = running(coming=waiting, ending=True)
    assert not steps.next_steps(job, BOUNDS, late), "it waits as long as that takes"
    (begin,) = steps.next_steps(replace(job, ending=False), BOUNDS, NOW)
    assert begin == to_do.BeginTraining(3, BOUNDS.handover_seconds)
    lost = running(live=training(2, "failed"), coming=waiting)
    assert settled(lost).coming == waiting


def test_a_suspended_job_waits_until_its_state_is_durable() -> None:
    leaving = training(1, "exited", goal=Goal.SUSPEND, step_expires_at=NOW + timedelta(seconds=5))
    assert not steps.next_steps(running(live=leaving), BOUNDS, NOW)
    after = settled(running(live=replace(leaving, state_stored=True)))
    assert (after.live, after.state, after.iterations_done) == (None, JobState.SUSPENDED, 70)


def test_stuck_iteration_is_ended_at_many_times_its_usual_length() -> None:
    def suspending(seconds_ago: float) -> JobFacts:
        until = NOW + timedelta(seconds=BOUNDS.suspend_seconds - seconds_ago)
        return running(
            live=training(1, "training", goal=Goal.SUSPEND, step_expires_at=until, iterations_per_second=2.0)
        )

    longest = steps.STUCK_SECONDS + steps.STUCK_ITERATIONS / 2.0
    assert not steps.next_steps(suspending(longest - 0.1), BOUNDS, NOW)
    assert settled(suspending(longest + 0.1)).state == JobState.SUSPENDED


@pytest.mark.parametrize(("failures", "ends"), [(0, False), (1, False), (2, True)])
def test_third_function_error_without_progress_fails_the_job(failures: int, ends: bool) -> None:
    live = training(1, "failed")
    job = running(live=live, failures=failures, failed_at_iteration=70)
    after = carried_out(job, events.worker_failed(job, live, Fail("function_error", "division by zero")))
    assert (after.state == JobState.FAILED) is ends
    further = replace(job, failed_at_iteration=10)
    after = carried_out(further, events.worker_failed(further, live, Fail("function_error", "x")))
    assert (after.state, after.failures) == (JobState.SUSPENDED, 1)


@pytest.mark.parametrize("reason", ["function_error", "storage_failed", "killed"])
def test_an_error_on_all_ranks_counts_once(reason: str) -> None:
    live, fault = training(1, "failed"), Fail(reason, "division by zero")
    job = running(live=live, failures=0, failed_at_iteration=10, last_generation=1)
    first = events.worker_failed(job, live, fault)
    (retire,) = (instruction for instruction in first if isinstance(instruction, to_do.Retire))
    after = carried_out(job, first)
    assert (after.state, after.failures) == (JobState.SUSPENDED, 1)
    retired = replace(
        live, state=GenerationState.RETIRED, retired_because=retire.because, failure_reason=reason
    )
    assert events.worker_failed(after, retired, fault) == [], "other ranks report the same error"
    lost = replace(retired, retired_because=RetireReason.LOST, failure_reason="")
    assert events.worker_failed(after, lost, fault), "the earlier reports named only a lost peer"


def test_an_error_before_the_first_iteration_ends_the_job_at_once() -> None:
    starting = coming(1, "failed", goal=Goal.TRAIN)
    job = replace(running(coming=starting), state=JobState.ADMITTED, last_generation=1)
    instructions = events.worker_failed(job, starting, Fail("function_error", "no such file"))
    assert Fail in kinds(instructions)


def test_changes_that_a_promise_counts_on_are_not_cancelled() -> None:
    live = training(1, "training", owned_gpus=frozenset({1, 2}))
    grows = coming(2, "loading", owned_gpus=frozenset({1, 2}))
    moves = coming(2, "loading", owned_gpus=frozenset({3, 4}))
    assert events.broken_off(running(promised=True, live=live, coming=grows), "lent")
    assert not events.broken_off(running(promised=True, live=live, coming=moves), "lent")
    assert events.broken_off(running(promised=False, live=live, coming=moves), "lent")
    assert not events.broken_off(running(promised=True, coming=grows), "lent"), "a promised job's start"


@pytest.mark.parametrize(
    ("reason", "because"),
    [
        ("start_failed", RetireReason.GIVEN_UP),
        ("plan_refused", RetireReason.GIVEN_UP),
        ("peer_lost", RetireReason.LOST),
        ("killed", RetireReason.LOST),
    ],
)
def test_aborted_start_differs_from_a_failed_one_in_its_reason(reason: str, because: RetireReason) -> None:
    job = running(coming=coming(2, "loading", goal=Goal.TRAIN))
    assert job.coming is not None
    instructions = events.worker_failed(job, job.coming, Fail(reason, "it ended"))
    assert to_do.Retire(2, because, f"{reason}: it ended") in instructions
    assert to_do.Retire(2, RetireReason.LOST, "silent") in events.lost(job, job.coming, "silent")
    assert to_do.Retire(2, RetireReason.LET_GO, "lent") in events.broken_off(job, "lent")
    assert to_do.Retire(2, RetireReason.GIVEN_UP, "too late") in events.given_up(job, "too late")


def test_a_measurement_leaves_when_those_that_it_displaces_do_not() -> None:
    waiting = GenerationFacts(
        number=3, purpose=Purpose.PROFILING, state=GenerationState.PREPARING, goal=Goal.TRAIN, world_size=1,
        created_at=NOW - timedelta(seconds=BOUNDS.displacing_seconds + 1), holds_gpus=False,
    )  # fmt: skip
    instructions = steps.next_steps(replace(running(), measurements=(waiting,)), BOUNDS, NOW)
    assert kinds(instructions) == [to_do.Retire, to_do.TellPlanner]
    fresh = replace(waiting, created_at=NOW)
    assert not steps.next_steps(replace(running(), measurements=(fresh,)), BOUNDS, NOW)
