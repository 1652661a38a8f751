"""Saving many rows in one statement."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduling.choices import JobState
from scheduling.models import Job
from scheduling.services.rows.bulk import update_rows
from tests.factories import JobFactory, ScalingCurveFactory

pytestmark = pytest.mark.django_db

FIELDS = (
    "state",
    "promised",
    "plan",
    "verdict",
    "decided_at",
    "curve",
    "last_generation",
    "iterations_per_second",
)


def test_every_kind_of_column_is_saved_and_no_other() -> None:
    curve = ScalingCurveFactory.create()
    first, second = JobFactory.create(), JobFactory.create(plan={"start": [1.5]})
    at = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    first.state, first.promised, first.plan, first.verdict = JobState.ADMITTED, False, {"end": ["'%s"]}, None
    first.decided_at, first.curve, first.last_generation, first.iterations_per_second = at, curve, 7, 0.1
    second.plan, second.curve, second.decided_at = None, None, at + timedelta(days=1)
    first.name = second.name = "not to be saved"
    with CaptureQueriesContext(connection) as captured:
        update_rows([first, second], FIELDS)
    assert len(captured) == 1
    for job in (first, second):
        stored = Job.objects.get(pk=job.pk)
        assert [getattr(stored, name) for name in FIELDS] == [getattr(job, name) for name in FIELDS]
        assert stored.name != job.name
    assert Job.objects.filter(pk=second.pk, plan__isnull=True).exists(), (
        "None is stored as SQL's NULL, not JSON's null"
    )


def test_a_row_that_is_gone_stays_away_and_others_are_untouched() -> None:
    gone, there, other = JobFactory.create(), JobFactory.create(), JobFactory.create()
    Job.objects.filter(pk=gone.pk).delete()
    gone.last_generation = there.last_generation = 3
    update_rows([gone, there], ["last_generation"])
    assert not Job.objects.filter(pk=gone.pk).exists()
    assert Job.objects.get(pk=there.pk).last_generation == 3
    assert Job.objects.get(pk=other.pk).last_generation == 0


def test_nothing_to_save_asks_nothing() -> None:
    with CaptureQueriesContext(connection) as captured:
        update_rows([], ["state"])
    assert len(captured) == 0
