"""One server may be lost at the worst moment and every promise still stands: live services, simulated time,
reserve 1."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.utils import timezone

from cluster.models import Cluster
from scheduling.models import Job
from scheduling.services.planner_settings import planner_settings
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import SimulatedAgent, settle

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


def test_a_promise_under_a_reserve_keeps_slack_for_work_lost_since_the_last_checkpoint(
    cluster: Cluster,
) -> None:
    """Just before the next checkpoint a minute of work is lost, beside fence, margin and a start."""
    cluster.reserve_servers = 1
    fence = cluster.fence_seconds + cluster.fence_margin_seconds
    assert planner_settings(cluster).reserve_slack_seconds >= fence + 60.0 + 2 * cluster.slot_seconds
    cluster.reserve_servers = 2
    assert planner_settings(cluster).reserve_slack_seconds >= 2 * (fence + 60.0)
    cluster.reserve_servers = 0
    assert planner_settings(cluster).reserve_slack_seconds == 0.0


def test_workers_store_their_state_as_often_as_the_slack_rests_on(cluster: Cluster, submit: Submit) -> None:
    agents = [SimulatedAgent.enrol(name, 4, SPEED) for name in ("node-1", "node-2")]
    Cluster.objects.update(reserve_servers=1)
    job = submit("best_effort", iterations=100_000, checkpoint_seconds=3600.0)
    settle(*agents)
    (told,) = {
        worker.entry["checkpoint_seconds"]
        for agent in agents
        for worker in agent.workers.values()
        if worker.entry["job"] == job.pk and worker.entry["purpose"] == "training"
    }
    assert told == 60.0


def test_a_deadline_that_a_lost_server_would_break_is_not_promised(cluster: Cluster, submit: Submit) -> None:
    agents = [SimulatedAgent.enrol(name, 4, SPEED) for name in ("node-1", "node-2")]
    known = submit("best_effort", iterations=10)
    settle(*agents)
    next(agent for agent in agents if agent.rank_zero(known.pk)).complete(known.pk)
    for agent in agents:
        agent.report()
    settle(*agents)
    Cluster.objects.update(reserve_servers=1)
    fence = cluster.fence_seconds + cluster.fence_margin_seconds
    # 1000 iterations take 29 s on one server: there is time for a fence and a start, and none for a minute of
    # lost work.
    tight = submit(seconds=30 + fence + 20, iterations=1000)
    settle(*agents, rounds=1)
    tight.refresh_from_db()
    assert not tight.promised
    roomy = submit(seconds=30 + fence + 20 + 70, iterations=1000)
    settle(*agents, rounds=1)
    roomy.refresh_from_db()
    assert roomy.promised
    assert roomy.deadline_at is not None
    assert roomy.deadline_at > timezone.now()
