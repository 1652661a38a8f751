"""A job ends after repeatedly failed measurements, with the cause of the last failure."""

from __future__ import annotations

import pytest

from cluster.models import Cluster
from scheduling.choices import CurveState, GenerationState, JobState, Purpose, RetireReason
from scheduling.life_cycle.steps import WORKER_GONE
from scheduling.models import Job
from scheduling.services.measuring.measured_levels import MAXIMUM_ATTEMPTS
from scheduling.services.measuring.unmeasurable import settle_unmeasurable
from tests.factories import GenerationFactory, JobFactory, ScalingCurveFactory

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("last", "named"), [("killed: by signal 4", "by signal 4"), (WORKER_GONE, "by signal 3")]
)
def test_the_words_on_broken_measurements_name_the_last_known_cause(last: str, named: str) -> None:
    curve = ScalingCurveFactory.create(state=CurveState.UNKNOWN)
    job: Job = JobFactory.create(curve=curve, state=JobState.PROFILING)
    for number in range(1, MAXIMUM_ATTEMPTS + 1):
        GenerationFactory.create(
            job=job, number=number, curve=curve, purpose=Purpose.PROFILING, state=GenerationState.RETIRED,
            retired_because=RetireReason.LOST,
            retire_reason=last if number == MAXIMUM_ATTEMPTS else f"killed: by signal {number}",
        )  # fmt: skip
    assert settle_unmeasurable(Cluster.objects.get(pk=job.cluster_id), 10) == 1
    job.refresh_from_db()
    assert job.failure is not None
    words = f"measuring its function was broken off 4 times, at last because: killed: {named}"
    assert words in job.failure["message"]
