"""Bursts of newcomers are decided in several commits, as if one by one, and slots are kept."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from cluster.models import Cluster
from scheduling.choices import Goal, JobState, Purpose
from scheduling.core.question.snapshot import Snapshot
from scheduling.models import Decision, Generation, Job, JobEvent, Offer
from scheduling.policies.punctual import Punctual
from scheduling.services.planning import planning
from scheduling.services.planning.planning import newcomers_wait, run_planner
from scheduling.services.requests.jobs import job_cancel
from scheduling.services.rows.plan_json import plan_from_json
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import KIND, SimulatedAgent, settle
from tests.control_plane.simulated_time import let_pass
from tests.factories import FunctionVersionFactory, JobFactory, ScalingCurveFactory

pytestmark = pytest.mark.django_db(transaction=True)

BURST = 120
TINY = 60_000
"""Limit of a pass's work that suffices for about ten newcomers."""


@pytest.fixture
def slots(cluster: Cluster) -> Cluster:
    """Return a cluster in a slot that outlasts the test."""
    cluster.slot_seconds = 30.0
    cluster.save()
    SimulatedAgent.enrol("node-1", 8, SPEED)
    run_planner("the first look")
    Cluster.objects.update(next_slot_at=timezone.now() + timedelta(minutes=10), next_wake_at=None)
    return cluster


@pytest.fixture
def burst(slots: Cluster) -> Callable[..., list[Job]]:
    """Submit newcomers with a known curve at one time to one project."""

    def submitted(count: int = BURST, *, at: datetime | None = None, **fields: Any) -> list[Job]:
        at = at or timezone.now()
        curve = ScalingCurveFactory.create(gpu_kind=KIND, levels=SPEED)
        first = JobFactory.create(cluster=slots, curve=curve, state=JobState.CANCELLED)
        common = {
            "cluster": slots,
            "curve": curve,
            "owner": first.owner,
            "function_version": first.function_version,
            "project": first.project,
        }
        jobs = Job.objects.bulk_create(
            JobFactory.build(
                **common | fields | mixed(number, at), submitted_at=at + timedelta(microseconds=number)
            )
            for number in range(count)
        )
        let_pass(0.01)
        return jobs

    def mixed(number: int, at: datetime) -> dict[str, Any]:
        """Return fields of jobs with hard, soft and no deadlines: feasible, tight and impossible."""
        service_class = ("slo", "slo", "soft", "best_effort")[number % 4]
        seconds = (120, 700, 4000, 20, 90_000)[number % 5]
        deadline = None if service_class == "best_effort" else at + timedelta(seconds=seconds)
        iterations = (300, 6000, 40_000)[number % 3]
        return {"service_class": service_class, "deadline_at": deadline, "max_iterations": iterations}

    return submitted


def verdicts_of(jobs: list[Job]) -> list[tuple[str, bool, str]]:
    rows = {job.pk: job for job in Job.objects.filter(pk__in=[job.pk for job in jobs])}
    return [
        (rows[job.pk].state, rows[job.pk].promised, (rows[job.pk].verdict or {})["reason_code"])
        for job in jobs
    ]


def decided_in_passes(most: int = 300) -> int:
    for number in range(most):
        if not newcomers_wait(Cluster.objects.get()):
            return number
        run_planner("burst")
    raise AssertionError(f"newcomers still wait after {most} passes")


def test_burst_is_decided_in_several_commits_in_submission_order(
    burst: Callable[..., list[Job]],
) -> None:
    jobs = burst()
    with patch.object(planning, "MOST_WORK", TINY):
        run_planner("burst")
        decided = [job.pk for job in jobs if Job.objects.get(pk=job.pk).decided_at is not None]
        assert 0 < len(decided) < BURST, "a pass commits what it has decided and leaves the rest"
        assert decided == [job.pk for job in jobs[: len(decided)]]
        assert decided_in_passes() >= 4
    assert not Job.objects.filter(decided_at=None).exclude(state=JobState.CANCELLED).exists()
    lengths = Decision.objects.filter(kind=Decision.Kind.ADMISSION).values_list("pass_seconds", flat=True)
    assert all(length is not None and length > 0 for length in lengths)


def test_steady_submissions_do_not_prevent_measurements(
    owned: SimulatedAgent, submit: Callable[..., Job]
) -> None:
    measured_job = submit("best_effort", iterations=10)
    settle(owned)
    assert measured_job.curve is not None
    unknown = submit(
        "best_effort",
        iterations=10,
        version=FunctionVersionFactory.create(function__project=measured_job.project),
        measured=False,
    )
    submit("best_effort", iterations=10)
    decide = planning._decide

    def while_another_comes(*arguments: Any, **options: Any) -> Any:
        decided = decide(*arguments, **options)
        let_pass(0.01)
        submit("best_effort", iterations=10)
        return decided

    with patch.object(planning, "_decide", while_another_comes):
        for _ in range(10):
            run_planner("test")
            assert newcomers_wait(Cluster.objects.get()), "a newcomer waits after every pass"
            owned.obey()
            owned.report()
    assert unknown.generations.filter(purpose=Purpose.PROFILING).exists()


def test_verdicts_of_a_burst_are_those_of_deciding_one_by_one(burst: Callable[..., list[Job]]) -> None:
    now = timezone.now()
    with patch("scheduling.services.planning.planning.timezone.now", return_value=now):
        jobs = burst(20, at=now)
        with patch.object(planning, "MOST_WORK", 1):
            assert decided_in_passes() >= 20 // 2
        one_by_one = verdicts_of(jobs)
        Job.objects.all().delete()
        jobs = burst(20, at=now)
        with patch.object(planning, "MOST_WORK", TINY):
            assert decided_in_passes() < 20 // 2
        assert verdicts_of(jobs) == one_by_one
    codes = {code for _, _, code in one_by_one}
    assert codes >= {"fits", "best_effort", "soft_unpromised", "too_slow_alone"}


def test_slots_are_kept_while_newcomers_wait(burst: Callable[..., list[Job]], slots: Cluster) -> None:
    burst(60)
    with patch.object(planning, "MOST_WORK", TINY):
        run_planner("burst")
        assert newcomers_wait(slots)
        Cluster.objects.update(next_slot_at=timezone.now() - timedelta(seconds=1))
        run_planner("the slot ends")
    latest = Decision.objects.latest("id")
    assert latest.kind == Decision.Kind.REALLOCATION
    assert latest.summary["changes"], "promised jobs start at the slot's end"
    assert latest.summary["verdicts"], "and newcomers are still decided"
    assert newcomers_wait(slots)


def test_submission_during_a_pass_does_not_restart_it(
    burst: Callable[..., list[Job]], slots: Cluster, submit: Callable[..., Job]
) -> None:
    version = Cluster.objects.get().planning_version
    job = submit(seconds=600)
    assert Cluster.objects.get().planning_version == version
    job_cancel(job=job, actor=job.owner)
    assert Cluster.objects.get().planning_version > version, "a cancelled job might have been promised"


def test_offers_are_made_once_no_newcomer_waits(burst: Callable[..., list[Job]]) -> None:
    jobs = burst(60)
    with patch.object(planning, "MOST_WORK", TINY):
        run_planner("burst")
        assert Job.objects.filter(state=JobState.DECLINED).exists()
        assert not Offer.objects.exists(), "an offer would take room from waiting newcomers"
        decided_in_passes()
        run_planner("burst")
    offer = Offer.objects.get()
    declined = [job.pk for job in jobs if Job.objects.get(pk=job.pk).state == JobState.DECLINED]
    assert offer.job_id in declined
    verdict = Job.objects.get(pk=offer.job_id).verdict
    assert verdict is not None
    assert verdict["offer"] is not None
    assert not Job.objects.filter(awaits_offer=True).exists(), "a project has one live offer at a time"
    others = Job.objects.filter(pk__in=set(declined) - {offer.job_id})
    assert others
    assert all(f"to job {offer.job_id}, held until" in (job.verdict or {})["no_offer"] for job in others)


def test_a_burst_takes_no_query_for_each_newcomer(burst: Callable[..., list[Job]]) -> None:
    def queries(count: int) -> int:
        burst(count)
        with CaptureQueriesContext(connection) as captured:
            run_planner("burst")
        assert not newcomers_wait(Cluster.objects.get())
        return len(captured)

    few, many = queries(10), queries(60)
    assert many <= few + 10


def test_starting_many_jobs_takes_no_query_for_each(slots: Cluster) -> None:
    """A small job on each of eight GPUs starts in one pass with as many queries as one job; generations are
    created together."""

    def queries(count: int) -> int:
        curve = ScalingCurveFactory.create(gpu_kind=KIND, levels={1: 10.0})
        for _ in range(count):
            JobFactory.create(
                cluster=slots, curve=curve, service_class="slo", max_iterations=100,
                deadline_at=timezone.now() + timedelta(seconds=40),
            )  # fmt: skip
        Cluster.objects.update(next_slot_at=timezone.now() - timedelta(seconds=1))
        with CaptureQueriesContext(connection) as captured:
            run_planner("the slot ends")
        started = Generation.objects.filter(job__curve=curve)
        assert started.count() == started.filter(held_at__isnull=False, goal=Goal.TRAIN).count() == count
        assert len(set(started.values_list("master_port", flat=True))) == count
        return len(captured)

    few, many = queries(1), queries(7)
    # Only the rows of the servers on which jobs start are locked: here there is one.
    assert many <= few + 5


def test_refusals_by_one_kind_of_gpu_take_no_query_for_each(burst: Callable[..., list[Job]]) -> None:
    """Jobs that one kind refuses, each with its own curve, are tried together on the other."""
    SimulatedAgent.enrol("other", 2, SPEED, kind="emulated-other")

    def queries(count: int) -> int:
        jobs = burst(count, service_class="slo", deadline_at=timezone.now() + timedelta(hours=1))
        for number, job in enumerate(jobs):
            job.curve = ScalingCurveFactory.create(gpu_kind=KIND, levels=SPEED)
            job.deadline_at, job.service_class = timezone.now() + timedelta(hours=1), "slo"
            job.hyperparameters = {"global_batch_size": 64, "number": f"{count}-{number}"}
            job.max_iterations = 10**9
            job.save()
        with CaptureQueriesContext(connection) as captured:
            run_planner("burst")
        tried = Job.objects.filter(pk__in=[job.pk for job in jobs], curve__gpu_kind="emulated-other")
        assert tried.count() == count
        assert tried.values("curve").distinct().count() == count
        assert JobEvent.objects.filter(job__in=tried, kind="asked_elsewhere").count() == count
        return len(captured)

    few, many = queries(3), queries(20)
    assert many <= few + 5


def test_kinds_of_gpu_share_the_work_of_a_pass(burst: Callable[..., list[Job]]) -> None:
    """Otherwise a pass over bursts on four kinds would take four times its limit."""
    SimulatedAgent.enrol("other", 2, SPEED, kind="emulated-other")
    jobs = burst(6)
    for job in jobs[::2]:
        job.curve = ScalingCurveFactory.create(gpu_kind="emulated-other", levels=SPEED)
        job.save()
    limits: list[int] = []

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(policy: Punctual, snapshot: Snapshot) -> Any:
            if any(job.newcomer for job in snapshot.jobs):
                limits.append(snapshot.settings.most_work or 0)
            return method(policy, snapshot)

        return noted

    def limits_of_a_pass() -> list[int]:
        limits.clear()
        run_planner("burst")
        return list(limits)

    with (
        patch.object(planning, "BESIDE_REALLOCATION", 1.0),
        patch.object(planning, "INTERPRETER_SLOWNESS", 1),
        patch.object(Punctual, "admit", noting(Punctual.admit)),
        patch.object(Punctual, "replan", noting(Punctual.replan)),
    ):
        assert limits_of_a_pass() == 2 * [planning.MOST_WORK // 2]
        burst(2)
        assert limits_of_a_pass() == [planning.MOST_WORK]


def test_waiting_for_more_levels_takes_no_query_for_each(burst: Callable[..., list[Job]]) -> None:
    """The newcomers need levels that were never measured, each on its own curve."""

    def queries(count: int) -> int:
        jobs = burst(count)
        for job in jobs:
            job.curve = ScalingCurveFactory.create(gpu_kind=KIND, levels={1: 10.0}, complete=False)
            job.deadline_at, job.service_class = timezone.now() + timedelta(hours=1), "slo"
            job.max_iterations = 10**6
            job.save()
        with (
            CaptureQueriesContext(connection) as captured,
            patch.object(planning, "next_measurement", return_value=None),
        ):
            run_planner("burst")
        waiting = Job.objects.filter(pk__in=[job.pk for job in jobs], awaits_levels=True)
        assert waiting.count() == count
        assert JobEvent.objects.filter(job__in=waiting, kind="awaits_levels").count() == count
        return len(captured)

    few, many = queries(3), queries(20)
    assert many <= few + 5


def test_the_cluster_is_divided_once_a_slot_while_a_burst_waits(
    burst: Callable[..., list[Job]], slots: Cluster
) -> None:
    """Without moves no slot begins, and every pass could spend three quarters of its work on dividing."""
    burst(120)
    now = timezone.now()
    Cluster.objects.update(next_slot_at=None, replanned_at=now - timedelta(seconds=slots.slot_seconds - 5))
    assert not planning.reallocation_due(Cluster.objects.get(), now)
    assert planning.reallocation_due(Cluster.objects.get(), now + timedelta(seconds=5))
    Job.objects.filter(pk__in=list(Job.objects.values_list("pk", flat=True)[: 120 - 10])).delete()
    assert planning.reallocation_due(Cluster.objects.get(), now), "a few newcomers start at once"


def test_newcomers_of_a_burst_get_no_time_before_the_next_division(
    burst: Callable[..., list[Job]], slots: Cluster
) -> None:
    """A later pass must not find their plans begun while no GPU is assigned."""
    burst(120)
    divided_at = timezone.now()
    Cluster.objects.update(next_slot_at=None, replanned_at=divided_at)
    with patch.object(planning, "MOST_WORK", TINY):
        for _ in range(2):
            run_planner("burst")
    assert newcomers_wait(slots, planning.A_BURST)
    assert Cluster.objects.get().replanned_at == divided_at
    plans = map(plan_from_json, Job.objects.filter(promised=True).values_list("plan", flat=True))
    begins = [
        next(float(start) for start, gpus in zip(plan.start, plan.gpus, strict=True) if gpus > 0)
        for plan in plans
        if plan is not None
    ]
    assert min(begins) == pytest.approx(divided_at.timestamp() + slots.slot_seconds, abs=1e-3)


def test_paused_newcomer_delays_no_offers(burst: Callable[..., list[Job]], slots: Cluster) -> None:
    """The newcomer gets no verdict until it is resumed; offers and measurements do not wait for it."""
    paused, *others = burst(40)
    Job.objects.filter(pk=paused.pk).update(paused_by_owner=True)
    with patch.object(planning, "MOST_WORK", TINY):
        decided_in_passes()
        run_planner("burst")
    assert not newcomers_wait(slots)
    assert Job.objects.get(pk=paused.pk).decided_at is None
    assert Offer.objects.filter(job__in=others).exists()


def test_a_deadline_beyond_the_horizon_is_not_offered_after_a_burst(burst: Callable[..., list[Job]]) -> None:
    burst(60)
    with (
        patch.object(planning, "MOST_WORK", TINY),
        patch("scheduling.services.requests.offer_search.within_horizon", return_value=False),
    ):
        decided_in_passes()
        for _ in range(3):
            run_planner("burst")
    assert Job.objects.filter(state=JobState.DECLINED).exists()
    assert not Offer.objects.exists()
    assert not Job.objects.filter(awaits_offer=True, state=JobState.DECLINED).exists()
