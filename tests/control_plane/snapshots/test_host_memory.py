"""Host memory of workers is measured, reserved, raised on growth, and never overcommitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from cluster.models import Cluster, Server
from scheduling.choices import AssignmentState, JobState
from scheduling.models import Assignment, CurveLevel, Job, JobEvent
from scheduling.services.measuring.curves import refine_curves
from scheduling.services.memory.host_memory import memory_of_worker
from scheduling.services.snapshots.snapshots import pool_snapshot
from tests.control_plane.agent_api import metric
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import KIND, SimulatedAgent, settle

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]
GIB = 1024**3
#: What a worker takes on so many GPUs.
TAKES = {1: 6 * GIB, 2: 4 * GIB, 4: 3 * GIB}


@pytest.fixture
def curves_known() -> bool:
    return False


def server(name: str, gib: float, **facts: Any) -> SimulatedAgent:
    """Enrol a server with four GPUs and this much host memory."""
    agent = SimulatedAgent.enrol(name, 4, SPEED, inventory={"memory_bytes": int(gib * GIB), **facts})
    agent.memory = TAKES
    return agent


def test_worker_memory_is_measured_reserved_and_shown(cluster: Cluster, submit: Submit) -> None:
    node = server("node-1", 64)
    job = submit(seconds=600)
    settle(node)
    levels = {level.gpus: level for level in CurveLevel.objects.all()}
    assert {gpus: level.host_memory_bytes for gpus, level in levels.items()} == TAKES
    assert all(
        1.05 < level.reserved_memory_bytes / level.host_memory_bytes < 1.2 for level in levels.values()
    )
    client = APIClient()
    client.force_authenticate(job.owner)
    shown = client.get(f"/api/v1/jobs/{job.pk}/curve/").json()["levels"]
    assert [level["reserved_memory_bytes"] for level in shown] == [
        levels[gpus].reserved_memory_bytes for gpus in sorted(TAKES)
    ]
    told = JobEvent.objects.filter(job=job, kind="profiled").first()
    assert told is not None
    assert "6 GiB of host memory" in told.message
    client.force_login(job.owner)
    assert "reserved for each worker" in client.get(f"/jobs/{job.pk}/").content.decode()
    assert "of host memory for the workers here" in client.get("/servers/").content.decode()


def test_a_level_that_the_smallest_server_does_not_hold_is_none(cluster: Cluster, submit: Submit) -> None:
    """It is measured on the larger server; the other has five GiB per worker."""
    large = server("large", 64)
    settle(large)
    job = submit("best_effort", iterations=10**6)
    settle(large)
    small = server("small", 20)
    small.memory = TAKES
    others = [submit("best_effort", iterations=10**6) for _ in range(3)]
    settle(large, small)
    held = Assignment.objects.filter(state=AssignmentState.HELD).values_list("job", "gpu__server__name")
    by_job = {one.pk: sum(1 for job_id, _ in held if job_id == one.pk) for one in (job, *others)}
    assert sum(by_job.values()) == 8, "both servers are used"
    assert 1 not in by_job.values()


def test_a_job_that_no_server_can_hold_is_declined_with_the_figure(cluster: Cluster, submit: Submit) -> None:
    large = server("large", 64)
    settle(large)
    submit("best_effort", iterations=100)
    settle(large)
    Server.objects.update(memory_bytes=8 * GIB)
    job = submit(seconds=600)
    settle(large)
    job.refresh_from_db()
    assert job.verdict is not None
    assert (job.state, job.verdict["reason_code"]) == (JobState.DECLINED, "no_levels")
    assert "3.3 GiB of host memory" in job.verdict["reason"]


def test_servers_below_the_least_share_of_the_cluster_are_left_out(cluster: Cluster, submit: Submit) -> None:
    cluster.worker_memory_bytes = 8 * GIB
    cluster.save()
    large, small = server("large", 64), server("small", 20)
    job = submit("best_effort", iterations=10**6)
    settle(large, small)
    held = Assignment.objects.filter(job=job, state=AssignmentState.HELD)
    assert set(held.values_list("gpu__server__name", flat=True)) == {"large"}


def report_memory(node: SimulatedAgent, job: Job, size_bytes: int, iteration: int) -> None:
    worker = node.rank_zero(job.pk)
    assert worker is not None
    generation = job.generations.get(number=worker.entry["generation"])
    entry = metric(generation, host_memory_bytes=size_bytes, iteration=iteration)
    assert node.report(metrics=[entry]).refused == []


def test_growing_memory_use_raises_the_reservation_up_to_its_share(cluster: Cluster, submit: Submit) -> None:
    node = server("node-1", 16)
    job = submit(seconds=3000, iterations=10_000)
    settle(node)
    (level,) = CurveLevel.objects.filter(gpus=4)
    assert level.reserved_memory_bytes < 3.5 * GIB
    report_memory(node, job, int(3.4 * GIB), 7)
    refine_curves()
    level.refresh_from_db()
    assert level.host_memory_bytes == int(3.4 * GIB)
    assert level.reserved_memory_bytes == pytest.approx(3.74 * GIB, rel=1e-3)
    told = JobEvent.objects.get(job=job, kind="memory_raised")
    assert "3.4 GiB of host memory on 4 GPUs, more than was measured" in told.message
    report_memory(node, job, 40 * GIB, 8)
    refine_curves()
    level.refresh_from_db()
    assert level.reserved_memory_bytes == 4 * GIB, "no more than every server has for each GPU"
    settle(node)
    job.refresh_from_db()
    assert (job.promised, job.at_risk) == (True, False)


def test_less_than_before_lowers_nothing(cluster: Cluster, submit: Submit) -> None:
    node = server("node-1", 16)
    job = submit(seconds=3000, iterations=10_000)
    settle(node)
    before = CurveLevel.objects.get(gpus=4).reserved_memory_bytes
    report_memory(node, job, GIB, 7)
    refine_curves()
    assert CurveLevel.objects.get(gpus=4).reserved_memory_bytes == before
    assert not JobEvent.objects.filter(kind="memory_raised").exists()


def test_worker_memory_limit_of_the_agent_counts(cluster: Cluster, submit: Submit) -> None:
    """The host has 16 GiB per worker, but its agent ends a worker that takes more than two."""
    node = server("node-1", 64, worker_memory_bytes=2 * GIB)
    job = submit(seconds=600)
    settle(node)
    job.refresh_from_db()
    assert job.verdict is not None
    assert (job.state, job.verdict["reason_code"]) == (JobState.DECLINED, "no_levels")


def test_workers_share_what_the_store_for_copies_of_states_leaves(cluster: Cluster, submit: Submit) -> None:
    """Four workers of 3.3 GiB fit into 16 GiB, and not beside a store that may take 4 GiB of them: two jobs
    and their copies would be put where they do not fit together."""
    node = server("node-1", 16)
    known = submit("best_effort", iterations=10)
    settle(node)
    node.complete(known.pk)
    node.report()
    settle(node)
    (before,) = pool_snapshot(Cluster.objects.get(), KIND, timezone.now()).snapshot.servers
    assert before.memory_bytes == 16 * GIB
    node.report(
        inventory={
            "gpus": [{"index": index, "kind": KIND, "emulated": True} for index in range(4)],
            "memory_bytes": 16 * GIB, "memory_store_bytes": 4 * GIB, "sandbox": "namespaces",
        }
    )  # fmt: skip
    (after,) = pool_snapshot(Cluster.objects.get(), KIND, timezone.now()).snapshot.servers
    assert after.memory_bytes == 12 * GIB
    job = submit(seconds=600)
    settle(node)
    job.refresh_from_db()
    assert job.verdict is not None
    assert (job.state, job.verdict["reason_code"]) == (JobState.DECLINED, "no_levels")
    assert "more than every server has for each GPU" in job.verdict["reason"]


def test_a_store_that_takes_all_leaves_workers_nothing() -> None:
    host = Server(memory_bytes=8 * GIB, memory_store_bytes=8 * GIB, worker_memory_bytes=GIB)
    assert memory_of_worker(host, 4) == 0.0
    assert memory_of_worker(Server(worker_memory_bytes=GIB), 4) == GIB, "nobody said what the host has"
    assert memory_of_worker(Server(), 4) == float("inf")
