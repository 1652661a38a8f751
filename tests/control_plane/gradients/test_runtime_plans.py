"""A generation gets a runtime plan; a scaling curve holds measurements under one plan family."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.models import Gpu, Server
from scheduling.choices import CurveState, Purpose
from scheduling.models import Checkpoint, CurveLevel, Generation, ScalingCurve
from scheduling.selectors.agents.desired_state import desired_state
from scheduling.services.generations.generations import begin_training, create_generation
from scheduling.services.generations.recovery_points import start_from_predecessor
from scheduling.services.measuring.curves import MINIMUM_SAMPLES, refine_curves
from scheduling.services.rows.borrowed import curve_made_on, curve_on, curves_on, key_on, measured_curves_on
from tests.control_plane.agent_api import busy_server, event, metric, send, training_job
from tests.factories import ScalingCurveFactory

#: Kinds of synchronisers without a plan.
USUAL = ["expert_parallel", "sparse", "dense"]
pytestmark = [pytest.mark.django_db, pytest.mark.urls("config.urls_agents")]


@pytest.fixture
def servers() -> tuple[Server, Server]:
    return busy_server("node-a"), busy_server("node-b")


def successor(generation: Generation, *gpus: tuple[Server, int], **fields: Any) -> Generation:
    """Create a new generation of the job on these GPUs."""
    rows = [Gpu.objects.get(server=server, index=index) for server, index in gpus]
    created = create_generation(generation.job, rows, epoch=1, reason="test", **fields)
    assert isinstance(created, Generation)
    return created


@pytest.mark.parametrize("purpose", [Purpose.TRAINING, Purpose.PROFILING])
def test_a_plan_is_made_with_the_generation_and_sent_to_every_server(
    servers: tuple[Server, Server], purpose: Purpose
) -> None:
    _, first = training_job(servers[0])
    generation = successor(first, (servers[0], 1), (servers[1], 1), purpose=purpose)
    for server in servers:
        entries = {entry["generation"]: entry for entry in desired_state(server.pk)["generations"]}
        assert entries[generation.number]["runtime_plan"] == generation.runtime_plan
    assert generation.runtime_plan["shape"] == "spread"
    assert [entry["kind"] for entry in generation.runtime_plan["synchronisers"]] == [
        "expert_parallel",
        "sparse",
        "dense",
    ]


def test_plans_for_one_and_two_servers_differ_within_a_family(servers: tuple[Server, Server]) -> None:
    packed = successor(training_job(servers[0])[1], (servers[0], 1), (servers[0], 2))
    spread = successor(training_job(servers[1])[1], (servers[0], 3), (servers[1], 3))
    assert packed.runtime_plan["digest"] != spread.runtime_plan["digest"]
    assert packed.runtime_plan["family"] == spread.runtime_plan["family"]


def test_a_recovery_point_names_the_plan_of_its_generation(servers: tuple[Server, Server]) -> None:
    job, generation = training_job(servers[0])
    send(servers[0], {"events": [event(generation, "shard_stored", sha256="0" * 64)]})
    digest = generation.runtime_plan["digest"]
    point = Checkpoint.objects.get()
    assert point.runtime_plan_digest == digest
    job.refresh_from_db()
    begin_training(generation, job)
    assert (generation.start or {})["runtime_plan"] == digest
    assert start_from_predecessor(generation, [servers[0].pk])["runtime_plan"] == digest


def test_a_curve_is_reused_whatever_the_shape(servers: tuple[Server, Server]) -> None:
    job, first = training_job(servers[0])
    assert successor(first, (servers[0], 1)).curve == job.curve
    other, second = training_job(servers[1])
    assert successor(second, (servers[0], 2), (servers[1], 2)).curve == other.curve


def test_levels_of_another_family_are_not_used(servers: tuple[Server, Server]) -> None:
    """Function, data, hyperparameters and GPUs are the same; only the plan family differs."""
    job, _ = training_job(servers[0])
    assert job.curve is not None
    job.curve.plan_family, dense_family = "lossless", job.curve.plan_family
    lossless = ScalingCurveFactory.create(
        key=key_on(job, "other"), gpu_kind="other", plan_family="lossless", levels={1: 9.0}
    )
    assert measured_curves_on([job], "other") == {job.pk: lossless}
    job.curve.plan_family = dense_family
    assert curve_on(job, "other") is None
    assert curves_on([job], "other") == measured_curves_on([job], "other") == {}
    dense = curve_made_on(job, "other")
    assert dense != lossless
    assert (dense.plan_family, dense.state) == (dense_family, CurveState.UNKNOWN)


def test_run_under_another_family_does_not_change_the_job_curve(
    servers: tuple[Server, Server],
) -> None:
    job, first = training_job(servers[0])
    assert job.curve is not None
    ScalingCurve.objects.filter(pk=job.curve.pk).update(plan_family="lossless")
    job.refresh_from_db()
    CurveLevel.objects.create(curve=job.curve, gpus=1, iterations_per_second=1.0)
    measurement = successor(first, (servers[0], 1), purpose=Purpose.PROFILING, profile={"levels": [1, 2]})
    assert measurement.curve is None
    level_event = event(measurement, "profile_level", gpus=2)
    send(servers[0], {"events": [level_event]})
    assert list(CurveLevel.objects.values_list("gpus", flat=True)) == [1]

    Generation.objects.filter(pk=first.pk).update(curve=measurement.curve)
    metrics = [metric(first, iteration=10 + n, iterations_per_second=50.0) for n in range(MINIMUM_SAMPLES)]
    assert send(servers[0], {"metrics": metrics}).status_code == 200
    refine_curves()
    assert CurveLevel.objects.get().iterations_per_second == 1.0
