"""A project's quota of promised GPU hours holds for every way to request a promise."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from projects.models import Quota
from scheduling.choices import JobState, OfferState, ServiceClass
from scheduling.models import Job, Offer
from scheduling.services.planning.planning import run_planner
from scheduling.services.requests.accepting import job_accept_offer
from scheduling.services.requests.jobs import request_of
from scheduling.services.requests.what_if import job_change_deadline, job_what_if
from tests.control_plane.requests.test_offers import store_known_curve
from tests.control_plane.simulated_agent import SimulatedAgent

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]
#: 3,400 iterations take 340 seconds on one GPU and 100 on four: 0.094 and 0.111 GPU hours.
ITERATIONS = 3400
#: GPU hours that suffice for no such job, and for one.
FOR_NONE, FOR_ONE = 0.05, 0.15


@pytest.fixture(autouse=True)
def measured_job(owned: SimulatedAgent, submit: Submit) -> Job:
    """Return a job without a deadline whose function has a known speed; all other jobs use this function."""
    job = submit("best_effort", iterations=ITERATIONS)
    store_known_curve(job)
    return decide(job)


def decide(job: Job) -> Job:
    run_planner("test")
    job.refresh_from_db()
    return job


def limit(job: Job, hours: float) -> None:
    Quota.objects.update_or_create(project=job.project, defaults={"promised_gpu_hours": hours})


def verdict_codes(job: Job) -> tuple[str, str]:
    assert job.verdict is not None
    return job.verdict["decision"], job.verdict["reason_code"]


def in_seconds(seconds: float) -> datetime:
    return timezone.now() + timedelta(seconds=seconds)


def test_a_newcomer_is_declined_beyond_the_quota(measured_job: Job, submit: Submit) -> None:
    limit(measured_job, FOR_ONE)
    first = decide(submit(seconds=900, iterations=ITERATIONS))
    second = decide(submit(seconds=900, iterations=ITERATIONS))
    assert first.promised
    assert (second.state, second.promised, verdict_codes(second)) == (
        JobState.DECLINED,
        False,
        ("declined", "quota"),
    )
    assert f"may hold promises for {FOR_ONE:g} GPU hours" in (second.verdict or {})["reason"]
    assert not Offer.objects.exists(), "a later deadline would not help"


def test_a_soft_deadline_beyond_the_quota_is_a_wish(measured_job: Job, submit: Submit) -> None:
    limit(measured_job, FOR_NONE)
    job = decide(submit("soft", seconds=900, iterations=ITERATIONS))
    assert (job.finished(), job.promised, job.promise_outcome) == (False, False, "none")
    assert verdict_codes(job) == ("admitted", "quota")


@pytest.mark.parametrize("seconds", [900, 10])
def test_what_if_and_submission_give_the_same_verdict(
    measured_job: Job, submit: Submit, seconds: float
) -> None:
    limit(measured_job, FOR_NONE)
    job = decide(submit(seconds=seconds, iterations=ITERATIONS))
    verdict = job_what_if(project=job.project, request=request_of(job))
    assert (verdict.decision, verdict.reason_code) == verdict_codes(job)
    assert (verdict.offer, (job.verdict or {})["offer"]) == (None, None)


def test_a_change_of_class_needs_room_in_the_quota(measured_job: Job) -> None:
    limit(measured_job, FOR_NONE)

    def change_class() -> tuple[Job, str, bool]:
        job, answer, changed = job_change_deadline(
            job=measured_job,
            actor=measured_job.owner,
            deadline_at=in_seconds(900),
            service_class=ServiceClass.SLO,
        )
        return job, answer.reason_code, changed

    job, code, changed = change_class()
    assert (code, changed, job.promised, job.service_class) == ("quota", False, False, "best_effort")
    limit(measured_job, FOR_ONE)
    job, code, changed = change_class()
    assert (code, changed, job.promised, job.service_class) == ("fits", True, True, "slo")
    assert verdict_codes(job) == ("admitted", "fits"), "the stored verdict is the present one"
    assert (job.verdict or {})["minimum_satisfactory_share"]


def test_deadline_change_replaces_the_own_promise_in_the_quota(measured_job: Job, submit: Submit) -> None:
    limit(measured_job, FOR_ONE)
    job = decide(submit(seconds=900, iterations=ITERATIONS))
    tighter, _, changed = job_change_deadline(job=job, actor=job.owner, deadline_at=in_seconds(200))
    assert (changed, tighter.promised) == (True, True)
    limit(measured_job, FOR_NONE)
    again, answer, changed = job_change_deadline(job=job, actor=job.owner, deadline_at=in_seconds(150))
    assert (answer.reason_code, changed, again.promised) == ("quota", False, True), "the old promise holds"
    later, answer, changed = job_change_deadline(job=job, actor=job.owner, deadline_at=in_seconds(800))
    assert (answer.reason_code, changed, later.promised) == ("fits", True, True), "loosening revokes nothing"
    assert (later.verdict or {})["slack_seconds"] == answer.slack_seconds
    assert (answer.slack_seconds or 0) > 500


@pytest.mark.parametrize("awaited", [False, True], ids=["at once", "after others"])
def test_an_offer_is_made_within_the_quota(
    measured_job: Job, submit: Submit, awaited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if awaited:
        monkeypatch.setattr("scheduling.services.planning.planning.find_offers", lambda *_: {})
    limit(measured_job, FOR_NONE)
    job = decide(submit(seconds=10, iterations=ITERATIONS))
    if awaited:
        Job.objects.filter(pk=job.pk).update(awaits_offer=True)
        decide(job)
    assert (job.state, job.awaits_offer) == (JobState.DECLINED, False)
    assert not Offer.objects.exists()
    assert "but is not offered: " in (job.verdict or {})["no_offer"]
    limit(measured_job, FOR_ONE)
    Job.objects.filter(pk=job.pk).update(awaits_offer=True)
    verdict = decide(job).verdict or {}
    assert (verdict["offer"] is not None, verdict["no_offer"]) == (True, "")


def test_an_open_offer_holds_its_hours_until_it_is_accepted(measured_job: Job, submit: Submit) -> None:
    limit(measured_job, FOR_ONE)
    job = decide(submit(seconds=10, iterations=ITERATIONS))
    assert Offer.objects.get(job=job).state == OfferState.OPEN
    rival = decide(submit(seconds=900, iterations=ITERATIONS))
    assert verdict_codes(rival) == ("declined", "quota")
    assert job_accept_offer(job=job, actor=job.owner).promised
