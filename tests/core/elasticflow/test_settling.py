"""Divisions that settle in one call are those of placement, changes and pause budget one after the other."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from scheduling.core.elasticflow.pause_budget import PauseBudget
from scheduling.core.elasticflow.settling import BROKEN, KEPT, LATE, Settled
from simulation.policies import policy_named
from tests.core.executing import Cluster, assert_same
from tests.core.workloads import random_workload
from tests.plugins.examples import examples


def run(seed: int, policy: str, pauses: bool) -> Cluster:
    workload = random_workload(seed, pauses=pauses, best_effort=0.1 * (seed % 3), most_jobs=14)
    cluster = Cluster(workload.servers, workload.settings, policy=policy_named(policy))
    cluster.run(workload.jobs)
    return cluster


@pytest.mark.parametrize(
    ("policy", "pauses"),
    [
        ("elasticflow", True),
        ("punctual", True),
        ("punctual", False),
        pytest.param("elasticflow", False, marks=pytest.mark.slow),
    ],
)
def test_divisions_settled_at_once_are_those_settled_step_by_step(
    policy: str, pauses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, verdicts = PauseBudget.settled_together, Counter[int]()

    def noted(budget: PauseBudget, *question: Any) -> Settled:
        settled = original(budget, *question)
        verdicts[settled.verdict] += 1
        return settled

    def undecided(budget: PauseBudget, *question: Any) -> Settled:
        return original(budget, *question)._replace(verdict=LATE)

    monkeypatch.setattr(PauseBudget, "settled_together", noted)
    at_once = [run(seed, policy, pauses) for seed in range(examples(0.4))]
    monkeypatch.setattr(PauseBudget, "settled_together", undecided)
    for seed, cluster in enumerate(at_once):
        one_by_one = run(seed, policy, pauses)
        assert cluster.completed_at == one_by_one.completed_at
        for decision, expected in zip(cluster.decisions, one_by_one.decisions, strict=True):
            assert_same(decision, expected)
    assert verdicts[KEPT] > 30
    assert verdicts[BROKEN] + verdicts[LATE] > 0 or not pauses
