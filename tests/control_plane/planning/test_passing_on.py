"""GPUs that pass between jobs are in a snapshot once, with the receiving job and for its whole time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from django.db import transaction
from django.utils import timezone

from cluster.choices import ServerState
from cluster.models import Cluster, Server
from scheduling.choices import GenerationState, JobState, Purpose
from scheduling.core.problem.problem import build_problem
from scheduling.models import Generation, Job
from scheduling.services.agents.leases import reconcile
from scheduling.services.generations.generations import create_generation
from scheduling.services.generations.lifecycle import suspend
from scheduling.services.rows.records import lock_cluster
from scheduling.services.snapshots.snapshots import Pool, pool_snapshot
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import KIND, SimulatedAgent, settle

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


@pytest.fixture
def node(cluster: Cluster) -> SimulatedAgent:
    return SimulatedAgent.enrol("node-1", 4, SPEED)


def pool() -> Pool:
    return pool_snapshot(Cluster.objects.get(), KIND, timezone.now())


def make_room(leaving: Job, coming: Job, *, measuring: bool = False) -> None:
    """Suspend one job and give its GPUs to another, or to the measurement of its function."""
    with transaction.atomic():
        lock_cluster(leaving.cluster_id)
        live = leaving.generations.get(state=GenerationState.LIVE)
        gpus = [
            assignment.gpu for assignment in live.assignments.select_related("gpu__server").order_by("rank")
        ]
        suspend(leaving, "makes room")
        create_generation(
            coming, gpus, epoch=1, reason="takes over",
            purpose=Purpose.PROFILING if measuring else Purpose.TRAINING,
        )  # fmt: skip


@pytest.fixture
def leaving(node: SimulatedAgent, submit: Submit) -> Job:
    job = submit("best_effort", iterations=100_000)
    settle(node)
    job.refresh_from_db()
    return job


def test_gpus_that_another_job_waits_for_are_counted_once(leaving: Job, submit: Submit) -> None:
    coming = submit("best_effort", iterations=100_000)
    Job.objects.filter(pk=coming.pk).update(state=JobState.SUSPENDED)
    make_room(leaving, coming)
    snapshot_of_pool = pool()
    holders = Counter(address for job in snapshot_of_pool.snapshot.jobs for address in job.placement)
    assert holders
    assert max(holders.values()) == 1
    by_id = {job.id: job for job in snapshot_of_pool.snapshot.jobs}
    assert by_id[coming.pk].gpus_now == len(holders)
    assert (by_id[leaving.pk].gpus_now, by_id[leaving.pk].locked) == (0, True), (
        "it is planned again after it has left"
    )
    assert build_problem(snapshot_of_pool.snapshot).open_timeline().free[0, 0] == 4 - len(holders)
    assert {snapshot_of_pool.claims[address] for address in holders} == {coming.pk}


def test_gpus_that_a_measurement_waits_for_are_blocked_until_it_ends(leaving: Job, submit: Submit) -> None:
    """GPUs of a leaving job alone would be blocked only for a slot."""
    measured = submit(seconds=6000)
    make_room(leaving, measured, measuring=True)
    measuring = Generation.objects.get(purpose=Purpose.PROFILING, state=GenerationState.PREPARING)
    addresses = set(range(measuring.assignments.count()))
    problem = build_problem(pool().snapshot)
    assert set(problem.blocked.tolist()) == addresses
    longest = Cluster.objects.get().profile_maximum_seconds
    assert problem.blocked_until.min() >= longest


def test_job_waiting_for_gpus_of_a_silent_server_gets_other_ones(
    leaving: Job, submit: Submit, node: SimulatedAgent
) -> None:
    """The holder should leave but stays, since a job on a silent server is not moved."""
    coming = submit("best_effort", iterations=100_000)
    Job.objects.filter(pk=coming.pk).update(state=JobState.SUSPENDED)
    with transaction.atomic():
        lock_cluster(leaving.cluster_id)
        live = leaving.generations.get(state=GenerationState.LIVE)
        gpus = [
            assignment.gpu for assignment in live.assignments.select_related("gpu__server").order_by("rank")
        ]
        create_generation(coming, gpus, epoch=1, reason="takes over")
    waiting = coming.generations.get(state=GenerationState.PREPARING)
    assert waiting.held_at is None

    reconcile()
    waiting.refresh_from_db()
    assert waiting.state == GenerationState.PREPARING, "the next plan may move the other job"

    Server.objects.filter(pk=node.agent.server_id).update(state=ServerState.SUSPECT)
    reconcile()
    waiting.refresh_from_db()
    assert waiting.state == GenerationState.RETIRED
    assert coming.events.filter(kind="reconciled").exists()
    by_id = {job.id: job for job in pool().snapshot.jobs}
    assert (by_id[coming.pk].placement, by_id[coming.pk].locked) == ((), False)
    assert by_id[leaving.pk].gpus_now == live.world_size
