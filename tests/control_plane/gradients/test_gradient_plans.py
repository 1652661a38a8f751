"""Measured gradients, the plans made from them, and the generations that follow these plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from cluster.models import Gpu, Server
from communication.library.codec_names import FAITHFUL, LOSSY
from communication.plan import content_digest
from scheduling.choices import CurveState, Purpose
from scheduling.core.runtime_plans.plan import PlanFamily, family_name
from scheduling.curve_keys import function_key_on
from scheduling.models import Generation, GradientPlan, GradientProfile, Job, ScalingCurve
from scheduling.selectors.jobs.scaling_curve import curve as curve_of_page
from scheduling.services.generations.generations import create_generation
from scheduling.services.gradients.families import family_of_newcomer
from scheduling.services.gradients.gradient_plans import COMMON_FAMILIES, make_plans, shape_of_level
from scheduling.services.requests.jobs import curve_for, request_of
from tests.control_plane.agent_api import busy_server, event, send, training_job
from tests.control_plane.simulated_time import SimulatedTime
from workers.runtime.runtime_plan import RuntimePlan as PlanOfAWorker
from workers.runtime.synchronisation.kinds import KINDS

pytestmark = [pytest.mark.django_db, pytest.mark.urls("config.urls_agents")]

#: Kinds of synchronisers without a plan.
USUAL = ["expert_parallel", "sparse", "dense"]

#: One large tensor and many small ones: both fusing and compressing pay.
TENSORS = [
    {"name": f"layer{number}.weight", "elements": 40_000_000 if number == 3 else 2_000, "gap_seconds": 5e-4}
    for number in range(40)
]


@pytest.fixture
def servers() -> tuple[Server, Server]:
    return busy_server("node-a"), busy_server("node-b")


def profile_event(generation: Generation, gpus: int, **fields: Any) -> dict[str, Any]:
    """Return rank 0's measurement of its gradients on this number of GPUs."""
    fields = {"iterations": 8, "tensors": TENSORS, "sparse": [], "other_seconds": 0.01, **fields}
    head = event(generation, "first_iteration")
    return {**head, "kind": "communication_profile", "gpus": gpus, **fields}


def measured_job(server: Server, *levels: int, **fields: Any) -> tuple[Job, Generation]:
    """Return a job with gradients measured at these levels."""
    job, generation = training_job(server)
    Generation.objects.filter(pk=generation.pk).update(
        purpose=Purpose.PROFILING, profile={"levels": list(levels)}, world_size=max(levels)
    )
    generation.refresh_from_db()
    answer = send(server, {"events": [profile_event(generation, gpus, **fields) for gpus in levels]})
    assert answer.status_code == 200
    return job, generation


def on_family(job: Job, family: str) -> Job:
    """Return the job with a curve of that family."""
    assert job.curve is not None
    ScalingCurve.objects.filter(pk=job.curve.pk).update(plan_family=family)
    job.refresh_from_db()
    return job


def successor(job: Job, *gpus: tuple[Server, int], **fields: Any) -> Generation:
    rows = [Gpu.objects.get(server=server, index=index) for server, index in gpus]
    generation = create_generation(job, rows, epoch=1, reason="test", **fields)
    assert isinstance(generation, Generation)
    return generation


def test_a_profile_is_kept_for_a_function_and_its_hyperparameters(servers: tuple[Server, Server]) -> None:
    job, _ = measured_job(servers[0], 1, 2)
    key = function_key_on(job, "emulated-a100")
    assert list(GradientProfile.objects.values_list("key", "gpus")) == [(key, 1), (key, 2)]
    job.hyperparameters = {**job.hyperparameters, "hidden": 512}
    assert function_key_on(job, "emulated-a100") != key


@pytest.mark.parametrize(
    ("fields", "replaced"),
    [
        ({"other_seconds": 0.011}, False),
        ({"tensors": [{**each, "gap_seconds": 5.7e-4} for each in TENSORS]}, False),
        ({"tensors": [{**each, "gap_seconds": 6.25e-4} for each in TENSORS]}, True),
        ({"other_seconds": 0.05}, True),
        ({"tensors": TENSORS[:-1]}, True),
        ({"tensors": TENSORS[::-1]}, True),
    ],
)
def test_a_profile_is_replaced_where_it_moved_by_more_than_a_fifth(
    servers: tuple[Server, Server], clock: SimulatedTime, fields: dict[str, Any], replaced: bool
) -> None:
    _, generation = measured_job(servers[0], 2)
    make_plans(9)
    before = GradientProfile.objects.get()
    clock.turn(1.0)
    send(servers[0], {"events": [profile_event(generation, 2, **fields)]})
    after = GradientProfile.objects.get()
    assert after.confirmed_at > before.confirmed_at
    assert (after.content != before.content) == (after.planned_from == "") == replaced
    assert (after.measured_at > before.measured_at) == replaced


@pytest.mark.parametrize(
    ("gpus", "fields", "word"),
    [
        (3, {}, "trains on 2"),
        (2, {"sparse": [{"name": "layer3.weight", "width": 64, "density": 0.5, "beta": 0.5, "skew": 0.1,
                         "sums": [{"workers": 2, "density": 0.1}]}]}, "the sum of 2 workers"),
    ],
)  # fmt: skip
def test_records_that_cannot_be_are_refused(
    servers: tuple[Server, Server], gpus: int, fields: dict[str, Any], word: str
) -> None:
    job, generation = measured_job(servers[0], 2)
    answer = send(servers[0], {"events": [profile_event(generation, gpus, **fields)]})
    assert answer.status_code == 200
    assert GradientProfile.objects.get().content["sparse"] == []
    assert word in job.events.get(kind="report_refused").message


def test_buffers_have_the_memory_that_the_function_leaves(servers: tuple[Server, Server]) -> None:
    job, _ = measured_job(servers[0], 2)
    device = 4 << 30
    Gpu.objects.update(memory_bytes=device)
    make_plans(9)
    plan = GradientPlan.objects.get(family="lossy")
    buffers = plan.chosen["buffer_bytes"]
    assert 0 < buffers < device
    dense = submission_curve(job)
    dense.levels.all().delete()
    dense.levels.create(gpus=2, iterations_per_second=1.0, memory_bytes=device - buffers // 2)
    assert make_plans(9) == 1
    plan.refresh_from_db()
    assert plan.chosen["buffer_bytes"] <= buffers // 2
    dense.levels.update(memory_bytes=device - buffers // 2 + 10)
    assert make_plans(9) == 0, "a little more is no reason to plan anew"


def test_plans_are_made_once_for_the_same_inputs(servers: tuple[Server, Server]) -> None:
    measured_job(servers[0], 1, 2)
    assert make_plans(9) == 2
    assert make_plans(9) == 0
    plans = GradientPlan.objects.order_by("profile__gpus", "family")
    assert [(plan.profile.gpus, plan.family) for plan in plans] == [
        (gpus, family) for gpus in (1, 2) for family in COMMON_FAMILIES
    ]
    on_one_gpu = [plan for plan in plans if plan.profile.gpus == 1]
    assert {plan.planner for plan in on_one_gpu} == {"dense"}
    lossy = next(plan for plan in plans if plan.profile.gpus == 2 and plan.family == "lossy")
    assert (lossy.servers, lossy.gpus_per_server) == (1, 2)
    assert lossy.codec != "none"
    assert lossy.speedup > 1.3
    planners = {lossy.planner, *(plan["planner"] for plan in lossy.beaten)}
    assert planners == {"dense", "cupcake", "espresso", "combined"}
    lossless = next(plan for plan in plans if plan.profile.gpus == 2 and plan.family == "lossless")
    assert lossless.codec == "none"
    Server.objects.update(links={
        name: {"bytes_per_second": 1e12, "latency_seconds": 0.0}
        for name in ("within_server", "network", "spine", "host_to_device", "disk")
    })  # fmt: skip
    assert make_plans(9) == 2
    assert GradientPlan.objects.get(pk=lossy.pk).speedup < 1.1


def test_a_pass_queries_a_gpu_kind_once_for_all_its_profiles(servers: tuple[Server, Server]) -> None:
    measured_job(servers[0], 1)
    assert make_plans(9) == 1
    with CaptureQueriesContext(connection) as of_one:
        assert make_plans(9) == 0
    measured_job(servers[1], 1, 2)
    assert make_plans(9) == 2
    with CaptureQueriesContext(connection) as of_three:
        assert make_plans(9) == 0
    assert len(of_three) <= len(of_one) + 2 * 2, "the profile's own level, and its experts"


def test_gradients_that_no_plan_could_carry_get_none(servers: tuple[Server, Server]) -> None:
    """The gradients are FP64."""
    measured_job(servers[0], 2, bytes_per_element=8)
    assert make_plans(9) == 1
    assert not GradientPlan.objects.exists()


def test_levels_are_placed_on_one_server_or_on_whole_ones() -> None:
    shapes = {gpus: shape_of_level(gpus, 4) for gpus in (1, 4, 6, 8)}
    assert {gpus: shape and (shape.servers, shape.gpus_per_server) for gpus, shape in shapes.items()} == {
        1: (1, 1), 4: (1, 4), 6: None, 8: (2, 4),
    }  # fmt: skip
    assert shape_of_level(1, 0) is None


def test_a_generation_follows_the_plan_of_its_family_and_placement(servers: tuple[Server, Server]) -> None:
    job, _ = measured_job(servers[0], 1, 2)
    make_plans(9)
    on_family(job, "lossy")
    plan = GradientPlan.objects.get(family="lossy", servers=1, gpus_per_server=2)
    generation = successor(job, (servers[0], 1), (servers[0], 2))
    assert generation.runtime_plan["family"] == "lossy"
    experts, sparse, compressed = generation.runtime_plan["synchronisers"]
    assert [entry["kind"] for entry in (experts, sparse)] == ["expert_parallel", "sparse"]
    assert compressed["kind"] == "compressed"
    assert compressed["choices"]["plan"] == plan.messages["rest"]
    assert compressed["choices"]["plan"]["digest"] == content_digest(compressed["choices"]["plan"])
    assert compressed["choices"]["gradients"] == [entry["name"] for entry in TENSORS]
    assert generation.communication["chosen"]["planner"] == plan.planner
    assert generation.communication["beaten"] == plan.beaten
    assert generation.curve == job.curve
    # The spans add up to the prediction: the iteration ends with the last span, after 10 ms of other work.
    seconds = 0.01 + max(span["end_seconds"] for span in plan.spans)
    assert seconds == pytest.approx(plan.chosen["predicted"]["iteration_seconds"], rel=1e-6)
    read = PlanOfAWorker.from_message(generation.runtime_plan)
    for synchroniser in read.synchronisers:
        KINDS[synchroniser.kind](synchroniser.choices)


@pytest.mark.parametrize("places", [((0, 1), (1, 1)), ((0, 1),), ((0, 1), (0, 2), (0, 3))])
def test_generation_without_a_plan_for_its_placement_runs_as_usual(
    servers: tuple[Server, Server], places: tuple[tuple[int, int], ...]
) -> None:
    job, _ = measured_job(servers[0], 1, 2)
    make_plans(9)
    on_family(job, "lossy")
    generation = successor(job, *((servers[which], index) for which, index in places))
    assert [synchroniser["kind"] for synchroniser in generation.runtime_plan["synchronisers"]] == USUAL
    assert generation.communication == {}


def test_jobs_of_no_plan_stay_without_one(servers: tuple[Server, Server]) -> None:
    job, _ = measured_job(servers[0], 1, 2)
    make_plans(9)
    generation = successor(job, (servers[0], 1), (servers[0], 2))
    assert (generation.runtime_plan["family"], generation.communication) == ("dense", {})


def test_abandoned_plan_is_not_followed_but_its_family_is_kept(
    servers: tuple[Server, Server],
) -> None:
    job, _ = measured_job(servers[0], 1, 2)
    make_plans(9)
    GradientPlan.objects.update(given_up="it lost")
    generation = successor(on_family(job, "lossy"), (servers[0], 1), (servers[0], 2))
    assert (generation.runtime_plan["family"], generation.communication) == ("lossy", {})
    assert [synchroniser["kind"] for synchroniser in generation.runtime_plan["synchronisers"]] == USUAL


def test_each_level_of_a_measurement_has_its_own_plan(servers: tuple[Server, Server]) -> None:
    job, generation = measured_job(servers[0], 1, 2)
    make_plans(9)
    generation.delete()
    measurement = successor(
        on_family(job, "lossy"), (servers[0], 1), (servers[0], 2),
        purpose=Purpose.PROFILING, profile={"levels": [1, 2]},
    )  # fmt: skip
    read = PlanOfAWorker.from_message(measurement.runtime_plan)
    assert [synchroniser.kind for synchroniser in read.at(1).synchronisers] == USUAL
    assert [synchroniser.kind for synchroniser in read.at(2).synchronisers] == [
        "expert_parallel",
        "sparse",
        "compressed",
    ]
    assert measurement.curve == job.curve


def test_zens_plan_comes_before_all_others(servers: tuple[Server, Server]) -> None:
    """A table that is nearly all zeros is the only tensor worth a plan."""
    tensors = [
        {"name": "table.weight", "elements": 64_000_000, "gap_seconds": 0.001},
        {"name": "head.weight", "elements": 640, "gap_seconds": 0.001},
    ]
    sums = [{"workers": 2, "density": 0.012}, {"workers": 4, "density": 0.015}]
    table = {"name": "table.weight", "width": 64, "density": 0.01, "beta": 0.3, "sums": sums, "skew": 0.5}
    job, _ = measured_job(servers[0], 4, tensors=tensors, sparse=[table])
    make_plans(9)
    plan = GradientPlan.objects.get(family="lossless")
    assert plan.planner in ("zen", "combined")
    generation = successor(on_family(job, "lossless"), *((servers[0], index) for index in range(4)))
    zen, experts, sparse, *_ = PlanOfAWorker.from_message(generation.runtime_plan).synchronisers
    assert (zen.kind, experts.kind, sparse.kind) == ("zen", "expert_parallel", "sparse")
    assert zen.choices["plan"] == plan.messages["sparse"]
    for synchroniser in PlanOfAWorker.from_message(generation.runtime_plan).synchronisers:
        KINDS[synchroniser.kind](synchroniser.choices)


def submission_curve(job: Job, **fields: Any) -> ScalingCurve:
    """Return the curve that decides a submission like the job's."""
    return curve_for(replace(request_of(job), **fields), "emulated-a100")


def test_a_newcomer_is_decided_on_the_best_family_that_it_allows(
    servers: tuple[Server, Server],
) -> None:
    job, _ = measured_job(servers[0], 1, 2)
    refused, allowed = submission_curve(job), submission_curve(job, lossy="allowed")
    # Nothing was planned yet.
    assert refused == allowed
    assert refused.plan_family == PlanFamily.DENSE
    make_plans(9)
    assert submission_curve(job) == refused
    lossy = submission_curve(job, lossy="allowed")
    assert (lossy.plan_family, lossy.state) == ("lossy", CurveState.UNKNOWN)
    assert lossy.key != refused.key


def test_winning_lossless_plan_applies_to_all_jobs(servers: tuple[Server, Server]) -> None:
    job, _ = measured_job(servers[0], 1, 2)
    make_plans(9)
    GradientPlan.objects.filter(family="lossless", profile__gpus=2).update(planner="cupcake", speedup=1.2)
    assert submission_curve(job).plan_family == "lossless"


def test_named_codecs_are_a_family_of_their_own(servers: tuple[Server, Server]) -> None:
    job, _ = measured_job(servers[0], 1, 2)
    make_plans(9)
    assert submission_curve(job, lossy="allowed", codecs=("random-k",)).plan_family == PlanFamily.DENSE
    # The first submission that names the codecs requests plans for them.
    make_plans(9)
    plan = GradientPlan.objects.get(family="lossy(random-k)", profile__gpus=2)
    assert plan.codec in ("random-k", "none")
    assert submission_curve(job, lossy="allowed", codecs=("random-k",)).plan_family == "lossy(random-k)"


def test_naming_the_default_codecs_gives_the_default_family(
    servers: tuple[Server, Server],
) -> None:
    job, _ = measured_job(servers[0], 1, 2)
    make_plans(9)
    unnamed = submission_curve(job, lossy="allowed")
    assert (unnamed.plan_family, submission_curve(job, lossy="allowed", codecs=FAITHFUL)) == (
        "lossy",
        unnamed,
    )
    assert not any(GradientProfile.objects.values_list("families", flat=True))


def test_optimizer_changing_codecs_are_used_only_when_named(
    servers: tuple[Server, Server],
) -> None:
    """Random-k is far faster on these gradients."""
    job, _ = measured_job(servers[0], 1, 2)
    make_plans(9)
    assert submission_curve(job, lossy="allowed").plan_family == "lossy"
    submission_curve(job, lossy="allowed", codecs=LOSSY)
    make_plans(9)
    everything = family_name(lossy=True, codecs=LOSSY)
    plans = {plan.family: plan for plan in GradientPlan.objects.filter(profile__gpus=2)}
    assert plans["lossy"].codec in FAITHFUL
    assert {plan["codec"] for plan in plans["lossy"].beaten} <= {"none", *FAITHFUL}
    assert plans[everything].codec == "random-k"
    assert plans[everything].speedup > 1.05 * plans["lossy"].speedup > 1.05
    assert submission_curve(job, lossy="allowed", codecs=LOSSY).plan_family == everything


def test_a_family_that_was_measured_slower_is_not_taken(servers: tuple[Server, Server]) -> None:
    job, _ = measured_job(servers[0], 1, 2)
    dense = submission_curve(job)
    make_plans(9)
    lossy = submission_curve(job, lossy="allowed")
    for curve, rate in ((dense, 5.0), (lossy, 4.0)):
        curve.levels.all().delete()
        curve.levels.create(gpus=2, iterations_per_second=rate)
        ScalingCurve.objects.filter(pk=curve.pk).update(state=CurveState.READY)
    assert submission_curve(job, lossy="allowed") == dense
    # A void measurement (overrun above 5 %) of either curve decides nothing.
    for curve in (dense, lossy):
        curve.levels.update(overrun=0.06)
        assert submission_curve(job, lossy="allowed") == lossy
        curve.levels.update(overrun=0.04)
        assert submission_curve(job, lossy="allowed") == dense
    lossy.levels.update(iterations_per_second=6.0)
    assert submission_curve(job, lossy="allowed") == lossy
    # Both are on the job's page.
    job.refresh_from_db()
    job.lossy, job.curve = "allowed", lossy
    shown = curve_of_page(job)
    assert shown is not None
    assert [level.iterations_per_second for level in shown.levels] == [6.0]
    assert {
        family: [level.iterations_per_second for level in levels] for family, levels in shown.others.items()
    } == {"dense": [5.0]}
    # The speed of a level that has no measured plan does not count against the plan.
    dense.levels.create(gpus=4, iterations_per_second=9.0)
    assert submission_curve(job, lossy="allowed") == lossy


def test_family_of_an_unmeasured_function_takes_one_query(
    servers: tuple[Server, Server], django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(1):
        assert family_of_newcomer("0" * 64, "dense", lossy=True, codecs=("fp16",)) == PlanFamily.DENSE
