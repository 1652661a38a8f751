"""Tiresias: queues by attained GPU time, all or nothing, preemptive (V24)."""

from __future__ import annotations

import pytest

from simulation.baselines.against_elasticflow.tiresias import seconds_until_demotion
from tests.core.building import sizes, snapshot
from tests.policies.asking import asking, given, go_on, replanned, slots

FIRST_QUEUE, SECOND_QUEUE = (3250, 1625, 813, 407, 204), (7200, 3600, 1800, 900, 450)


@pytest.mark.parametrize(
    ("gpus", "first", "second"), list(zip((1, 2, 4, 8, 16), FIRST_QUEUE, SECOND_QUEUE, strict=True))
)
def test_v24_seconds_of_running_until_a_job_leaves_its_queue(gpus, first, second):
    assert seconds_until_demotion(0.0, gpus) == first
    assert first + seconds_until_demotion(first * gpus, gpus) == pytest.approx(second, abs=1.0)
    assert seconds_until_demotion(7200.0, gpus) == float("inf")


def test_job_runs_on_exactly_the_requested_gpus_or_waits():
    assert given("tiresias", 4, asking("a", 2), asking("b", 4), asking("c", 1)) == {"a": 2, "b": 0, "c": 1}


def test_a_demoted_job_yields_to_one_that_has_used_less():
    old = asking("old", 2, work=1e6)
    running, asked = go_on("tiresias", snapshot(2, old, settings=slots(60.0)), 1625.0, asking("new", 2))
    assert sizes(running) == {"old": 2}
    assert running.next_wake_at == 1625.0
    assert sizes(replanned("tiresias", asked)) == {"old": 0, "new": 2}


def test_job_does_not_yield_before_its_demotion():
    old = asking("old", 2, work=1e6)
    _, asked = go_on("tiresias", snapshot(2, old, settings=slots(60.0)), 1560.0, asking("new", 2))
    assert sizes(replanned("tiresias", asked)) == {"old": 2, "new": 0}


def test_within_a_queue_running_jobs_go_before_waiting_ones():
    wide, narrow = asking("wide", 2, submitted_at=1.0), asking("narrow", 1, submitted_at=0.0)
    _, asked = go_on("tiresias", snapshot(2, wide, settings=slots(60.0)), 60.0, narrow)
    assert sizes(replanned("tiresias", asked)) == {"wide": 2, "narrow": 0}


def test_a_job_that_was_demoted_goes_behind_those_demoted_earlier():
    first = asking("first", 1, attained_gpu_seconds=3250.0, memory=(0.0, 1.0), newcomer=False)
    second = asking("second", 1, attained_gpu_seconds=4000.0, memory=(1.0, 2.0), newcomer=False)
    assert given("tiresias", 1, first, second) == {"first": 0, "second": 1}


def test_a_demotion_wakes_no_earlier_than_a_slot_later():
    soon = asking("soon", 1, attained_gpu_seconds=3245.0, newcomer=False, memory=(0.0, 1.0))
    assert replanned("tiresias", snapshot(1, soon, settings=slots(60.0))).next_wake_at == 60.0
