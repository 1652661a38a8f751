"""An offer's deadline counts from its acceptance; its hold delays no other job on an idle cluster."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from cluster.models import Cluster
from scheduling.choices import CurveState, JobState, Lossy, OfferState
from scheduling.models import CurveLevel, Job, Offer, ScalingCurve
from scheduling.services.planning.planning import run_planner
from scheduling.services.requests.accepting import job_accept_offer
from scheduling.services.requests.declining_offers import job_decline_offer
from scheduling.services.requests.jobs import request_of
from scheduling.services.requests.what_if import job_what_if
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.control_plane.simulated_time import SimulatedTime

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]
#: Seconds for which the tests' cluster holds an offer.
HOLD_SECONDS = 60.0
#: Seconds that 3,400 iterations take on four GPUs, and the most for a start and for reporting the end.
WORK_SECONDS = 100.0
MORE_SECONDS = 5.0


@pytest.fixture
def declined(owned: SimulatedAgent, submit: Submit, clock: SimulatedTime) -> Job:
    """Return a job of a known function, declined on an idle cluster for its early deadline."""
    job = submit(seconds=10, iterations=3400)
    store_known_curve(job)
    run_planner("test")
    job.refresh_from_db()
    assert job.state == JobState.DECLINED
    return job


def store_known_curve(job: Job) -> None:
    assert job.curve is not None
    ScalingCurve.objects.filter(pk=job.curve.pk).update(state=CurveState.READY, complete=True)
    for gpus, rate in {1: 10.0, 2: 19.0, 4: 34.0}.items():
        CurveLevel.objects.get_or_create(
            curve=job.curve, gpus=gpus, defaults={"iterations_per_second": rate, "pause_seconds": 1.0}
        )


def seconds_left(job: Job) -> float:
    assert job.deadline_at is not None
    return (job.deadline_at - timezone.now()).total_seconds()


@pytest.mark.parametrize(
    "after", [pytest.param(0.0, marks=pytest.mark.slow), pytest.param(30.0, marks=pytest.mark.slow), 55.0]
)
def test_accepted_deadline_counts_from_the_acceptance(
    declined: Job, owned: SimulatedAgent, clock: SimulatedTime, after: float
) -> None:
    offer = Offer.objects.get(job=declined, state=OfferState.OPEN)
    assert declined.verdict is not None
    offered_seconds = declined.verdict["offer"]["deadline_seconds"]
    assert WORK_SECONDS < offered_seconds < WORK_SECONDS + MORE_SECONDS
    clock.turn(after)
    owned.report()
    accepted = job_accept_offer(job=declined, actor=declined.owner)
    assert accepted.promised
    assert accepted.deadline_at is not None
    assert accepted.deadline_at <= offer.deadline_at
    assert WORK_SECONDS < seconds_left(accepted) <= offered_seconds
    settle(owned)
    accepted.refresh_from_db()
    assert (accepted.state, accepted.at_risk) == (JobState.RUNNING, False)


def test_offered_deadline_holds_beside_promises_made_since(
    declined: Job, owned: SimulatedAgent, submit: Submit, clock: SimulatedTime
) -> None:
    offer = Offer.objects.get(job=declined, state=OfferState.OPEN)
    rival = submit(seconds=56, iterations=34 * 50)
    settle(owned)
    rival.refresh_from_db()
    assert rival.promised
    accepted = job_accept_offer(job=declined, actor=declined.owner)
    assert accepted.promised
    assert accepted.deadline_at == offer.deadline_at
    settle(owned)
    for job in (accepted, rival):
        job.refresh_from_db()
        assert not job.at_risk


@pytest.mark.parametrize("is_declined", [False, True])
def test_declined_offer_frees_its_held_gpus(
    declined: Job, owned: SimulatedAgent, submit: Submit, clock: SimulatedTime, is_declined: bool
) -> None:
    if is_declined:
        job_decline_offer(job=declined, actor=declined.owner)
    rival = submit(seconds=WORK_SECONDS + MORE_SECONDS, iterations=3400)
    settle(owned)
    rival.refresh_from_db()
    assert rival.promised == is_declined


def test_job_declined_beside_an_open_offer_names_that_offer(declined: Job, submit: Submit) -> None:
    other = submit(seconds=10, iterations=3400)
    run_planner("test")
    other.refresh_from_db()
    assert other.state == JobState.DECLINED
    assert other.verdict is not None
    assert other.verdict["offer"] is None
    assert f"to job {declined.pk}, held until" in other.verdict["no_offer"]


def test_successor_keeps_the_gradient_choices_of_the_declined_job(
    declined: Job, clock: SimulatedTime
) -> None:
    declined.lossy, declined.codecs = Lossy.ALLOWED, ["onebit"]
    declined.save(update_fields=["lossy", "codecs"])
    accepted = job_accept_offer(job=declined, actor=declined.owner)
    assert (accepted.lossy, accepted.codecs) == (Lossy.ALLOWED, ["onebit"])


def test_facts_changed_during_an_acceptance_are_checked_again(
    declined: Job,
    owned: SimulatedAgent,
    submit: Submit,
    clock: SimulatedTime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from scheduling.services.requests import accepting

    calls = 0
    real = accepting._sooner

    def with_a_newcomer(job: Job) -> accepting.OfferTerms | None:
        nonlocal calls
        calls += 1
        terms = real(job)
        if calls == 1:
            submit(seconds=56, iterations=34 * 50)
            settle(owned)
        return terms

    monkeypatch.setattr(accepting, "_sooner", with_a_newcomer)
    offer = Offer.objects.get(job=declined, state=OfferState.OPEN)
    accepted = job_accept_offer(job=declined, actor=declined.owner)
    assert calls == 2
    assert accepted.deadline_at == offer.deadline_at, "the GPUs found free at first were promised in between"


def test_what_if_offers_what_could_be_promised_at_once(declined: Job, clock: SimulatedTime) -> None:
    job_hold = Offer.objects.get(job=declined)
    job_hold.state = OfferState.EXPIRED
    job_hold.save()
    answer = job_what_if(project=declined.project, request=request_of(declined)).as_json()
    assert answer["decision"] == "declined"
    deadline_at = answer["offer"]["deadline_at"]
    latest = timezone.now() + timedelta(seconds=WORK_SECONDS + MORE_SECONDS)
    assert deadline_at < latest.isoformat()
    assert answer["offer"]["deadline_seconds"] <= WORK_SECONDS + MORE_SECONDS
    assert Cluster.objects.get().offer_hold_seconds == HOLD_SECONDS
