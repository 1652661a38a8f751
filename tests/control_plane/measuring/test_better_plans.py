"""For a job that started without a plan, the curve of its plan family is measured, and adopted if it is
faster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from django.utils import timezone

from cluster.models import Cluster, Server
from scheduling.choices import CurveState, Purpose
from scheduling.models import CurveLevel, Generation, GradientPlan, Job, ScalingCurve
from scheduling.services.gradients.gradient_plans import make_plans
from scheduling.services.measuring import better_plans
from scheduling.services.measuring.better_plans import (
    follow_newer_plans,
    measurement_of_better_plan,
    take_up_better_plans,
)
from scheduling.services.measuring.profiling import settle_broken_off, start_measurement
from scheduling.services.measuring.room_to_measure import RoomToMeasure
from scheduling.services.snapshots.snapshots import cluster_policy
from tests.control_plane.agent_api import busy_server, event, send, training_job
from tests.control_plane.gradients.test_gradient_plans import measured_job, submission_curve, successor
from tests.control_plane.simulated_time import SimulatedTime

pytestmark = [pytest.mark.django_db, pytest.mark.urls("config.urls_agents")]

DENSE = {1: 3.0, 2: 5.0}
LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def servers() -> tuple[Server, Server]:
    return busy_server("node-a"), busy_server("node-b")


def training_without_plan(servers: tuple[Server, Server], **fields: Any) -> tuple[Job, Generation]:
    """Return a job on two GPUs that allows lossy codecs and follows no plan, though a plan is predicted to be
    faster."""
    job, profiling = measured_job(servers[0], 1, 2)
    profiling.delete()
    make_plans(9)
    Job.objects.filter(pk=job.pk).update(lossy="allowed", **fields)
    curve = submission_curve(job)
    set_levels(curve, DENSE)
    Job.objects.filter(pk=job.pk).update(curve=curve)
    job = Job.objects.select_related("curve", "function_version", "project").get(pk=job.pk)
    generation = successor(job, (servers[0], 1), (servers[0], 2))
    Generation.objects.filter(pk=generation.pk).update(state="live", goal="train", live_at=timezone.now())
    generation.assignments.update(state="held")
    return job, generation


def set_levels(curve: ScalingCurve, rates: dict[int, float], state: str = CurveState.READY) -> None:
    curve.levels.all().delete()
    for gpus, rate in rates.items():
        curve.levels.create(gpus=gpus, iterations_per_second=rate, pause_seconds=2.0)
    ScalingCurve.objects.filter(pk=curve.pk).update(state=state, complete=True)


def next_measurement(servers: tuple[Server, Server]) -> Any:
    cluster = Cluster.objects.get(pk=servers[0].cluster_id)
    return measurement_of_better_plan(RoomToMeasure(cluster, cluster_policy(cluster), timezone.now()))


def test_the_familys_curve_is_measured_beside_the_job_under_its_plans(servers: tuple[Server, Server]) -> None:
    job, training = training_without_plan(servers)
    measurement = next_measurement(servers)
    assert measurement is not None
    assert (measurement.job.pk, measurement.curve.plan_family) == (job.pk, "lossy")
    assert measurement.displaced == ()
    generation = start_measurement(measurement, Cluster.objects.get(pk=job.cluster_id), epoch=1)
    assert generation is not None
    assert generation.purpose == Purpose.PROFILING
    assert generation.curve == measurement.curve
    assert generation.runtime_plan["family"] == "lossy"
    assert "2" in generation.runtime_plan["at_levels"]
    gpus = set(training.assignments.values_list("gpu", flat=True))
    assert gpus.isdisjoint(generation.assignments.values_list("gpu", flat=True))
    assert next_measurement(servers) is None, "one measurement at a time"
    Generation.objects.filter(pk=generation.pk).update(held_at=timezone.now(), state="live")
    generation.assignments.update(state="held")
    generation.refresh_from_db()
    head = event(generation, "first_iteration")
    level = {
        **head, "kind": "profile_level", "gpus": 2, "iterations_per_second": 8.0, "train_seconds": 0.1,
        "pause_seconds": 1.0, "memory_bytes": 1, "host_memory_bytes": 1, "state_bytes": 1,
    }  # fmt: skip
    sender = generation.assignments.get(rank=0).gpu.server
    assert send(sender, {"events": [level]}).json()["refused"] == []
    assert measurement.curve.levels.get(gpus=2).iterations_per_second == 8.0
    assert job.curve is not None
    assert job.curve.levels.get(gpus=2).iterations_per_second == 5.0


@pytest.mark.parametrize("rates", [{}, {1: 3.0}], ids=["nothing was measured", "one level was"])
def test_a_familys_measurement_that_ends_early_is_settled(
    servers: tuple[Server, Server], rates: dict[int, float]
) -> None:
    job, _ = training_without_plan(servers)
    measurement = next_measurement(servers)
    cluster = Cluster.objects.get(pk=job.cluster_id)
    generation = start_measurement(measurement, cluster, epoch=1)
    assert generation is not None
    set_levels(measurement.curve, rates, CurveState.MEASURING)
    assert settle_broken_off(cluster) == 0, "the measurement is still running"
    Generation.objects.filter(pk=generation.pk).update(state="retired", retired_at=timezone.now())
    assert settle_broken_off(cluster) == 1
    measurement.curve.refresh_from_db()
    assert measurement.curve.state == (CurveState.READY if rates else CurveState.UNKNOWN)


def test_a_job_with_a_promise_is_left_as_it_is(servers: tuple[Server, Server]) -> None:
    job, _ = training_without_plan(servers, promised=True, deadline_at=LATER)
    assert next_measurement(servers) is None
    set_levels(submission_curve(job, lossy="allowed"), {1: 3.0, 2: 9.0})
    assert take_up_better_plans() == 0
    assert Job.objects.get(pk=job.pk).curve == job.curve


def test_nothing_is_measured_for_a_plan_that_was_given_up(servers: tuple[Server, Server]) -> None:
    training_without_plan(servers)
    GradientPlan.objects.update(given_up="it lost")
    assert next_measurement(servers) is None


def test_job_adopts_a_plan_that_was_measured_as_faster(servers: tuple[Server, Server]) -> None:
    job, training = training_without_plan(servers)
    curve = submission_curve(job, lossy="allowed")
    assert take_up_better_plans() == 0, "the plan is not measured yet"
    set_levels(curve, {1: 3.0, 2: 8.0})
    assert take_up_better_plans() == 1
    job.refresh_from_db()
    assert job.curve == curve
    new = job.generations.get(number=training.number + 1)
    assert new.runtime_plan["family"] == "lossy"
    assert new.communication["plan"]
    gpus = [
        list(generation.assignments.order_by("rank").values_list("gpu", flat=True))
        for generation in (training, new)
    ]
    assert gpus[0] == gpus[1]
    assert take_up_better_plans() == 0


@pytest.mark.parametrize(
    "rates",
    [{2: 8.0}, {1: 2.0, 2: 8.0}, {1: 3.0, 2: 5.1}],
    ids=["a level is missing", "a level is slower", "no level is faster"],
)
def test_a_curve_that_is_not_faster_on_all_levels_is_not_adopted(
    servers: tuple[Server, Server], rates: dict[int, float]
) -> None:
    job, _ = training_without_plan(servers)
    set_levels(submission_curve(job, lossy="allowed"), rates)
    assert take_up_better_plans() == 0
    assert Job.objects.get(pk=job.pk).curve == job.curve


@pytest.mark.parametrize("family", ["dense", "lossy"])
@pytest.mark.parametrize(("overrun", "adopted"), [(0.06, 0), (0.04, 1)])
def test_levels_that_are_void_decide_nothing(
    servers: tuple[Server, Server], family: str, overrun: float, adopted: int
) -> None:
    """On a machine too slow for the emulated devices, any curve may appear to be faster."""
    job, _ = training_without_plan(servers)
    curve = submission_curve(job, lossy="allowed")
    set_levels(curve, {1: 3.0, 2: 8.0})
    CurveLevel.objects.filter(curve__plan_family=family, gpus=1).update(overrun=overrun)
    assert take_up_better_plans() == adopted


def test_a_job_that_is_almost_done_is_not_restarted_for_a_plan(servers: tuple[Server, Server]) -> None:
    job, training = training_without_plan(servers)
    Job.objects.filter(pk=job.pk).update(iterations_done=job.max_iterations - 10)
    curve = submission_curve(job, lossy="allowed")
    set_levels(curve, {1: 3.0, 2: 8.0})
    assert take_up_better_plans() == 1
    job.refresh_from_db()
    assert job.curve == curve
    assert job.last_generation == training.number


def training_under_plan(
    servers: tuple[Server, Server], seconds: float, **fields: Any
) -> tuple[Job, Generation]:
    """Return a job that trains under a plan on two GPUs, with this iteration time."""
    job, training = training_without_plan(servers, **fields)
    curve = submission_curve(job, lossy="allowed")
    set_levels(curve, {1: 3.0, 2: 8.0})
    training.delete()
    Job.objects.filter(pk=job.pk).update(curve=curve)
    job.refresh_from_db()
    generation = successor(job, (servers[0], 1), (servers[0], 2))
    Generation.objects.filter(pk=generation.pk).update(
        state="live", goal="train", live_at=timezone.now(),
        communication_window={"iteration_seconds": [seconds] * 9},
    )  # fmt: skip
    generation.assignments.update(state="held")
    return job, Generation.objects.get(pk=generation.pk)


def renew_plan(generation: Generation, *, other: bool = True) -> GradientPlan:
    """Renew the plan, with other instructions for ranks if ``other``."""
    plan = GradientPlan.objects.get(pk=generation.communication["plan"])
    plan.made_at = timezone.now()
    if other:
        plan.messages = {**plan.messages, "gradients": plan.messages["gradients"][::-1]}
    plan.save()
    return plan


@pytest.mark.parametrize(
    ("seconds", "other", "fields", "renewed"),
    [
        (9.0, True, {}, 1),
        (9.0, False, {}, 0),
        (1e-9, True, {}, 0),
        (9.0, True, {"promised": True, "deadline_at": LATER}, 0),
    ],
    ids=["other instructions", "same instructions", "it would save nothing", "promised"],
)
def test_renewed_plan_is_followed_where_it_pays(
    servers: tuple[Server, Server],
    clock: SimulatedTime,
    seconds: float,
    other: bool,
    fields: dict[str, Any],
    renewed: int,
) -> None:
    job, generation = training_under_plan(servers, seconds, **fields)
    assert follow_newer_plans() == 0, "the job follows the newest plan"
    clock.turn(1.0)
    renew_plan(generation, other=other)
    assert follow_newer_plans() == renewed
    assert job.generations.count() == 1 + renewed
    assert follow_newer_plans() == 0


def test_better_plan_check_without_candidates_takes_one_query(
    servers: tuple[Server, Server], django_assert_num_queries: Any
) -> None:
    room = cast(RoomToMeasure, SimpleNamespace(cluster=servers[0].cluster))
    with django_assert_num_queries(1):
        assert measurement_of_better_plan(room) is None
    with django_assert_num_queries(1):
        assert take_up_better_plans() == 0


def test_jobs_without_a_winning_plan_do_not_hide_later_ones(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(better_plans, "MOST_LOOKED_AT", 1)
    job, _ = training_without_plan(servers)
    earlier, _ = training_job(busy_server("node-c"))
    earlier.hyperparameters = {**job.hyperparameters, "hidden": 512}
    earlier.submitted_at = job.submitted_at - timedelta(hours=1)
    earlier.curve = submission_curve(earlier)
    earlier.save()
    set_levels(earlier.curve, DENSE)
    measurement = next_measurement(servers)
    assert measurement is not None
    assert measurement.job == job


def test_jobs_with_the_newest_plan_do_not_hide_later_ones(
    servers: tuple[Server, Server], clock: SimulatedTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(better_plans, "MOST_LOOKED_AT", 1)
    _, first = training_job(busy_server("node-c"))
    _, generation = training_under_plan(servers, 9.0)
    told = {"plan": generation.communication["plan"], "made_at": LATER.isoformat()}
    Generation.objects.filter(pk=first.pk).update(communication=told, state="live", goal="train")
    clock.turn(1.0)
    renew_plan(generation)
    assert follow_newer_plans() == 1
