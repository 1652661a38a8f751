"""The live planner reallocates by the rule of `scheduling.core.clock`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from cluster.models import Cluster
from scheduling.models import Job
from scheduling.services.planning.planning import reallocation_due, run_planner
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import SimulatedAgent, settle

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


def test_a_wake_that_a_plan_asked_for_acts_within_the_slot(cluster: Cluster) -> None:
    now = timezone.now()
    cluster.replanned_at, cluster.planned_version = now, cluster.planning_version
    cluster.next_slot_at = now + timedelta(seconds=60)
    assert not reallocation_due(cluster, now)
    cluster.next_wake_at = now + timedelta(seconds=10)
    assert not reallocation_due(cluster, now + timedelta(seconds=9))
    assert reallocation_due(cluster, now + timedelta(seconds=10))


def test_pass_without_moves_begins_no_slot(cluster: Cluster, submit: Submit) -> None:
    agent = SimulatedAgent.enrol("node-1", 4, SPEED)
    submit("best_effort", iterations=100_000)
    settle(agent)
    ended_at = timezone.now() - timedelta(seconds=1)
    Cluster.objects.update(slot_seconds=600.0, next_slot_at=ended_at, next_wake_at=None, planned_version=0)
    run_planner("test")
    after = Cluster.objects.get()
    assert after.replanned_at is not None
    assert after.replanned_at > ended_at
    assert after.next_slot_at is None or after.next_slot_at <= timezone.now(), "its job kept its GPUs"
    newcomer = submit(seconds=60, iterations=1000)
    run_planner("test")
    newcomer.refresh_from_db()
    assert newcomer.promised
    begun = Cluster.objects.get().next_slot_at
    assert begun is not None
    assert begun > timezone.now() + timedelta(seconds=500), "now somebody was moved"
