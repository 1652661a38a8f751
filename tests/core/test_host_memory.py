"""Host memory: no placement overcommits a server, and a worker's guaranteed share holds on every server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.question.host_memory import guaranteed_share
from scheduling.core.question.recording import pack_snapshot, unpack_snapshot
from scheduling.core.question.snapshot import JobSnapshot, PlannerSettings, ServerSnapshot, Snapshot
from scheduling.core.question.validation import check_snapshot
from simulation.policies import policy_named
from tests.core.building import job, sizes, verdicts
from tests.core.executing import Cluster
from tests.core.workloads import random_workload

GIB = 1024.0**3
PUNCTUAL = policy_named("punctual")
SLOTS = PlannerSettings(slot_seconds=1.0)
LINEAR = {1: 1.0, 2: 2.0, 4: 4.0}
seeds = st.integers(min_value=0, max_value=2**32 - 1)


def needing(asked: JobSnapshot, *gib: float) -> JobSnapshot:
    """The job with so much memory for each worker, by level."""
    return replace(asked, curve=replace(asked.curve, memory_bytes=np.array(gib) * GIB))


def server(name: str, gpus: int, gib: float, **facts) -> ServerSnapshot:
    return ServerSnapshot(name, gpus, memory_bytes=gib * GIB, **facts)


def asking(servers: tuple[ServerSnapshot, ...], *jobs: JobSnapshot, **facts) -> Snapshot:
    return Snapshot(now=0.0, next_slot_at=0.0, servers=servers, jobs=jobs, settings=SLOTS, **facts)


@dataclass
class Watched(Cluster):
    """An executor that adds up, at every change, the memory of the workers on each server."""

    def _check_allocation(self, decision) -> None:
        super()._check_allocation(decision)
        first = 0
        for each in self.servers:
            there = set(range(first, first + each.gpus))
            first += each.gpus
            taken = sum(
                self._need(name) * len(there & set(addresses))
                for name, addresses in decision.placements.items()
            )
            assert taken <= each.memory_bytes * (1 + 1e-9), f"{each.id} is overcommitted"

    def _need(self, name: str) -> float:
        facts = self.jobs[name].facts
        needs = facts.curve.memory_bytes
        if needs is None or not facts.gpus_now:
            return 0.0
        return float(needs[int(np.searchsorted(facts.curve.levels, facts.gpus_now))])


def with_memory(workload, rng: Random):
    """The same workload with host memory on its servers and needs of its jobs, smaller on more GPUs."""
    servers = tuple(
        replace(each, memory_bytes=each.gpus * rng.uniform(1.0, 4.0)) for each in workload.servers
    )
    jobs = []
    for each in workload.jobs:
        needs = rng.uniform(0.2, 5.0) / np.sqrt(each.curve.levels) * (rng.random() < 0.8)
        jobs.append(replace(each, curve=replace(each.curve, memory_bytes=needs)))
    return replace(workload, servers=servers, jobs=tuple(jobs))


@given(seed=seeds, policy=st.sampled_from(["punctual", "elasticflow"]))
def test_no_server_is_ever_overcommitted_and_no_promise_breaks_by_it(seed: int, policy: str):
    """Half-way a server joins that may have less memory per GPU than plans assume."""
    rng = Random(seed)
    workload = with_memory(random_workload(seed, most_jobs=12), rng)
    cluster = Watched(workload.servers, workload.settings, policy=policy_named(policy))
    joins_at = workload.settings.slot_seconds * rng.randint(1, 6)
    cluster.run(workload.jobs, until=joins_at)
    later = ServerSnapshot("later", rng.choice([1, 2, 4]), memory_bytes=rng.uniform(0.3, 12.0))
    cluster.servers = (*cluster.servers, later)
    cluster.dirty = True
    cluster.run([each for each in workload.jobs if each.submitted_at >= joins_at])
    assert cluster.late() == {}
    assert cluster.at_risk == set()


def test_gpu_count_that_needs_too_much_host_memory_is_no_level():
    """Each GPU has 2 GiB: a worker on one GPU needs 3 GiB, on two GPUs 2 GiB each."""
    two = asking((server("node", 4, 8.0),), needing(job("large", 10.0, measured=LINEAR), 3.0, 2.0, 1.0))
    plan = PUNCTUAL.replan(two).plans["large"]
    assert set(plan.gpus.tolist()) <= {0, 2, 4}
    assert sizes(PUNCTUAL.replan(two))["large"] == 4


def test_a_job_that_fits_nowhere_is_declined_with_the_figure():
    asked = asking((server("node", 4, 8.0),), needing(job("huge", 10.0, 100.0, LINEAR), 9.0, 5.0, 2.5))
    (verdict,) = PUNCTUAL.replan(asked).verdicts
    assert not verdict.admitted
    assert verdict.reason_code == "no_levels"
    assert "2.5 GiB of host memory" in verdict.reason


def test_a_job_of_unknown_memory_has_a_share():
    asked = asking((server("node", 4, 8.0),), job("new", 10.0, 100.0, LINEAR))
    assert verdicts(PUNCTUAL.replan(asked)) == {"new": True}


def test_the_smallest_share_is_what_all_servers_guarantee():
    """A job that starts on the large server may be moved to the small one."""
    both = (server("large", 4, 64.0), server("small", 4, 8.0))
    asked = asking(both, needing(job("one", 10.0, 100.0, LINEAR), 4.0, 4.0, 4.0))
    assert guaranteed_share(asked) == 2.0 * GIB
    assert verdicts(PUNCTUAL.replan(asked)) == {"one": False}
    least = replace(asked, settings=replace(SLOTS, worker_memory_bytes=4.0 * GIB))
    decision = PUNCTUAL.replan(least)
    assert verdicts(decision) == {"one": True}
    assert set(decision.placements["one"]) <= {0, 1, 2, 3}, "the small server is left out"


def test_server_below_assumed_memory_is_unused_until_plans_end():
    cluster = Watched((server("first", 4, 16.0),), SLOTS, policy=PUNCTUAL)
    large = needing(job("large", 40.0, 30.0, LINEAR), 4.0, 4.0, 4.0)
    small = needing(job("small", 200.0, measured={**LINEAR, 8: 8.0}, submitted_at=0.5), 0.5, 0.5, 0.5, 0.5)
    cluster.run([large, small], until=2.0)
    cluster.servers = (*cluster.servers, server("second", 4, 4.0))
    cluster.dirty = True
    cluster.run([], until=4.0)
    held = [address for one in cluster.jobs.values() for address in one.facts.placement]
    assert held
    assert max(held) < 4, "nobody is on the second server beside the promise"
    cluster.run([], until=25.0)
    assert cluster.late() == {}
    assert max(cluster.jobs["small"].facts.placement) >= 4, "it is used once the promise is kept"


def test_memory_is_recorded_with_a_snapshot():
    asked = asking((server("node", 4, 8.0),), needing(job("one", 10.0, 100.0, LINEAR), 1.0, 1.0, 1.0))
    again = unpack_snapshot(pack_snapshot(asked))
    assert again.servers == asked.servers
    packed, unpacked = asked.jobs[0].curve.memory_bytes, again.jobs[0].curve.memory_bytes
    assert packed is not None
    assert unpacked is not None
    assert np.array_equal(unpacked, packed)
    assert unpack_snapshot(pack_snapshot(replace(asked, servers=()))).servers == ()


@pytest.mark.parametrize("bad", [-1.0, inf, float("nan")])
def test_memory_that_is_no_number_of_bytes_is_refused(bad: float):
    with pytest.raises(ValueError, match="host memory"):
        check_snapshot(
            asking((server("node", 4, 8.0),), needing(job("one", 1.0, measured=LINEAR), bad, 1, 1))
        )
