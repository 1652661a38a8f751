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
#: Bytes of host memory that a worker takes, by number of GPUs.
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
    profiled = JobEvent.objects.filter(job=job, kind="profiled").first()
    assert profiled is not None
    assert "6 GiB of host memory" in profiled.message
    client.force_login(job.owner)
    assert "reserved for each worker" in client.get(f"/jobs/{job.pk}/").content.decode()
    assert "of host memory for the workers here" in client.get("/servers/").content.decode()


def test_a_level_too_large_for_the_smallest_server_is_unused(cluster: Cluster, submit: Submit) -> None:
    """One GPU is measured on the larger server with 6 GiB; the smaller server has 5 GiB per worker."""
    large = server("large", 64)
    settle(large)
    job = submit("best_effort", iterations=10**6)
    settle(large)
    small = server("small", 20)
    small.memory = TAKES
    others = [submit("best_effort", iterations=10**6) for _ in range(3)]
    settle(large, small)
    assignments = Assignment.objects.filter(state=AssignmentState.HELD).values_list(
        "job", "gpu__server__name"
    )
    by_job = {item.pk: sum(1 for job_id, _ in assignments if job_id == item.pk) for item in (job, *others)}
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


def test_servers_with_too_little_memory_per_worker_are_unused(cluster: Cluster, submit: Submit) -> None:
    cluster.worker_memory_bytes = 8 * GIB
    cluster.save()
    large, small = server("large", 64), server("small", 20)
    job = submit("best_effort", iterations=10**6)
    settle(large, small)
    assignments = Assignment.objects.filter(job=job, state=AssignmentState.HELD)
    assert set(assignments.values_list("gpu__server__name", flat=True)) == {"large"}


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
    raised = JobEvent.objects.get(job=job, kind="memory_raised")
    assert "3.4 GiB of host memory on 4 GPUs, more than was measured" in raised.message
    report_memory(node, job, 40 * GIB, 8)
    refine_curves()
    level.refresh_from_db()
    assert level.reserved_memory_bytes == 4 * GIB, "the share that every server has for each GPU"
    settle(node)
    job.refresh_from_db()
    assert (job.promised, job.at_risk) == (True, False)


def test_lower_memory_use_lowers_no_reservation(cluster: Cluster, submit: Submit) -> None:
    node = server("node-1", 16)
    job = submit(seconds=3000, iterations=10_000)
    settle(node)
    before = CurveLevel.objects.get(gpus=4).reserved_memory_bytes
    report_memory(node, job, GIB, 7)
    refine_curves()
    assert CurveLevel.objects.get(gpus=4).reserved_memory_bytes == before
    assert not JobEvent.objects.filter(kind="memory_raised").exists()


def test_worker_memory_limit_of_the_agent_counts(cluster: Cluster, submit: Submit) -> None:
    """The host has 16 GiB per worker, but its agent ends a worker that takes more than 2 GiB."""
    node = server("node-1", 64, worker_memory_bytes=2 * GIB)
    job = submit(seconds=600)
    settle(node)
    job.refresh_from_db()
    assert job.verdict is not None
    assert (job.state, job.verdict["reason_code"]) == (JobState.DECLINED, "no_levels")


def test_workers_share_the_memory_that_the_store_leaves(cluster: Cluster, submit: Submit) -> None:
    """Four workers of 3.3 GiB fit into 16 GiB, but not beside a store that may take 4 GiB of it."""
    node = server("node-1", 16)
    measured_job = submit("best_effort", iterations=10)
    settle(node)
    node.complete(measured_job.pk)
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


def test_a_store_as_large_as_the_host_leaves_workers_nothing() -> None:
    host = Server(memory_bytes=8 * GIB, memory_store_bytes=8 * GIB, worker_memory_bytes=GIB)
    assert memory_of_worker(host, 4) == 0.0
    assert memory_of_worker(Server(worker_memory_bytes=GIB), 4) == GIB, "the host's memory is unknown"
    assert memory_of_worker(Server(), 4) == float("inf")
