"""What is looked at every second asks the database little, and no more for many jobs than for few."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from cluster.models import Cluster
from scheduling.models import Job, ScalingCurve
from scheduling.selectors.desired_state import desired_state
from scheduling.services.leases import reconcile
from scheduling.services.planning import run_planner
from scheduling.services.profiling import find_block
from scheduling.services.snapshots import cluster_policy
from tests.control_plane.simulated_agent import SimulatedAgent, settle

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


def queries(action: Callable[[], object]) -> int:
    with CaptureQueriesContext(connection) as captured:
        action()
    return len(captured)


@pytest.fixture
def running(owned: SimulatedAgent, submit: Submit) -> Callable[[int], None]:
    """Submits so many jobs and lets them train, each on a GPU of its own."""

    def run(count: int) -> None:
        for _ in range(count):
            submit("best_effort", iterations=1_000_000)
        settle(owned)

    return run


def test_a_pass_with_nothing_to_decide_asks_little(running: Callable[[int], None]) -> None:
    def in_the_middle_of_a_slot() -> int:
        ScalingCurve.objects.update(complete=True)
        Cluster.objects.update(next_slot_at=timezone.now() + timedelta(hours=1), next_wake_at=None)
        return queries(run_planner)

    running(1)
    few = in_the_middle_of_a_slot()
    running(3)
    assert in_the_middle_of_a_slot() == few
    assert few <= 22


def test_a_function_measured_on_as_many_gpus_as_there_are_needs_no_snapshot(
    running: Callable[[int], None],
) -> None:
    running(1)
    job = Job.objects.select_related("cluster", "curve", "function_version").get()
    assert job.curve is not None
    policy, now = cluster_policy(job.cluster), timezone.now()
    assert queries(lambda: find_block(job.cluster, job, policy, now, above=4)) <= 3
    assert queries(lambda: find_block(job.cluster, job, policy, now, above=2)) > 3


def test_what_a_server_shall_do_is_read_in_as_many_queries_for_many_jobs(
    owned: SimulatedAgent, running: Callable[[int], None]
) -> None:
    running(1)
    server = owned.agent.server_id
    few = queries(lambda: desired_state(server))
    running(3)
    assert len(desired_state(server)["generations"]) == 4
    assert queries(lambda: desired_state(server)) == few


def test_a_look_at_a_job_that_is_as_it_should_be_asks_little(running: Callable[[int], None]) -> None:
    running(1)
    few = queries(reconcile)
    running(1)
    assert queries(reconcile) - few <= 6
