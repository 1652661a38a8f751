"""Outcomes of promises: losses beyond the promise make it void and never count as met."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from cluster.models import Cluster
from scheduling.choices import JobState, PromiseOutcome, RecoveryKind, RecoveryOutcome, VoidReason
from scheduling.models import Job, Recovery
from scheduling.services.requests.lateness import mark_late
from scheduling.services.rows.scoring import score_promise
from tests import factories as make
from tests.control_plane.simulated_time import BEGINS_AT

pytestmark = pytest.mark.django_db


def lost_a_server(job: Job, number: int, **fields: Any) -> None:
    now = timezone.now()
    Recovery.objects.create(
        job=job,
        failed_generation=number,
        lost_servers=[{"server": number, "name": f"node-{number}", "silent_at": None, "fenced_at": None}],
        outcome=RecoveryOutcome.RECOVERED,
        ended_at=now,
        **{"kind": RecoveryKind.HARDWARE, "detected_at": now, **fields},
    )


@pytest.fixture
def late(cluster: Cluster) -> Job:
    """Return a job past its deadline, in a cluster that keeps one server in reserve."""
    Cluster.objects.update(reserve_servers=1)
    now = timezone.now()
    job: Job = make.JobFactory.create(
        cluster=cluster,
        state=JobState.RUNNING,
        service_class="slo",
        promised=True,
        promise_outcome=PromiseOutcome.OPEN,
        decided_at=now - timedelta(hours=1),
        deadline_at=now - timedelta(seconds=1),
    )
    return job


def outcome(job: Job, *, completes: bool) -> tuple[str, str]:
    if completes:
        job = Job.objects.get(pk=job.pk)
        score_promise(job, timezone.now())
    else:
        mark_late(job.cluster, timezone.now(), 1)
        job.refresh_from_db()
    return job.promise_outcome, job.void_reason


@pytest.mark.parametrize("completes", [True, False])
@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({}, (PromiseOutcome.VOID, VoidReason.FAILURES)),
        ({"kind": RecoveryKind.ANNOUNCED}, (PromiseOutcome.MISSED, "")),
        ({"detected_at": BEGINS_AT - timedelta(days=1)}, (PromiseOutcome.MISSED, "")),
        (None, (PromiseOutcome.MISSED, "")),
    ],
    ids=["two lost", "one announced", "one before the promise", "one lost"],
)
def test_promise_is_void_after_more_lost_servers_than_it_covers(
    late: Job, second: dict[str, Any] | None, expected: tuple[str, str], completes: bool
) -> None:
    lost_a_server(late, 1)
    if second is not None:
        lost_a_server(late, 2, **second)
    assert outcome(late, completes=completes) == expected
