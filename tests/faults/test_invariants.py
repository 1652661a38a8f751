"""Which events the invariants count as violations."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults import invariants
from faults.coverage import Charge
from faults.injecting import Deed
from faults.invariants import Step
from faults.schedule import Fault, Kind, Part, Target
from tests.faults.run import Judged, ended_by_themselves, faults_in_the_life_of, judged_promises
from tests.faults.works import works

BEFORE = datetime(2026, 1, 1, tzinfo=UTC)


def steps(
    job: str, generation: int, times: list[float], *, rank: int = 0, gpu: str = "a GPU 0"
) -> list[Step]:
    return [Step(job, generation, rank, gpu, number, at) for number, at in enumerate(times, start=1)]


def test_successive_generations_are_no_violation():
    assert invariants.trained_twice(steps("j", 1, [1, 2, 3]) + steps("j", 2, [4, 5])) == []


def test_a_step_of_an_old_generation_beside_its_successor_is_found():
    (found,) = invariants.trained_twice(steps("j", 1, [1, 2, 4.5]) + steps("j", 2, [4, 5], gpu="b GPU 0"))
    assert "generation 1 began iteration 3 0.50 s after generation 2" in found.what


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=6), st.lists(st.floats(0, 100), min_size=1, max_size=6)
)
def test_training_twice_is_two_generations_whose_spans_overlap(first, second):
    violations = invariants.trained_twice(steps("j", 1, first) + steps("j", 2, second))
    assert bool(violations) == (max(first) > min(second))


def test_a_gpu_may_change_jobs_but_not_serve_two_at_once():
    one, other = steps("j", 1, [1, 2, 3]), steps("k", 1, [3.5, 4])
    assert invariants.gpus_used_by_two(one + other) == []
    (found,) = invariants.gpus_used_by_two([*one, *(replace(step, at=step.at - 1.0) for step in other)])
    assert "a GPU 0" in found.what
    elsewhere = [replace(step, at=step.at - 1.0, gpu="b GPU 0") for step in other]
    assert invariants.gpus_used_by_two(one + elsewhere) == []


def test_two_generations_of_one_job_may_follow_each_other_on_a_gpu():
    assert invariants.gpus_used_by_two(steps("j", 1, [1, 2]) + steps("j", 2, [3, 4])) == []


def test_steps_are_parsed_from_logs_of_training_generations_only():
    lines = [("j", 1, 0, "hello\nSTEP 1 10.5\nSTEP 2 11.0\nSTEP"), ("j", 2, 0, "STEP 1 12.0\n")]
    assert invariants.steps_of(lines, {("j", 1, 0): "a GPU 0"}) == [
        Step("j", 1, 0, "a GPU 0", 1, 10.5),
        Step("j", 1, 0, "a GPU 0", 2, 11.0),
    ]


def start(**changed: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "from": "checkpoint", "generation": 1, "iteration": 50, "world_size": 2,
        "shards": [{"id": 0, "holders": [{}]}, {"id": 1, "holders": [{}]}],
    }  # fmt: skip
    return {"job": "j", "number": 2, "live_at": BEFORE + timedelta(seconds=9), "start": given | changed}


POINT = {
    "job": "j", "generation": 1, "iteration": 50, "world_size": 2, "shards": 2, "complete_at": BEFORE,
}  # fmt: skip


def test_a_start_from_a_complete_point_is_no_violation():
    assert invariants.incomplete_starts([start()], [POINT]) == []
    nothing = {"job": "j", "number": 1, "live_at": BEFORE, "start": {"from": "nothing"}}
    assert invariants.incomplete_starts([nothing], []) == []


@pytest.mark.parametrize(
    ("given", "point"),
    [
        (start(), POINT | {"complete_at": None}),
        (start(), POINT | {"shards": 1}),
        (start(), POINT | {"iteration": 60}),
        (start(), POINT | {"complete_at": BEFORE + timedelta(seconds=20)}),
        (start(shards=[{"id": 0, "holders": [{}]}]), POINT),
        (start(shards=[{"id": 0, "holders": [{}]}, {"id": 1, "holders": []}]), POINT),
        (start(**{"from": "memory", "shards": [{"id": 1, "holders": [{}]}]}), POINT),
    ],
)
def test_a_start_from_an_incomplete_point_is_a_violation(given, point):
    assert invariants.incomplete_starts([given], [point])


def job(**changed: Any) -> dict[str, Any]:
    row = {
        "id": "j", "name": "work", "state": "completed", "iterations_done": 50, "max_iterations": 50,
        "failure": None, "function": 1, "seed": 0, "global_batch_size": 16, "sample_order_digest": "d",
        "promise_outcome": "met", "void_reason": "", "submitted_at": BEFORE,
        "finished_at": BEFORE + timedelta(seconds=30), "deadline_at": BEFORE + timedelta(seconds=50),
    }  # fmt: skip
    return row | changed


@pytest.mark.parametrize(("state", "lost"), [
    ("completed", False), ("declined", False), ("failed", True), ("running", True), ("submitted", True),
])  # fmt: skip
def test_jobs_in_unexpected_states_are_lost(state, lost):
    assert bool(invariants.lost_jobs([job(state=state)])) == lost


@pytest.mark.parametrize(("silent_seconds", "too_early"), [(7.2, True), (19.9, True), (21.3, False)])
def test_a_server_is_given_up_after_its_lease_alone(silent_seconds, too_early):
    silence = {"server": "node-1", "silent_seconds": silent_seconds, "lease_seconds": 20.0}
    assert bool(invariants.given_up_within_a_lease([silence])) == too_early


def test_jobs_of_one_seed_take_the_same_samples():
    other = job(id="k", sample_order_digest="e")
    assert invariants.different_orders([job(), job(id="k")]) == []
    assert invariants.different_orders([job(), other | {"seed": 1}]) == []
    assert invariants.different_orders([job(), other])


def test_agents_remember_no_more_than_was_commanded():
    memory = {"epoch": 3, "generations": [["j", "training", 4, 3, []]]}
    assert invariants.commands_from_nowhere({"a": memory}, 3, {"j": 4}) == []
    assert invariants.commands_from_nowhere({"a": memory}, 2, {"j": 4})
    assert invariants.commands_from_nowhere({"a": memory}, 3, {"j": 3})


def deed(begun: float, ended: float | None, part: Part = Part.WORKER, server: str = "node-1") -> Deed:
    fault = Fault(begun, Kind.KILL, Target(part, "any", server))
    end = None if ended is None else BEFORE + timedelta(seconds=ended)
    return Deed(fault, BEFORE + timedelta(seconds=begun), end, "")


def test_only_faults_in_the_life_of_a_job_count_for_its_promise():
    deeds = [deed(-9, -5), deed(-9, 5), deed(10, 10), deed(40, 41), Deed(deed(3, 3).fault, None, None, "")]
    assert faults_in_the_life_of(job(), deeds) == [deeds[1].fault, deeds[2].fault]


def test_a_promise_broken_within_the_reserve_is_a_violation():
    missed = job(promise_outcome="missed")
    assert judged_promises([missed], [], 0).broken
    assert judged_promises([missed], [deed(5, 5)], 1).broken
    beyond = judged_promises([missed], [deed(5, 5), deed(6, 6), deed(7, 7)], 1)
    assert (beyond.broken, beyond.beyond, beyond.covered, beyond.left_seconds) == ([], 1, 0, None)
    assert judged_promises([missed], [deed(5, 5)], 0) == Judged([], 1, 0, None)
    given_back = job(promise_outcome="void", void_reason="cancelled")
    assert judged_promises([job(), given_back], [], 1) == Judged([], 0, 2, 20.0)


def test_the_least_time_left_to_a_covered_job_is_reported():
    late = job(id="k", promise_outcome="missed", finished_at=BEFORE + timedelta(seconds=52))
    assert judged_promises([job(), late], [], 1).left_seconds == -2.0


def test_restarts_beyond_the_number_of_kills_are_violations():
    deeds = [Deed(Fault(1.0, Kind.KILL, Target(Part.WEB, "web")), BEFORE, None, "")]
    deeds.append(Deed(Fault(2.0, Kind.KILL, Target(Part.BEAT, "beat")), None, None, "there is none just now"))
    assert ended_by_themselves({"web": 3}, {"web": 4, "beat": 0}, deeds) == []
    assert len(ended_by_themselves({"web": 3}, {"web": 5, "beat": 1}, deeds)) == 2


def test_a_seed_fixes_the_jobs_too():
    assert works(7, 30.0) == works(7, 30.0) != works(8, 30.0)


def test_a_charge_is_the_sum_of_what_one_failure_costs():
    assert Charge(21.0, 5.0, 12.0).seconds == 38.0
