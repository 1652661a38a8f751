"""Servers with a known end: no job is on them at their end, and no promise depends on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.question.snapshot import PlannerSettings, ServerSnapshot
from scheduling.core.question.validation import check_snapshot
from simulation.policies import policy_named
from tests.core.building import job, snapshot, verdicts
from tests.core.executing import EXACT, Cluster
from tests.core.workloads import random_workload

PUNCTUAL = policy_named("punctual")
SLOTS = PlannerSettings(slot_seconds=1.0)
LINEAR = {1: 1.0, 2: 2.0, 4: 4.0}
seeds = st.integers(min_value=0, max_value=2**32 - 1)


@dataclass
class Ending(Cluster):
    """An executor that checks servers with a known end."""

    def _advance_to(self, at: float) -> None:
        for number, server in enumerate(self.servers):
            if at > server.ends_at + EXACT and self.now < at:
                first = sum(other.gpus for other in self.servers[:number])
                addresses = set(range(first, first + server.gpus))
                late = [
                    name for name, running in self.jobs.items() if addresses & set(running.facts.placement)
                ]
                assert not late, f"{late} are on {server.id} after its end"
        super()._advance_to(at)

    def _check_plans(self, gpus: int) -> None:
        """Check that servers without an end can hold all promised plans."""
        lasting = sum(server.gpus for server in self.servers if server.ends_at == inf)
        plans = [running.facts.stored_plan for name, running in self.jobs.items() if name in self.promised]
        for at in sorted({float(start) for plan in plans if plan for start in plan.start}):
            middle = at + EXACT
            held = sum(
                int(plan.gpus[(plan.start <= middle) & (middle < plan.end)].sum()) for plan in plans if plan
            )
            assert held <= lasting or at < self.now, f"{held} GPUs promised at {at}, {lasting} last"


def executed(seed: int, *, best_effort: float) -> Ending:
    """Run a random workload on a crowded cluster with one or two more servers that end while work runs."""
    rng = Random(seed)
    workload = random_workload(seed, most_jobs=12, best_effort=best_effort)
    slot = workload.settings.slot_seconds
    ending = tuple(
        ServerSnapshot(f"ending{number}", rng.choice([1, 2, 4]), ends_at=slot * rng.uniform(0.0, 12.0))
        for number in range(rng.randint(1, 2))
    )
    # The order of the servers must not matter.
    servers = (*ending, *workload.servers) if rng.random() < 0.5 else (*workload.servers, *ending)
    cluster = Ending(servers, workload.settings, policy=PUNCTUAL)
    cluster.run(workload.jobs)
    return cluster


@given(seed=seeds, best_effort=st.sampled_from([0.1, 0.5]))
def test_no_job_outlasts_its_server_and_no_promise_breaks(seed: int, best_effort: float):
    cluster = executed(seed, best_effort=best_effort)
    assert cluster.late() == {}
    assert cluster.at_risk == set()


def test_work_without_a_promise_uses_a_server_until_its_end():
    cluster = Ending(
        (ServerSnapshot("lasting", 1), ServerSnapshot("ending", 4, ends_at=20.0)), SLOTS, policy=PUNCTUAL
    )
    cluster.run([job("first", 200.0, measured=LINEAR), job("second", 200.0, measured=LINEAR)], until=10.0)
    assert sum(running.facts.gpus_now for running in cluster.jobs.values()) == 5
    cluster.run([], until=20.5)
    assert sum(running.facts.gpus_now for running in cluster.jobs.values()) == 1, (
        "only the lasting server's GPU remains"
    )


def with_end(ends_at: float, *jobs, **facts):
    question = snapshot((4, 4), *jobs, **facts)
    return replace(question, servers=(question.servers[0], replace(question.servers[1], ends_at=ends_at)))


@pytest.mark.parametrize("ends_at", [5.0, 1_000.0])
def test_no_promise_depends_on_a_server_that_ends(ends_at: float):
    """Each job needs four GPUs until its deadline; only four have no end."""
    two = [job("first", 40.0, 10.5, LINEAR), job("second", 40.0, 10.5, LINEAR)]
    assert verdicts(PUNCTUAL.replan(snapshot((4, 4), *two))) == {"first": True, "second": True}
    assert verdicts(PUNCTUAL.replan(with_end(ends_at, *two))) == {"first": True, "second": False}


def test_a_promised_job_leaves_a_server_whose_end_becomes_known():
    cluster = Ending((ServerSnapshot("one", 4), ServerSnapshot("other", 4)), SLOTS, policy=PUNCTUAL)
    cluster.run(
        [job("first", 40.0, 30.0, LINEAR, pause=0.5), job("second", 40.0, 30.0, LINEAR, pause=0.5)],
        until=2.5,
    )
    assert all(running.facts.gpus_now == 4 for running in cluster.jobs.values())
    cluster.servers = (replace(cluster.servers[0], ends_at=50.0), cluster.servers[1])
    cluster.dirty = True
    cluster.run([], until=4.5)
    for running in cluster.jobs.values():
        lasting = [address for address in running.facts.placement if address >= 4]
        assert lasting or not running.facts.placement, "the job is on the lasting server, or waits"
    cluster.run([])
    assert cluster.late() == {}
    assert cluster.at_risk == set()


def test_next_wake_is_before_the_end_of_a_server():
    question = with_end(7.3, job("lone", 100.0, measured={1: 1.0}))
    assert PUNCTUAL.replan(question).next_wake_at <= 6.3 + 1e-9
    assert PUNCTUAL.admit(question).next_wake_at <= 6.3 + 1e-9


def test_an_end_that_is_no_moment_is_refused():
    with pytest.raises(ValueError, match="ends_at"):
        check_snapshot(with_end(float("nan")))
