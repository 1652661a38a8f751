"""The length of a pass covers all of its work, whatever ended it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from cluster.models import Cluster
from scheduling.models import Decision, Job, PlannerPass
from scheduling.services.long_work.housekeeping import keep_house
from scheduling.services.planning import planning
from scheduling.services.planning.planning import run_planner
from scheduling.services.rows import pass_lengths
from scheduling.services.rows.pass_lengths import PASSES_KEPT_FOR
from scheduling.services.snapshots.planner_lease import LEASE, RENEWED_AFTER, planner_lease
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db(transaction=True)

SLOW_SECONDS = 0.3


class Stopwatch:
    """The clock that measures passes; it advances where a test makes a step slow."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def perf_counter(self) -> float:
        return self.seconds

    def slowly(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*arguments: Any, **options: Any) -> Any:
            self.seconds += SLOW_SECONDS
            return function(*arguments, **options)

        return slow


@pytest.fixture(autouse=True)
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    watch = Stopwatch()
    monkeypatch.setattr(pass_lengths, "time", watch)
    return watch


@pytest.fixture
def metrics() -> Callable[[], dict[str, float]]:
    client = Client()
    client.force_login(UserFactory.create(is_staff=True, is_superuser=True))

    def scraped() -> dict[str, float]:
        lines = client.get("/metrics").content.decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    return scraped


def test_pass_length_includes_work_beside_deciding(
    owned: SimulatedAgent,
    submit: Callable[..., Job],
    metrics: Callable[[], dict[str, float]],
    stopwatch: Stopwatch,
) -> None:
    submit("best_effort", iterations=10, measured=False)
    with patch.object(planning, "_measure", stopwatch.slowly(planning._measure)):
        run_planner("test")
    assert not Decision.objects.exists(), "its function is measured first"
    assert metrics()['punctual_planner_pass_seconds{quantile="1"}'] == SLOW_SECONDS
    assert metrics()["punctual_planner_longest_pass_seconds"] == SLOW_SECONDS


def test_a_pass_that_fails_counts(
    owned: SimulatedAgent,
    submit: Callable[..., Job],
    metrics: Callable[[], dict[str, float]],
    stopwatch: Stopwatch,
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        stopwatch.seconds += SLOW_SECONDS
        raise KeyError("no")

    submit("best_effort", iterations=10)
    settle(owned)
    PlannerPass.objects.all().delete()
    submit("best_effort", iterations=10)
    with patch.object(planning, "_settle_time", fails), pytest.raises(KeyError):
        run_planner("test")
    assert PlannerPass.objects.get().failed
    assert metrics()['punctual_planner_pass_seconds{quantile="1"}'] == SLOW_SECONDS


def test_looking_is_not_kept_and_old_passes_are_forgotten(owned: SimulatedAgent) -> None:
    run_planner("test")
    PlannerPass.objects.all().delete()
    Cluster.objects.update(replanned_at=timezone.now(), replan_seconds=3_600.0)
    Cluster.objects.update(planned_version=Cluster.objects.get().planning_version)
    run_planner("test")
    assert not PlannerPass.objects.exists()
    cluster = Cluster.objects.get()
    for age in (timedelta(0), PASSES_KEPT_FOR + timedelta(minutes=1)):
        PlannerPass.objects.create(cluster=cluster, seconds=1.0, ended_at=timezone.now() - age)
    keep_house()
    assert PlannerPass.objects.count() == 1


def test_only_a_lease_that_is_a_third_used_is_written_again(cluster: Cluster) -> None:
    """Writing the cluster's row waits for every report that is being stored."""

    def writes() -> int:
        with CaptureQueriesContext(connection) as captured, planner_lease(cluster.pk) as epoch:
            assert epoch == 1
        return sum(query["sql"].startswith("UPDATE") for query in captured)

    assert writes() == 1, "it takes over"
    assert writes() == 0
    Cluster.objects.update(planner_lease_expires_at=timezone.now() + LEASE - RENEWED_AFTER)
    assert writes() == 1
    cluster.refresh_from_db()
    assert cluster.planner_lease_expires_at is not None
    assert cluster.planner_lease_expires_at > timezone.now() + LEASE - RENEWED_AFTER
    # As a clock that was set back leaves it.
    Cluster.objects.update(planner_lease_expires_at=timezone.now() + 2 * LEASE)
    assert writes() == 1
