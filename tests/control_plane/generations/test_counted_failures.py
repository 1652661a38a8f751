"""Which ends of generations count as failures of their job, and when repeated failures end it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from scheduling.choices import GenerationState, Goal, JobState, RetireReason
from scheduling.life_cycle import events, steps
from scheduling.life_cycle import instructions as to_do
from scheduling.life_cycle.facts import GenerationFacts, JobFacts
from scheduling.life_cycle.instructions import Fail, Instruction
from tests.control_plane.generations.test_life_cycle import (
    BOUNDS,
    NOW,
    carried_out,
    coming,
    running,
    settled,
    training,
)


def counted(instructions: list[Instruction]) -> list[tuple[int, int, str]]:
    """Return of each counted failure the number so far, the furthest iteration, and the reason."""
    return [
        (instruction.failures, instruction.iteration, instruction.reason)
        for instruction in instructions
        if isinstance(instruction, to_do.CountFailure)
    ]


REASONS = ["start_failed", "plan_refused", "storage_failed", "killed"]


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("was_live", [False, True])
def test_generation_end_on_healthy_servers_counts_as_a_failure(reason: str, was_live: bool) -> None:
    number = 2
    generation = training(number, "failed") if was_live else coming(number, "failed", goal=Goal.TRAIN)
    job = running(live=generation) if was_live else running(coming=generation)
    job = replace(job, failures=1, failed_at_iteration=70)
    instructions = events.worker_failed(job, generation, Fail(reason, "it ended"))
    assert counted(instructions) == [(2, 70, reason)]
    assert not any(isinstance(instruction, Fail) for instruction in instructions), (
        "a failed server may still turn out to be the cause"
    )
    after = carried_out(job, instructions)
    assert (after.state, after.live, after.coming) == (JobState.SUSPENDED, None, None)


def test_only_passing_the_furthest_iteration_is_progress() -> None:
    live = training(2, "failed")
    job = running(live=live, iterations_done=65, failures=2, failed_at_iteration=70)
    fault = Fail("killed", "by signal 11")
    assert counted(events.worker_failed(job, live, fault, reached=66)) == [(3, 70, "killed")]
    assert counted(events.worker_failed(job, live, fault, reached=71)) == [(1, 71, "killed")]
    further = replace(job, iterations_done=80)
    assert counted(events.worker_failed(further, live, fault)) == [(1, 80, "killed")]


def test_a_lost_peer_counts_only_for_ranks_on_one_server() -> None:
    live = training(2, "failed", "training")
    job = running(live=live)
    fault = Fail("peer_lost", "another worker is gone")
    assert counted(events.worker_failed(job, live, fault)) == []
    alone = replace(live, on_one_server=True)
    assert counted(events.worker_failed(job, alone, fault)) == [(1, 70, "peer_lost")]


@pytest.mark.parametrize("reason", ["killed", "function_error"])
def test_specific_cause_replaces_a_lost_peer(reason: str) -> None:
    lost = training(
        2, "failed", state=GenerationState.RETIRED, retired_because=RetireReason.LOST,
        failure_reason="peer_lost", on_one_server=True,
    )  # fmt: skip
    job = running(state=JobState.SUSPENDED, failures=2, failed_at_iteration=70)
    fault = Fail(reason, "division by zero")
    assert counted(events.worker_failed(job, lost, fault)) == [(2, 70, reason)], "it is the same failure"
    named = replace(lost, failure_reason=reason)
    if reason == "killed":
        assert events.worker_failed(job, named, fault) == []
    assert counted(events.worker_failed(job, named, Fail("peer_lost", "reset"))) == []


@pytest.mark.parametrize(
    "because", [RetireReason.TAKEN_OVER, RetireReason.SUSPENDED, RetireReason.LET_GO], ids=str
)
def test_workers_that_are_stopped_do_not_fail_their_job(because: RetireReason) -> None:
    gone = training(2, "failed", state=GenerationState.RETIRED, retired_because=because)
    assert events.worker_failed(running(), gone, Fail("killed", "by signal 9")) == []


def test_a_report_after_its_generations_end_still_counts() -> None:
    """The step that notices a missing worker precedes the event that gives the cause."""
    gone = training(2, "failed", state=GenerationState.RETIRED, retired_because=RetireReason.LOST)
    job = running(state=JobState.SUSPENDED, last_generation=2)
    assert events.worker_failed(job, gone, Fail("killed", "by signal 11"), reached=71) == [
        to_do.CountFailure(2, 1, 71, "killed", "by signal 11")
    ]


def test_a_successor_failing_beside_its_predecessor_is_harmless() -> None:
    successor = coming(3, "failed")
    beside = running(live=training(2, "training"), coming=successor)
    assert counted(events.worker_failed(beside, successor, Fail("start_failed", "no port"))) == []
    stopped = running(live=training(2, "training", goal=Goal.HAND_OVER), coming=successor)
    assert counted(events.worker_failed(stopped, successor, Fail("start_failed", "no port"))) == [
        (1, 70, "start_failed")
    ]


def test_a_lease_that_ended_excuses_what_was_counted() -> None:
    live = training(2, "failed", failure_reason="peer_lost")
    job = running(live=live, failures=3, failed_at_iteration=70)
    instructions = events.worker_failed(job, live, Fail("lease_ended", "its lease ended"))
    assert to_do.ExcuseFailure(2) in instructions
    assert counted(instructions) == []


@pytest.mark.parametrize(
    ("phases", "counts"),
    [
        (["starting"], 0), (["ready"], 0), (["preparing"], 1), (["loading"], 1), (["training"], 1),
        (["preparing", "starting"], 0), (["loading", "ready"], 0), (["loading", "training"], 1),
    ],
)  # fmt: skip
def test_a_start_that_takes_too_long_counts_where_functions_run(phases: list[str], counts: int) -> None:
    late = NOW - timedelta(seconds=1)
    generation = coming(2, *phases, goal=Goal.TRAIN, step_expires_at=late)
    assert len(counted(steps.next_steps(running(coming=generation), BOUNDS, NOW))) == counts


def test_an_endless_iteration_counts_and_a_slow_store_does_not() -> None:
    suspended_at = NOW - timedelta(seconds=BOUNDS.suspend_seconds + 1)
    stuck = training(
        2, "training", goal=Goal.SUSPEND, iterations_per_second=2.0,
        step_expires_at=suspended_at + timedelta(seconds=BOUNDS.suspend_seconds + 5),
    )  # fmt: skip
    assert counted(steps.next_steps(running(live=stuck), BOUNDS, NOW)) == [(1, 70, "timed_out")]
    storing = replace(stuck, step_expires_at=NOW - timedelta(seconds=1))
    assert counted(steps.next_steps(running(live=storing), BOUNDS, NOW)) == []


def _failed_often(**facts: object) -> JobFacts:
    fault = Fail("start_failed", "no port is free")
    job = running(
        state=JobState.SUSPENDED, iterations_done=50, failures=3, failed_at_iteration=70, last_failure=fault
    )
    return replace(job, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [JobState.ADMITTED, JobState.RUNNING, JobState.SUSPENDED])
def test_a_job_that_failed_too_often_ends_with_the_cause(state: JobState) -> None:
    generation: GenerationFacts = coming(4, "loading", goal=Goal.TRAIN)
    job = _failed_often(state=state, coming=generation)
    (ends,) = steps.next_steps(job, BOUNDS, NOW)
    assert ends == Fail(
        "start_failed",
        "it failed 3 times without passing iteration 70, the last time because: no port is free",
    )
    assert settled(job).state == JobState.FAILED


@pytest.mark.parametrize(
    "facts",
    [{"last_failure": None}, {"failures": 2}, {"iterations_done": 71}, {"state": JobState.COMPLETED}],
    ids=["a server may have failed", "excused", "it got further", "it has ended"],
)
def test_job_continues_while_its_failures_are_inconclusive(facts: dict[str, object]) -> None:
    assert steps.next_steps(_failed_often(**facts), BOUNDS, NOW) == []
