"""The arrays of a decision are freed with it, so that the next decision reuses the memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from weakref import ref

import pytest

from simulation.policies import policy_named
from tests.core.building import job, snapshot


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("policy", ["elasticflow", "punctual"])
def test_a_decision_is_freed_at_once(policy: str) -> None:
    jobs = (
        job("A", 6, 8.0),
        job("B", 4, 9.0),
        job("C", 40, 2.0),
        job("D", 3),
    )
    problem = policy_named(policy).problem_of(snapshot(4, *jobs))
    for question in (policy_named(policy).decide_newcomers, policy_named(policy).reallocate):
        answer = question(problem)
        assert answer.verdicts
        del answer
    freed = ref(problem)
    del problem
    assert freed() is None, "something of the decision points to itself, so its arrays are kept"
