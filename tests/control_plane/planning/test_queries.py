"""Checks that run every second take few queries, and no more for many jobs than for few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import cast

import pytest
from django.db import connection
from django.db.models import Model
from django.db.models.signals import post_init
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from cluster.models import Cluster
from deployments.services.sampling import measure_deployments
from deployments.services.steering import steer_deployments
from lending.services.orchestrator import work_off_orders
from scheduling.core.question.snapshot import Snapshot
from scheduling.models import Checkpoint, Job, ScalingCurve
from scheduling.policies import Policy
from scheduling.selectors.agents.desired_state import desired_state
from scheduling.services.agents.drain import finish_drains
from scheduling.services.agents.leases import expire_leases, reconcile
from scheduling.services.long_work.housekeeping import delete_old_checkpoints
from scheduling.services.measuring.room_to_measure import RoomToMeasure
from scheduling.services.planning.planning import run_planner
from scheduling.services.rows import pass_lengths
from scheduling.services.rows.wakeups import sweep_outbox
from scheduling.services.snapshots import planner_lease
from scheduling.services.snapshots.snapshots import cluster_policy, pool_snapshot
from tests.control_plane.simulated_agent import KIND, SimulatedAgent, settle
from tests.factories import CheckpointFactory, FunctionVersionFactory, JobFactory
from workers.tasks.control import sweep_long_tasks

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


def queries(action: Callable[[], object]) -> int:
    with CaptureQueriesContext(connection) as captured:
        action()
    return len(captured)


@pytest.fixture
def running(owned: SimulatedAgent, submit: Submit) -> Callable[[int], None]:
    """Return a function that submits this many jobs and trains each on its own GPU."""

    def run(count: int) -> None:
        for _ in range(count):
            submit("best_effort", iterations=1_000_000)
        settle(owned)

    return run


def test_a_pass_with_nothing_to_decide_takes_few_queries(
    running: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A slow pass without changes is recorded, and passes are slow on a busy machine: record none.
    monkeypatch.setattr(pass_lengths, "LOOKING_SECONDS", float("inf"))
    # The planner's lease is renewed now and then: renew it never.
    monkeypatch.setattr(planner_lease, "RENEWED_AFTER", planner_lease.LEASE)

    def in_the_middle_of_a_slot() -> int:
        ScalingCurve.objects.update(complete=True)
        Cluster.objects.update(next_slot_at=timezone.now() + timedelta(hours=1), next_wake_at=None)
        return queries(run_planner)

    running(1)
    few = in_the_middle_of_a_slot()
    running(3)
    assert in_the_middle_of_a_slot() == few
    assert few <= 6


@pytest.mark.parametrize(
    ("look", "most"),
    [
        (run_planner, 6),
        (expire_leases, 3 + 2),  # two are an empty transaction, of which PostgreSQL hears nothing
        (reconcile, 5),
        (finish_drains, 1),
        (sweep_outbox, 1),
        (sweep_long_tasks, 4),
        (work_off_orders, 1),
        (steer_deployments, 1),
        (measure_deployments, 2),
    ],
)
def test_periodic_tasks_of_an_idle_platform_ask_little(
    owned: SimulatedAgent,
    monkeypatch: pytest.MonkeyPatch,
    look: Callable[[], object],
    most: int,
) -> None:
    monkeypatch.setattr(planner_lease, "RENEWED_AFTER", planner_lease.LEASE)
    settle(owned)
    Cluster.objects.update(next_slot_at=timezone.now() + timedelta(hours=1), next_wake_at=None)
    look()
    assert queries(look) <= most


@pytest.mark.parametrize("count", [10, 50])
def test_looking_for_old_checkpoints_takes_one_query(count: int) -> None:
    checkpoints = [CheckpointFactory.build(job=JobFactory.create(), iteration=n) for n in range(count)]
    Checkpoint.objects.bulk_create(checkpoints)
    now = timezone.now()
    assert queries(lambda: delete_old_checkpoints(now)) == 1


@pytest.fixture
def built() -> Iterator[Counter[str]]:
    """Count the models that are built, by name."""
    counted: Counter[str] = Counter()

    def count(sender: type[Model], **_: object) -> None:
        counted[sender.__name__] += 1

    post_init.connect(count)
    yield counted
    post_init.disconnect(count)


def test_a_snapshot_builds_no_models_of_what_is_many(
    running: Callable[[int], None], built: Counter[str]
) -> None:
    """A large cluster has thousands of GPUs, jobs and claims; building their models was most of a pass."""

    def snapshot() -> int:
        cluster = Cluster.objects.get()
        built.clear()
        return queries(lambda: pool_snapshot(cluster, KIND, timezone.now()))

    running(1)
    few = snapshot()
    running(3)
    assert snapshot() == few
    assert [built[name] for name in ("Gpu", "Job", "Assignment", "Generation")] == [0, 0, 0, 0]
    assert built["Server"] == 1


def test_a_newcomer_s_pass_builds_no_models_of_other_jobs(
    running: Callable[[int], None], submit: Submit, built: Counter[str]
) -> None:
    def decide() -> list[int]:
        Cluster.objects.update(next_slot_at=timezone.now() + timedelta(hours=1), next_wake_at=None)
        ScalingCurve.objects.update(complete=True)
        newcomer = submit("best_effort", iterations=1_000_000)
        built.clear()
        run_planner()
        newcomer.refresh_from_db()
        assert newcomer.decided_at is not None
        return [built[name] for name in ("Job", "Generation", "Gpu", "Assignment")]

    running(1)
    few = decide()
    running(2)
    assert decide() == few


def test_function_measured_on_all_gpus_needs_no_snapshot(
    running: Callable[[int], None],
) -> None:
    running(1)
    job = Job.objects.select_related("cluster", "curve", "function_version").get()
    assert job.curve is not None
    room = RoomToMeasure(job.cluster, cluster_policy(job.cluster), timezone.now())
    assert queries(lambda: room.block_for(job, above=4)) <= 3
    assert queries(lambda: room.block_for(job, above=2)) > 3
    assert queries(lambda: room.block_for(job, above=2)) <= 3, "the pool has been read"


@dataclass
class EveryMeasurementHarms:
    """A policy under which every measurement takes GPUs that a promise needs."""

    asked: list[int] = field(default_factory=list)

    def replan(self, snapshot: Snapshot) -> SimpleNamespace:
        self.asked.append(len(snapshot.blocked))
        return SimpleNamespace(at_risk=("a promise",) * len(snapshot.blocked))


def test_each_block_size_without_room_is_tried_once(running: Callable[[int], None]) -> None:
    running(2)
    jobs = list(Job.objects.select_related("cluster", "curve", "function_version"))
    policy = EveryMeasurementHarms()
    room = RoomToMeasure(jobs[0].cluster, cast(Policy, policy), timezone.now())
    assert [room.block_for(job, above=0) for job in jobs * 2] == [None] * 4
    assert policy.asked == [0, 1, 1, 1], "without a block, and once for blocks of 4, 2 and 1"


def test_job_queries_leave_out_the_files_of_functions(
    owned: SimulatedAgent, submit: Submit, running: Callable[[int], None]
) -> None:
    """A bundle may have a thousand files with long paths, which every job's row would include."""
    running(1)
    job = Job.objects.get()
    unknown = FunctionVersionFactory.create(function__project=job.project)
    submit("best_effort", iterations=10)
    submit("slo", seconds=3_600.0, iterations=10, version=unknown)
    api, person = APIClient(), Client()
    api.force_authenticate(job.owner)
    person.force_login(job.owner)
    with CaptureQueriesContext(connection) as captured:
        run_planner("test")
        desired_state(owned.agent.server_id)
        for answer in (
            api.get("/api/v1/jobs/"),
            api.get("/api/v1/functions/"),
            api.get(f"/api/v1/functions/{unknown.function_id}/versions/"),
            person.get("/jobs/"),
        ):
            assert answer.status_code == 200
    assert len(captured) > 20
    of_many = [query["sql"] for query in captured if not query["sql"].endswith("LIMIT 1")]
    assert [sql for sql in of_many if '"files"' in sql] == []
    assert "files" not in api.get("/api/v1/functions/").json()["results"][0]
    assert "files" in api.get(f"/api/v1/functions/{unknown.function_id}/").json()


def test_desired_state_takes_a_constant_number_of_queries(
    owned: SimulatedAgent, running: Callable[[int], None]
) -> None:
    running(1)
    server = owned.agent.server_id
    few = queries(lambda: desired_state(server))
    running(3)
    assert len(desired_state(server)["generations"]) == 4
    assert queries(lambda: desired_state(server)) == few


def test_reconciling_unchanged_jobs_takes_a_constant_query_count(running: Callable[[int], None]) -> None:
    running(1)
    reconcile()  # the first pass stores the job's protection
    few = queries(reconcile)
    assert few <= 20
    running(3)
    reconcile()
    assert queries(reconcile) == few


def test_report_without_news_takes_a_constant_query_count(
    owned: SimulatedAgent, running: Callable[[int], None]
) -> None:
    running(1)
    owned.report()
    few = queries(owned.report)
    assert few <= 9, "one query is the simulated agent's own"
    running(2)
    owned.report()
    assert queries(owned.report) == few
