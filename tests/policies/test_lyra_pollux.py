"""Pollux as Lyra's rival, in runs that can be worked out by hand and in single decisions."""

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


def at(asked: Snapshot, now: float) -> Snapshot:
    return replace(asked, now=now, next_slot_at=now)


def test_elastic_jobs_share_a_server_and_every_job_ends() -> None:
    jobs = [Job(100.0, 2, 8), Job(100.0, 2, 8), Job(50.0, 4, 4, submitted_at=40.0)]
    outcome = run(jobs, policy="lyra_pollux", slot_seconds=30.0)
    assert np.isfinite(outcome.jobs.completed_at).all()
    assert outcome.allocations.gpus[:2].tolist() == [4, 4]


def test_a_change_costs_half_a_minute() -> None:
    """Job 0 has the server, then half of it, then all again: two changes."""
    jobs = [Job(600.0, 2, 8), Job(100.0, 4, 4, submitted_at=60.0)]
    outcome = run(jobs, policy="lyra_pollux", slot_seconds=30.0)
    changes = int(outcome.jobs.rescales[0])
    assert changes >= 1
    assert outcome.jobs.pause_seconds[0] == pytest.approx(30.0 * changes)


def test_a_job_that_comes_between_two_searches_waits_for_the_next() -> None:
    jobs = [Job(600.0, 4, 4), Job(100.0, 4, 4, submitted_at=20.0)]
    outcome = run(jobs, policy="lyra_pollux", slot_seconds=10.0)
    assert outcome.jobs.started_at.tolist() == [0.0, 60.0]
    assert completion_seconds(outcome) == pytest.approx([600.0, 140.0])


def test_a_job_of_several_servers_starts_on_all_at_once() -> None:
    outcome = run([Job(100.0, 3, 3, gpus_per_worker=8)], policy="lyra_pollux", servers=4, slot_seconds=30.0)
    assert completion_seconds(outcome) == pytest.approx([100.0])


def test_a_cluster_at_rest_is_searched_less_and_less_often() -> None:
    asked = snapshot(4, asking("steady", 4, work=1e6), settings=HALF_A_MINUTE)
    waits = []
    for _ in range(10):
        decision, asked = go_on("lyra_pollux", asked, 0.0)
        waits.append(decision.next_wake_at - asked.now)
        asked = at(asked, decision.next_wake_at)
    assert waits == [60.0, 120.0, 240.0, 480.0, 960.0, 1_920.0, 3_600.0, 3_600.0, 3_600.0, 3_600.0]


def test_a_newcomer_ends_the_rest_of_the_search() -> None:
    asked = snapshot(4, asking("steady", 4, work=1e6), settings=HALF_A_MINUTE)
    for _ in range(6):
        decision, asked = go_on("lyra_pollux", asked, 0.0)
        asked = at(asked, decision.next_wake_at)
    decision, asked = go_on("lyra_pollux", asked, 100.0, asking("new", 1, work=1e6))
    assert sizes_of(replanned("lyra_pollux", asked)) == {"steady": 2, "new": 2}


def test_the_same_question_has_the_same_answer_and_the_same_memory() -> None:
    asked = snapshot((4, 4), *(asking(f"job-{number}", 2) for number in range(5)), settings=HALF_A_MINUTE)
    one, other = replanned("lyra_pollux", asked), replanned("lyra_pollux", asked)
    assert (one.placements, one.memory, one.job_memory) == (other.placements, other.memory, other.job_memory)


def test_without_jobs_nothing_is_searched() -> None:
    assert replanned("lyra_pollux", snapshot(4)).next_wake_at == inf


def test_stopped_job_pays_half_a_minute_to_resume() -> None:
    asked = snapshot(1, asking("long", 1, work=1e6), settings=HALF_A_MINUTE)
    decision, asked = go_on("lyra_pollux", asked, 60.0)
    assert [change.pause_seconds for change in decision.changes] == [0.0], "a first start is none"
    stopped = replace(asked.jobs[0], gpus_now=0, placement=())
    decision = replanned("lyra_pollux", replace(asked, jobs=(stopped,)))
    assert [(change.kind, change.pause_seconds) for change in decision.changes] == [(ChangeKind.START, 30.0)]
