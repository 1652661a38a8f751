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


def needing(needy: JobSnapshot, *gib: float) -> JobSnapshot:
    """Return the job with this many GiB of host memory per worker, by level."""
    return replace(needy, curve=replace(needy.curve, memory_bytes=np.array(gib) * GIB))


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
        for node in self.servers:
            on_node = set(range(first, first + node.gpus))
            first += node.gpus
            used = sum(
                self._need(name) * len(on_node & set(addresses))
                for name, addresses in decision.placements.items()
            )
            assert used <= node.memory_bytes * (1 + 1e-9), f"{node.id} is overcommitted"

    def _need(self, name: str) -> float:
        facts = self.jobs[name].facts
        needs = facts.curve.memory_bytes
        if needs is None or not facts.gpus_now:
            return 0.0
        return float(needs[int(np.searchsorted(facts.curve.levels, facts.gpus_now))])


def with_memory(workload, rng: Random):
    """Return the workload with random host memory on its servers and needs of its workers, which fall with
    the number of GPUs."""
    servers = tuple(
        replace(item, memory_bytes=item.gpus * rng.uniform(1.0, 4.0)) for item in workload.servers
    )
    jobs = []
    for item in workload.jobs:
        needs = rng.uniform(0.2, 5.0) / np.sqrt(item.curve.levels) * (rng.random() < 0.8)
        jobs.append(replace(item, curve=replace(item.curve, memory_bytes=needs)))
    return replace(workload, servers=servers, jobs=tuple(jobs))


@given(seed=seeds, policy=st.sampled_from(["punctual", "elasticflow"]))
def test_no_server_is_overcommitted_and_no_promise_breaks(seed: int, policy: str):
    """During the run a server joins that may have less memory per GPU than plans assume."""
    rng = Random(seed)
    workload = with_memory(random_workload(seed, most_jobs=12), rng)
    cluster = Watched(workload.servers, workload.settings, policy=policy_named(policy))
    joins_at = workload.settings.slot_seconds * rng.randint(1, 6)
    cluster.run(workload.jobs, until=joins_at)
    later = ServerSnapshot("later", rng.choice([1, 2, 4]), memory_bytes=rng.uniform(0.3, 12.0))
    cluster.servers = (*cluster.servers, later)
    cluster.dirty = True
    cluster.run([arrival for arrival in workload.jobs if arrival.submitted_at >= joins_at])
    assert cluster.late() == {}
    assert cluster.at_risk == set()


def test_gpu_count_that_needs_too_much_host_memory_is_no_level():
    """Each GPU has 2 GiB: a worker on one GPU needs 3 GiB, on two GPUs 2 GiB each."""
    two = asking((server("node", 4, 8.0),), needing(job("large", 10.0, measured=LINEAR), 3.0, 2.0, 1.0))
    plan = PUNCTUAL.replan(two).plans["large"]
    assert set(plan.gpus.tolist()) <= {0, 2, 4}
    assert sizes(PUNCTUAL.replan(two))["large"] == 4


def test_a_job_that_fits_nowhere_is_declined_with_the_figure():
    question = asking((server("node", 4, 8.0),), needing(job("huge", 10.0, 100.0, LINEAR), 9.0, 5.0, 2.5))
    (verdict,) = PUNCTUAL.replan(question).verdicts
    assert not verdict.admitted
    assert verdict.reason_code == "no_levels"
    assert "2.5 GiB of host memory" in verdict.reason


def test_a_job_of_unknown_memory_has_a_share():
    question = asking((server("node", 4, 8.0),), job("new", 10.0, 100.0, LINEAR))
    assert verdicts(PUNCTUAL.replan(question)) == {"new": True}


def test_the_smallest_share_is_what_all_servers_guarantee():
    """A job that starts on the large server may be moved to the small one."""
    both = (server("large", 4, 64.0), server("small", 4, 8.0))
    question = asking(both, needing(job("one", 10.0, 100.0, LINEAR), 4.0, 4.0, 4.0))
    assert guaranteed_share(question) == 2.0 * GIB
    assert verdicts(PUNCTUAL.replan(question)) == {"one": False}
    least = replace(question, settings=replace(SLOTS, worker_memory_bytes=4.0 * GIB))
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
    held = [address for running in cluster.jobs.values() for address in running.facts.placement]
    assert held
    assert max(held) < 4, "no job is on the second server beside the promise"
    cluster.run([], until=25.0)
    assert cluster.late() == {}
    assert max(cluster.jobs["small"].facts.placement) >= 4, "it is used once the promise is kept"


def test_memory_is_recorded_with_a_snapshot():
    recorded = asking((server("node", 4, 8.0),), needing(job("one", 10.0, 100.0, LINEAR), 1.0, 1.0, 1.0))
    again = unpack_snapshot(pack_snapshot(recorded))
    assert again.servers == recorded.servers
    packed, unpacked = recorded.jobs[0].curve.memory_bytes, again.jobs[0].curve.memory_bytes
    assert packed is not None
    assert unpacked is not None
    assert np.array_equal(unpacked, packed)
    assert unpack_snapshot(pack_snapshot(replace(recorded, servers=()))).servers == ()


@pytest.mark.parametrize("bad", [-1.0, inf, float("nan")])
def test_memory_that_is_no_number_of_bytes_is_refused(bad: float):
    with pytest.raises(ValueError, match="host memory"):
        check_snapshot(
            asking((server("node", 4, 8.0),), needing(job("one", 1.0, measured=LINEAR), bad, 1, 1))
        )
