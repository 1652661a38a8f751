"""Gradient plans in use are judged by measurements, given up, and renewed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from cluster.models import Server
from scheduling.choices import Purpose
from scheduling.models import Generation, GradientPlan, GradientProfile, Job, JobMetric
from scheduling.services.generations.failure_charges import (
    DEFAULT_PAUSE_SECONDS,
    FailureCharges,
    fallback_seconds,
)
from scheduling.services.generations.plan_watch import MINIMUM_SAMPLES, watch_plans
from scheduling.services.gradients.gradient_plans import make_plans
from tests.control_plane.agent_api import busy_server, event, send
from tests.control_plane.gradients.test_gradient_plans import (
    USUAL,
    measured_job,
    on_family,
    submission_curve,
    successor,
)
from tests.factories import JobMetricFactory

pytestmark = [pytest.mark.django_db, pytest.mark.urls("config.urls_agents")]


@pytest.fixture
def servers() -> tuple[Server, Server]:
    return busy_server("node-a"), busy_server("node-b")


def running(
    servers: tuple[Server, Server],
    rate: float,
    *,
    dense: float,
    sparse: Sequence[dict[str, Any]] = (),
    **fields: Any,
) -> Generation:
    """Return a job under a lossy plan on two GPUs with this recent rate in iterations per second."""
    job, generation = measured_job(servers[0], 1, 2, sparse=list(sparse))
    make_plans(9)
    generation.delete()
    without = submission_curve(job)
    without.levels.all().delete()
    without.levels.create(gpus=2, iterations_per_second=dense)
    on_family(job, "lossy")
    job.curve.levels.all().delete()  # type: ignore[union-attr]
    job.curve.levels.create(gpus=2, iterations_per_second=10.0)  # type: ignore[union-attr]
    created = successor(job, (servers[0], 1), (servers[0], 2), **fields)
    Generation.objects.filter(pk=created.pk).update(
        state="live", goal="train", live_at=timezone.now() - timedelta(seconds=30), held_at=timezone.now()
    )
    created.assignments.update(state="held")
    created.refresh_from_db()
    JobMetricFactory.create_batch(
        MINIMUM_SAMPLES, job=job, generation=created.number, iterations_per_second=rate
    )
    return created


def window(generation: Generation, **fields: Any) -> dict[str, Any]:
    """Return rank 0's report on its plan."""
    head = event(generation, "first_iteration")
    plan = generation.runtime_plan["digest"]
    body = {"plan": plan, "iteration": 80, "iteration_seconds": [0.1] * 60, **fields}
    return {**head, "kind": "communication_window", **body}


def test_plan_slower_than_none_is_given_up_and_its_job_continues(
    servers: tuple[Server, Server],
) -> None:
    generation = running(servers, 4.0, dense=5.0)
    assert watch_plans() == 1
    plan = GradientPlan.objects.get(pk=generation.communication["plan"])
    assert plan.given_up == "4 iterations a second were measured under it, and 5 without any plan"
    assert plan.measured_seconds == pytest.approx(0.25)
    new = generation.job.generations.get(number=generation.number + 1)
    assert [item["kind"] for item in new.runtime_plan["synchronisers"]] == USUAL
    assert (new.runtime_plan["family"], new.communication) == ("lossy", {})
    gpus = [
        list(item.assignments.order_by("rank").values_list("gpu", flat=True)) for item in (generation, new)
    ]
    assert gpus[0] == gpus[1]
    assert "4 iterations a second" in generation.job.events.get(kind="plan_given_up").message
    assert watch_plans() == 0


@pytest.mark.parametrize("now", ["dense", "given up"])
def test_a_job_leaves_a_losing_plan_that_others_no_longer_follow(
    servers: tuple[Server, Server], now: str
) -> None:
    """Its successor in the same row is no plan, or another job has given it up."""
    generation = running(servers, 4.0, dense=5.0)
    change = {"planner": "dense", "made_at": timezone.now() + timedelta(seconds=5)}
    GradientPlan.objects.filter(pk=generation.communication["plan"]).update(
        **change if now == "dense" else {"given_up": "slower"}
    )
    assert watch_plans() == 1
    assert generation.job.generations.get(number=generation.number + 1).communication == {}
    assert watch_plans() == 0


def test_slow_iterations_are_judged_over_more_than_a_minute(servers: tuple[Server, Server]) -> None:
    generation = running(servers, 4.0, dense=5.0)
    now = timezone.now()
    Generation.objects.filter(pk=generation.pk).update(live_at=now - timedelta(minutes=10))
    for number, metric in enumerate(JobMetric.objects.order_by("-iteration")):
        metric.measured_at = now - timedelta(seconds=20 * number)
        metric.save()
    assert watch_plans() == 1


def test_plan_faster_than_none_is_kept_at_any_prediction(
    servers: tuple[Server, Server],
) -> None:
    generation = running(servers, 6.0, dense=5.0)
    send(servers[0], {"events": [window(generation, iteration_seconds=[9.0] * 60)]})
    assert watch_plans() == 0
    assert generation.job.generations.count() == 1


def test_a_plan_is_given_up_when_exchanges_become_uneven(servers: tuple[Server, Server]) -> None:
    generation = running(servers, 6.0, dense=5.0)
    send(servers[0], {"events": [window(generation, push_imbalance=1.3)]})
    assert watch_plans() == 1
    assert "1.30 times the mean" in GradientPlan.objects.exclude(given_up="").get().given_up


def test_a_plan_is_judged_by_its_own_prediction(servers: tuple[Server, Server]) -> None:
    """A successor for slower links predicts longer iterations and is not given up."""
    generation = running(servers, 6.0, dense=7.0)
    own = generation.communication["chosen"]
    slower = {**own, "predicted": {**own["predicted"], "iteration_seconds": 9.0}}
    GradientPlan.objects.filter(pk=generation.communication["plan"]).update(
        chosen=slower, made_at=timezone.now() + timedelta(seconds=5)
    )
    JobMetric.objects.all().delete()
    send(servers[0], {"events": [window(generation, iteration_seconds=[9.0] * 60)]})
    assert watch_plans() == 1
    assert "iterations in a row took more than" in generation.job.events.get(kind="plan_given_up").message
    assert not GradientPlan.objects.exclude(given_up="").exists()


@pytest.mark.parametrize(
    ("density", "state", "moved"),
    [(0.0115, "live", False), (0.02, "live", True), (0.005, "live", True), (0.02, "retired", False)],
)
def test_plans_are_renewed_where_densities_drift(
    servers: tuple[Server, Server], density: float, state: str, moved: bool
) -> None:
    sums = [{"workers": 2, "density": 0.015}]
    table = {"name": "layer3.weight", "width": 64, "density": 0.01, "beta": 0.6, "skew": 0.1, "sums": sums}
    generation = running(servers, 6.0, dense=5.0, sparse=[table])
    Generation.objects.filter(pk=generation.pk).update(state=state)
    densities = [{"name": "layer3.weight", "density": density}, {"name": "no such", "density": 0.5}]
    send(servers[0], {"events": [window(generation, densities=densities)]})
    profile = GradientProfile.objects.get(gpus=2)
    assert profile.content["sparse"][0]["density"] == (density if moved else 0.01)
    assert profile.content["sparse"][0]["sums"][0]["density"] == (1.5 * density if moved else 0.015)
    assert make_plans(9) == int(moved)


def test_a_plan_that_a_promise_needs_is_kept(servers: tuple[Server, Server]) -> None:
    """Without the plan the job would be slower than its promise requires."""
    generation = running(servers, 9.9, dense=5.0)
    Job.objects.filter(pk=generation.job_id).update(
        promised=True, service_class="slo", deadline_at=timezone.now() + timedelta(hours=1)
    )
    send(servers[0], {"events": [window(generation, push_imbalance=1.3)]})
    assert watch_plans() == 0


def test_windows_of_other_plans_are_ignored(servers: tuple[Server, Server]) -> None:
    generation = running(servers, 6.0, dense=5.0)
    send(servers[0], {"events": [window(generation, push_imbalance=1.3, plan="0" * 64)]})
    generation.refresh_from_db()
    assert generation.communication_window == {}


def test_level_measured_slower_than_without_a_plan_ends_the_plan(
    servers: tuple[Server, Server],
) -> None:
    generation = running(servers, 6.0, dense=5.0, purpose=Purpose.PROFILING, profile={"levels": [1, 2]})
    level = event(generation, "profile_level", gpus=2, iterations_per_second=6.0)
    send(servers[0], {"events": [level]})
    assert not GradientPlan.objects.exclude(given_up="").exists()
    slower = {**level, "iterations_per_second": 4.0}
    send(servers[0], {"events": [{**slower, "id": str(uuid4()), "overrun": 0.06}]})
    assert not GradientPlan.objects.exclude(given_up="").exists(), "a void level decides nothing"
    send(servers[0], {"events": [{**slower, "id": str(uuid4()), "overrun": 0.04}]})
    (lost,) = GradientPlan.objects.exclude(given_up="")
    assert (lost.family, lost.profile.gpus) == ("lossy", 2)
    # The measured level stays in the curve: without the plan the job is faster than that.
    assert generation.job.curve.levels.get(gpus=2).iterations_per_second == 4.0  # type: ignore[union-attr]


def test_a_level_does_not_end_a_plan_that_was_made_meanwhile(servers: tuple[Server, Server]) -> None:
    generation = running(servers, 6.0, dense=5.0, purpose=Purpose.PROFILING, profile={"levels": [1, 2]})
    GradientPlan.objects.update(made_at=timezone.now() + timedelta(seconds=1))
    level = event(generation, "profile_level", gpus=2, iterations_per_second=4.0)
    send(servers[0], {"events": [level]})
    assert not GradientPlan.objects.exclude(given_up="", measured_seconds=None).exists()


def test_a_plan_that_workers_cannot_follow_is_not_tried_again(servers: tuple[Server, Server]) -> None:
    generation = running(servers, 6.0, dense=5.0)
    failed = event(generation, "failed", reason="plan_refused", message="not made for these gradients")
    send(servers[0], {"events": [failed]})
    assert "not made for these" in GradientPlan.objects.exclude(given_up="").get().given_up


def test_start_failure_for_another_reason_keeps_the_plan(
    servers: tuple[Server, Server],
) -> None:
    generation = running(servers, 6.0, dense=5.0)
    failed = event(generation, "failed", reason="start_failed", message="the communication plan was well")
    send(servers[0], {"events": [failed]})
    assert not GradientPlan.objects.exclude(given_up="").exists()


def test_a_promise_on_a_plan_keeps_the_time_to_give_it_up(servers: tuple[Server, Server]) -> None:
    job, _ = measured_job(servers[0], 1, 2)
    charges = FailureCharges(job.cluster)
    without = charges.asked_for(None, job.curve).slack_seconds
    on_family(job, "lossy")
    with_plan = FailureCharges(job.cluster).asked_for(None, job.curve).slack_seconds
    assert with_plan - without == pytest.approx(fallback_seconds(DEFAULT_PAUSE_SECONDS))
