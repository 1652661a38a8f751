"""Usage, forecasts and lending history are deleted after ninety days."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from lending.models import InferenceCluster, LendingEvent, UsageForecast, UsageSample
from lending.services.inference_clusters import inference_cluster_create
from lending.services.transitions import note_event
from tests.factories import UserFactory
from workers.tasks.control import keep_house

pytestmark = pytest.mark.django_db


@pytest.fixture
def inference() -> InferenceCluster:
    return inference_cluster_create(name="serving", actor=UserFactory.create(), settings={})


def test_housekeeping_deletes_rows_older_than_ninety_days(inference: InferenceCluster) -> None:
    LendingEvent.objects.all().delete()
    times = [timezone.now() - timedelta(days=days) for days in (91, 89)]
    for at in times:
        UsageSample.objects.create(inference_cluster=inference, period_ends_at=at, usage=0.5)
        UsageForecast.objects.create(
            inference_cluster=inference, period_ends_at=at, usage=0.5, forecaster="persistence"
        )
        note_event(inference, "settings", "Somebody changed something.", at)
    keep_house()
    assert list(UsageSample.objects.values_list("period_ends_at", flat=True)) == times[1:]
    assert list(UsageForecast.objects.values_list("period_ends_at", flat=True)) == times[1:]
    assert list(LendingEvent.objects.values_list("happened_at", flat=True)) == times[1:]
