"""A submission sets whether gradients may be compressed, and the job shows how they are sent."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from communication.library.codec_names import LOSSY
from scheduling.curve_keys import function_key_on
from scheduling.models import CurveLevel, Generation, GradientPlan, GradientProfile, Job, ScalingCurve
from scheduling.selectors.network.communication import communication_of
from scheduling.services.gradients.other_links import levels_on
from tests.api.conftest import World

pytestmark = pytest.mark.django_db

PREDICTED = {
    "iteration_seconds": 0.1, "bytes_between": 5e6, "bytes_within": 0.0, "device_seconds": 0.01,
    "host_seconds": 0.0, "exposed_seconds": 0.02,
}  # fmt: skip
DENSE = {"planner": "dense", "codec": "none", "lossless": True, "buffer_bytes": 0, "predicted": PREDICTED}
FUSED = {**DENSE, "planner": "cupcake", "codec": "fp16", "lossless": False, "buffer_bytes": 7}


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        ({}, ("refused", [])),
        ({"lossy": "allowed"}, ("allowed", [])),
        ({"lossy": "allowed", "codecs": ["onebit", "fp16", "fp16"]}, ("allowed", ["fp16", "onebit"])),
        ({"lossy": "allowed", "codecs": list(LOSSY)}, ("allowed", sorted(LOSSY))),
    ],
)
def test_submission_stores_its_choice_of_lossy_codecs(
    world: World, said: dict[str, Any], stored: tuple[str, list[str]]
) -> None:
    answer = world.client(world.owner).post("/api/v1/jobs/", world.body(**said), format="json")
    assert answer.status_code == 201, answer.content
    assert (answer.json()["lossy"], answer.json()["codecs"]) == stored
    job = Job.objects.get(pk=answer.json()["id"])
    assert (job.lossy, job.codecs) == stored


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"lossy": "perhaps"}, "lossy"),
        ({"lossy": True}, "lossy"),
        ({"codecs": ["fp16"]}, "codecs"),
        ({"lossy": "refused", "codecs": ["fp16"]}, "codecs"),
        ({"lossy": "allowed", "codecs": ["gzip"]}, "codecs.0"),
        ({"lossy": "allowed", "codecs": ["fp16"] * 20}, "codecs"),
    ],
)
def test_invalid_codec_choice_is_refused_with_its_field(
    world: World, said: dict[str, Any], field: str
) -> None:
    answer = world.client(world.owner).post("/api/v1/jobs/", world.body(**said), format="json")
    assert answer.status_code == 400
    assert any(error.startswith(field) for error in answer.json()["errors"]), answer.content


def test_clone_keeps_codec_choices_unless_overridden(world: World) -> None:
    client = world.client(world.owner)
    body = world.body(lossy="allowed", codecs=["fp16"])
    job = client.post("/api/v1/jobs/", body, format="json").json()
    path = f"/api/v1/jobs/{job['id']}/clone/"
    clone = client.post(path, {}, format="json").json()
    assert (clone["lossy"], clone["codecs"]) == ("allowed", ["fp16"])
    other = client.post(path, {"codecs": ["dgc"]}, format="json").json()
    assert (other["lossy"], other["codecs"]) == ("allowed", ["dgc"])
    refused = client.post(path, {"lossy": "refused"}, format="json").json()
    assert (refused["lossy"], refused["codecs"]) == ("refused", [])


SPAN = {
    "stage": "encode", "resource": "gpu", "group": 0, "begin_seconds": 0.0, "end_seconds": 0.01,
}  # fmt: skip


def plan_of(job: Job) -> GradientPlan:
    assert job.curve is not None
    profile = GradientProfile.objects.create(
        key=function_key_on(job, job.curve.gpu_kind), gpu_kind=job.curve.gpu_kind, gpus=1, content={}
    )
    made: GradientPlan = GradientPlan.objects.create(
        profile=profile, family=job.curve.plan_family, servers=1, gpus_per_server=1, question="q",
        planner="cupcake", codec="fp16", chosen=FUSED, beaten=[DENSE], speedup=1.5, spans=[SPAN],
    )  # fmt: skip
    return made


def test_job_shows_its_plan_rivals_and_measured_times(world: World) -> None:
    generation = Generation.objects.filter(purpose="training", job__curve__isnull=False).first()
    assert generation is not None
    job = generation.job
    plan = plan_of(job)
    generation.communication = {
        "plan": plan.pk, "family": plan.family, "made_at": plan.made_at.isoformat(), "speedup": 1.5,
        "chosen": FUSED, "beaten": [DENSE],
    }  # fmt: skip
    generation.communication_window = {"iteration_seconds": [0.2, 0.3, 0.4]}
    generation.save()
    answer = world.client(world.operator).get(f"/api/v1/jobs/{job.pk}/communication/")
    assert answer.status_code == 200, answer.content
    shown = answer.json()
    assert shown["chosen"] == FUSED
    assert shown["beaten"] == [DENSE]
    assert (shown["speedup"], shown["measured_seconds"], shown["generation"]) == (1.5, 0.3, generation.number)
    assert shown["links"]["told_by"] == "default"
    assert shown["predicted_spans"] == [SPAN]
    assert [(level["gpus"], level["planner"], level["predicted_seconds"]) for level in shown["levels"]] == [
        (1, "cupcake", 0.1)
    ]
    # A plan that was made again since says nothing about this generation.
    made_at = plan.made_at + timedelta(seconds=1)
    GradientPlan.objects.filter(pk=plan.pk).update(made_at=made_at, given_up="slower")
    later = communication_of(job)
    assert (later["predicted_spans"], later["given_up"]) == ([], "")


def test_job_without_a_plan_shows_the_dense_family(world: World) -> None:
    job = Job.objects.filter(curve__isnull=True).first() or Job.objects.first()
    assert job is not None
    shown = communication_of(job)
    assert (shown["chosen"], shown["beaten"], shown["family"]) == (None, [], "dense")


def asked(world: World, **said: Any) -> dict[str, Any]:
    answer = world.client(world.owner).post("/api/v1/what-if/", world.body(**said), format="json")
    assert answer.status_code == 200, answer.content
    content: dict[str, Any] = answer.json()
    return content


def test_what_if_on_another_link_needs_measured_gradients(world: World) -> None:
    answer = asked(world, link_bytes_per_second=1e9)
    assert (answer["decision"], answer["reason_code"]) == ("pending", "needs_profiling")


def test_what_if_on_another_link_is_answered_by_prediction(world: World) -> None:
    """An iteration of 2 s on two servers, of which 0.02 s compute, on a link a thousandth as fast."""
    job = known(world)
    tensors = [{"name": "weight", "elements": 50_000_000, "gap_seconds": 0.01}]
    for gpus in (1, 2):
        GradientProfile.objects.create(
            key=function_key_on(job, job.curve.gpu_kind),  # type: ignore[union-attr]
            gpu_kind=job.curve.gpu_kind,  # type: ignore[union-attr]
            gpus=gpus,
            content={
                "tensors": tensors, "sparse": [], "codecs": [], "other_seconds": 0.01, "bytes_per_element": 4
            },
        )  # fmt: skip
    curve = job.curve
    assert curve is not None
    measured = [CurveLevel(curve=curve, gpus=gpus, iterations_per_second=10.0) for gpus in (1, 2)]
    function = function_key_on(job, curve.gpu_kind)

    def predicted(family: str, rate: float) -> dict[int, float]:
        curve.levels.all().delete()
        for level in measured:
            curve.levels.create(gpus=level.gpus, iterations_per_second=10.0)
        return {
            level.gpus: level.iterations_per_second
            for level in levels_on(curve, function, family, server_size=1, bytes_per_second=rate)
        }

    as_it_is = predicted("dense", 3.125e9)
    assert as_it_is == {1: pytest.approx(10.0), 2: pytest.approx(10.0)}
    slow = predicted("dense", 3.125e8)
    assert slow[1] == pytest.approx(10.0)
    assert slow[2] < 2.0
    assert slow[2] < predicted("lossless", 3.125e8)[2] * 1.0001
    assert predicted("lossy", 3.125e8)[2] > 1.5 * slow[2]
    assert predicted("lossy(random-k)", 3.125e8)[2] > 3.0 * slow[2]
    # With spread experts, Lina's schedule is asked for as well.
    several = [{"name": f"weight {n}", "elements": 10**6, "gap_seconds": 0.05} for n in range(10)]
    experts = {
        "layers": 4, "row_bytes": 1e6, "all_to_all_seconds": 0.01, "backward_all_to_all_seconds": 0.03,
        "expert_seconds": 0.005,
    }  # fmt: skip
    rates = []
    for told in (None, experts):
        content = {
            "tensors": several,
            "sparse": [],
            "codecs": [],
            "other_seconds": 0.1,
            "bytes_per_element": 4,
        }
        GradientProfile.objects.update(content={**content, "experts": told})
        rates.append(predicted("lossless", 3.125e8)[2])
    assert rates[1] > 1.1 * rates[0]
    answer = asked(world, link_bytes_per_second=3.125e8)
    assert "predicted from measured gradients" in answer["reason"]


def known(world: World) -> Job:
    """Return a job like the requested jobs, with a measured curve."""
    job = Job.objects.get(
        pk=world.client(world.owner).post("/api/v1/jobs/", world.body(), format="json").json()["id"]
    )
    ScalingCurve.objects.filter(jobs=job).update(state="ready")
    job.refresh_from_db()
    return job


@pytest.mark.parametrize("link", [0, -1, "fast", 1e30])
def test_links_that_cannot_be_are_refused(world: World, link: Any) -> None:
    body = world.body(link_bytes_per_second=link)
    answer = world.client(world.owner).post("/api/v1/what-if/", body, format="json")
    assert answer.status_code == 400
    assert "link_bytes_per_second" in answer.json()["errors"]
    answer = world.client(world.owner).post(
        "/api/v1/jobs/", world.body(link_bytes_per_second=1e9), format="json"
    )
    assert answer.status_code == 400
