"""Worked examples of elastic allocation and best effort: V10, V12, V14, V15, V23."""

from __future__ import annotations

import pytest

from scheduling.core.decide import admit, replan
from tests.core.building import C5, after, gpu_time, job, per_slot, sizes, snapshot, verdicts

P = {1: 1.0, 2: 1.9, 4: 3.4}
Q = {1: 1.0, 2: 1.2, 4: 1.3}


def test_v10_a_whole_life_cycle():
    a, b, c = job("A", 4, 4), job("B", 3, 4, submitted_at=1.0), job("C", 6, 4, submitted_at=1.0)
    assert per_slot(admit(snapshot(4, a)).plans["A"], 4) == [1, 1, 1, 1]

    start = replan(snapshot(4, a))
    assert sizes(start) == {"A": 4}

    a = after(a, start, remaining=2)
    tested = admit(snapshot(4, a, b, c, now=1.0))
    assert verdicts(tested) == {"B": True, "C": False}
    second = replan(snapshot(4, a, b, c, now=1.0))
    assert verdicts(second) == {"B": True, "C": False}
    assert sizes(second) == {"A": 2, "B": 2}

    third = replan(snapshot(4, after(a, second, remaining=0.5), after(b, second, remaining=1.5), now=2.0))
    assert sizes(third) == {"A": 2, "B": 2}
    assert third.plans["A"].finish_at == pytest.approx(2 + 1 / 3)
    assert third.plans["B"].finish_at == pytest.approx(3.0)


@pytest.mark.parametrize(("gpus", "expected"), [(4, {"P": 2, "Q": 2}), (8, {"P": 4, "Q": 4})])
def test_v12_leftover_gpus_go_where_they_save_most_gpu_time(gpus, expected):
    decision = replan(snapshot(gpus, job("P", 6, 8, P), job("Q", 6, 8, Q)))
    assert sizes(decision) == expected


def test_v14_best_effort_gets_what_promises_leave():
    slo, best_effort = {1: 1.0, 2: 2.0, 4: 3.0}, {1: 1.0, 2: 1.8, 4: 3.0}
    beside = replan(snapshot(4, job("S", 6, 3, slo), job("B", 10, measured=best_effort)))
    assert sizes(beside) == {"S": 2, "B": 2}

    waiting = replan(snapshot(4, job("S", 9, 3, slo), job("B", 10, measured=best_effort)))
    assert sizes(waiting) == {"S": 4, "B": 0}
    assert per_slot(waiting.plans["B"], 5) == [0, 0, 0, 1, 1]
    assert waiting.plans["B"].finish_at == pytest.approx(13.0)


def test_v15_a_grant_that_ends_later_but_runs_faster_is_made():
    share = admit(snapshot(4, job("A", 5, 4, C5))).plans["A"]
    assert per_slot(share, 4) == [2, 2, 2, 2]
    assert share.finish_at == pytest.approx(10 / 3)
    assert gpu_time(share) == pytest.approx(20 / 3)

    assert sizes(replan(snapshot(4, job("A", 5, 4, C5)))) == {"A": 4}


def test_best_effort_jobs_wait_shortest_first():
    decision = replan(snapshot(1, job("long", 9, measured={1: 1.0}), job("short", 2, measured={1: 1.0})))
    assert sizes(decision) == {"long": 0, "short": 1}
    assert decision.plans["long"].finish_at == pytest.approx(11.0)


def test_a_tight_newcomer_suspends_best_effort_work():
    first = replan(snapshot(4, job("B", 100)))
    assert sizes(first) == {"B": 4}
    running = after(job("B", 100), first, remaining=98)
    decision = replan(snapshot(4, running, job("S", 4, 3, submitted_at=1.0), now=1.0))
    assert verdicts(decision) == {"S": True}
    assert sizes(decision) == {"B": 0, "S": 4}
    assert [change.kind.value for change in decision.changes] == ["suspend", "start"]
