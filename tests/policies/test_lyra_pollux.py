"""Pollux as a rival of Lyra, in hand-worked runs and in single decisions."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from scheduling.core.question.decision import ChangeKind, Decision
from scheduling.core.question.snapshot import Snapshot
from tests.core.building import snapshot
from tests.policies.asking import asking, go_on, replanned, slots
from tests.simulation.lending.worlds import Job, completion_seconds, run

HALF_A_MINUTE = slots(30.0)


def sizes_of(decision: Decision) -> dict[str, int]:
    return {name: len(gpus) for name, gpus in decision.placements.items()}


def at(question: Snapshot, now: float) -> Snapshot:
    return replace(question, now=now, next_slot_at=now)


def test_elastic_jobs_share_a_server_and_every_job_ends() -> None:
    jobs = [Job(100.0, 2, 8), Job(100.0, 2, 8), Job(50.0, 4, 4, submitted_at=40.0)]
    outcome = run(jobs, policy="lyra_pollux", slot_seconds=30.0)
    assert np.isfinite(outcome.jobs.completed_at).all()
    assert outcome.allocations.gpus[:2].tolist() == [4, 4]


def test_a_change_costs_half_a_minute() -> None:
    """Job 0 has the server, then half of it, then all of it again."""
    jobs = [Job(600.0, 2, 8), Job(100.0, 4, 4, submitted_at=60.0)]
    outcome = run(jobs, policy="lyra_pollux", slot_seconds=30.0)
    changes = int(outcome.jobs.rescales[0])
    assert changes >= 1
    assert outcome.jobs.pause_seconds[0] == pytest.approx(30.0 * changes)


def test_a_job_arriving_between_two_searches_waits_for_the_next() -> None:
    jobs = [Job(600.0, 4, 4), Job(100.0, 4, 4, submitted_at=20.0)]
    outcome = run(jobs, policy="lyra_pollux", slot_seconds=10.0)
    assert outcome.jobs.started_at.tolist() == [0.0, 60.0]
    assert completion_seconds(outcome) == pytest.approx([600.0, 140.0])


def test_a_job_of_several_servers_starts_on_all_at_once() -> None:
    outcome = run([Job(100.0, 3, 3, gpus_per_worker=8)], policy="lyra_pollux", servers=4, slot_seconds=30.0)
    assert completion_seconds(outcome) == pytest.approx([100.0])


def test_an_unchanged_cluster_is_searched_at_growing_intervals() -> None:
    question = snapshot(4, asking("steady", 4, work=1e6), settings=HALF_A_MINUTE)
    waits = []
    for _ in range(10):
        decision, question = go_on("lyra_pollux", question, 0.0)
        waits.append(decision.next_wake_at - question.now)
        question = at(question, decision.next_wake_at)
    assert waits == [60.0, 120.0, 240.0, 480.0, 960.0, 1_920.0, 3_600.0, 3_600.0, 3_600.0, 3_600.0]


def test_a_newcomer_starts_a_new_search_at_once() -> None:
    question = snapshot(4, asking("steady", 4, work=1e6), settings=HALF_A_MINUTE)
    for _ in range(6):
        decision, question = go_on("lyra_pollux", question, 0.0)
        question = at(question, decision.next_wake_at)
    decision, question = go_on("lyra_pollux", question, 100.0, asking("new", 1, work=1e6))
    assert sizes_of(replanned("lyra_pollux", question)) == {"steady": 2, "new": 2}


def test_the_same_question_has_the_same_answer_and_the_same_memory() -> None:
    question = snapshot((4, 4), *(asking(f"job-{number}", 2) for number in range(5)), settings=HALF_A_MINUTE)
    first, second = replanned("lyra_pollux", question), replanned("lyra_pollux", question)
    assert (first.placements, first.memory, first.job_memory) == (
        second.placements,
        second.memory,
        second.job_memory,
    )


def test_without_jobs_nothing_is_searched() -> None:
    assert replanned("lyra_pollux", snapshot(4)).next_wake_at == inf


def test_stopped_job_pays_half_a_minute_to_resume() -> None:
    question = snapshot(1, asking("long", 1, work=1e6), settings=HALF_A_MINUTE)
    decision, question = go_on("lyra_pollux", question, 60.0)
    assert [change.pause_seconds for change in decision.changes] == [0.0], "a first start has no pause"
    stopped = replace(question.jobs[0], gpus_now=0, placement=())
    decision = replanned("lyra_pollux", replace(question, jobs=(stopped,)))
    assert [(change.kind, change.pause_seconds) for change in decision.changes] == [(ChangeKind.START, 30.0)]
