"""Zen's plans in real workers, alone and beside a plan of the other gradients: training equals that without a
plan."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from communication.espresso.decision_tree import gpu_options
from communication.espresso.options import compressions, option_from_code
from communication.espresso.plan import EspressoPlan, TensorOption
from communication.plan import Prediction, content_digest
from communication.profiles.placement import PlacementShape
from communication.zen.hash_family import drawn_family
from tests.runtime.conftest import EXAMPLES, emulated
from workers.runtime.at_home.local_agent import LocalAgent, runtime_plan

SOURCE = EXAMPLES / "recommender.py"
WIDTH = 16
TABLES = {"user.weight": 2000, "item.weight": 800, "tags.weight": 60}
SPARSE = {"kind": "sparse", "choices": {}}
DENSE = {"kind": "dense", "choices": {"gradients_in_buckets": True}}
PACKED = PlacementShape(1, 2)


def zen(shape: PlacementShape, *schemes: str, **changes: Any) -> dict[str, Any]:
    """Return the kind that exchanges the first tables by these schemes."""
    tensors = [
        {
            "tensor": name,
            "elements": rows * WIDTH,
            "width": WIDTH,
            "scheme": scheme,
            "push_format": "coo",
            "pull_format": "hash_bitmap" if scheme == "zen" else "coo",
        }
        for (name, rows), scheme in zip(TABLES.items(), schemes, strict=False)
    ]
    content = {
        "planner": "zen",
        "servers": shape.servers,
        "gpus_per_server": shape.gpus_per_server,
        "seeds": list(drawn_family("a job").seeds),
        "tensors": tensors,
        **changes,
    }
    return {"kind": "zen", "choices": {"plan": {**content, "digest": content_digest(content)}}}


def espresso(shape: PlacementShape) -> dict[str, Any]:
    """Return the kind that sends the rest by two of Espresso's options without compression."""
    options = [option for option in gpu_options() if not compressions(option)]
    tensors = (TensorOption("mix.bias", WIDTH, options[1]), TensorOption("mix.weight", WIDTH**2, options[-1]))
    prediction = Prediction(1.0, 0.0, 0.0)
    plan = EspressoPlan(shape, "none", True, 4, tensors, 0, prediction, prediction)
    choices = {"plan": plan.to_message(), "gradients": ["mix.bias", "mix.weight"], "momentum": 0}
    return {"kind": "compressed", "choices": choices}


def lossy_rest(shape: PlacementShape) -> dict[str, Any]:
    """Return the kind that gathers the non-table gradients as OneBit, each separately."""
    option = option_from_code("Comp/encode/gpu Comm_c/all-gather/flat Decomp/decode/gpu")
    tensors = (TensorOption("mix.bias", WIDTH, option), TensorOption("mix.weight", WIDTH**2, option))
    prediction = Prediction(1.0, 0.0, 0.0)
    plan = EspressoPlan(shape, "onebit", False, 4, tensors, 0, prediction, prediction)
    choices = {"plan": plan.to_message(), "gradients": ["mix.bias", "mix.weight"], "momentum": 0}
    return {"kind": "compressed", "choices": choices}


def recommender(**changes: Any) -> dict[str, Any]:
    return {
        "function": {"entry": "recommender:Recommender"},
        "hyperparameters": {"global_batch_size": 64, "rating_count": 4000},
        "termination": {"max_iterations": 8, "target": None},
        "seed": 1,
        **changes,
    }


@pytest.mark.parametrize(
    "shape", [PACKED, pytest.param(PlacementShape(2, 2), marks=pytest.mark.live)], ids=str
)
def test_the_recommender_trains_under_its_plans_as_without(agent: LocalAgent, shape: PlacementShape) -> None:
    changes: dict[str, Any] = {}
    if shape.spread:
        changes = {"device": emulated(), "places": {"servers": [0, 0, 1, 1], "racks": [0, 0, 0, 0]}}
    plans = [
        runtime_plan(),
        runtime_plan(zen(shape, "zen", "sparcml"), SPARSE, DENSE, family="lossless"),
        runtime_plan(zen(shape, "balanced_coo", "zen", "sparse_ps"), espresso(shape), family="lossless"),
    ]
    finals = []
    for plan in plans:
        assignment = recommender(runtime_plan=plan, **changes)
        generation = agent.start_generation(SOURCE, assignment, shape.workers).wait_until_ready()
        finals.append(generation.train_from_nothing().report()["final"])
        generation.stop()
    without, *others = finals
    for final in others:
        assert final.keys() == without.keys()
        for name, value in without.items():
            assert final[name] == pytest.approx(value, rel=1e-4), name


@pytest.mark.live
def test_a_level_is_measured_under_its_plan(agent: LocalAgent) -> None:
    plan = runtime_plan(zen(PACKED, "zen"), SPARSE, espresso(PACKED), family="lossless")
    profile = {"levels": [2], "seconds_per_level": 0.2, "max_seconds": 60}
    assignment = recommender(runtime_plan=plan, purpose="profiling", profile=profile)
    generation = agent.start_generation(SOURCE, assignment, 2)
    assert generation.leader.wait_for_event("profile_done", 60)["reason"] == "all_levels"
    assert [worker.end() for worker in generation.workers] == [0, 0]


@pytest.mark.live
def test_workers_under_a_plan_detect_a_killed_peer(agent: LocalAgent) -> None:
    plan = runtime_plan(zen(PlacementShape(1, 3), "zen"), SPARSE, espresso(PlacementShape(1, 3)))
    changes = {"runtime_plan": plan, "termination": {"max_iterations": 10**6, "target": None}}
    generation = agent.start_generation(SOURCE, recommender(**changes), 3).wait_until_ready()
    generation.train_from_nothing().wait_for_iteration(3)
    generation.workers[2].kill()
    for survivor in generation.workers[:2]:
        assert survivor.wait_for_event("failed")["reason"] == "peer_lost"


def test_rescaling_under_a_plan_keeps_its_residuals(agent: LocalAgent) -> None:
    """From two ranks to three, each with its own plan: no row of OneBit's residuals is lost."""
    before = runtime_plan(zen(PACKED, "zen"), SPARSE, lossy_rest(PACKED), family="lossy")
    changes = {"termination": {"max_iterations": 10**6, "target": None}}
    assignment = recommender(runtime_plan=before, **changes)
    old = agent.start_generation(SOURCE, assignment, 2).wait_until_ready().train_from_nothing()
    old.wait_for_iteration(3)
    three = PlacementShape(1, 3)
    after = runtime_plan(zen(three, "zen"), SPARSE, lossy_rest(three), family="lossy")
    new = agent.start_generation(SOURCE, {**assignment, "generation": 2, "runtime_plan": after}, 3)
    new.wait_until_ready().train_from(old)
    new.leader.wait_for_event("first_iteration")
    new.goal("suspend")
    for content in new.checkpoint_files().shards:
        shard = torch.load(io.BytesIO(content), weights_only=True)
        rows = [entry["shape"][0] for entry in shard["own"] if entry["path"][1].startswith("residual/")]
        assert sum(rows) == WIDTH + WIDTH**2


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        (zen(PACKED, "zen"), "there are 1 ranks; 1 x 2 GPUs need one each"),
        (zen(PACKED, "omnireduce"), "cannot do what was chosen"),
        (zen(PlacementShape(1, 1), "zen", tensors=[]) | {"kind": "magic"}, "no synchroniser 'magic'"),
    ],
)
def test_an_impossible_plan_is_refused(agent: LocalAgent, plan: Any, complaint: str) -> None:
    assignment = recommender(runtime_plan=runtime_plan(plan, SPARSE, DENSE))
    event = agent.start_generation(SOURCE, assignment, 1).leader.wait_for_event("failed")
    assert event["reason"] == "plan_refused"
    assert complaint in event["message"]


def test_a_plan_for_a_table_that_the_model_lacks_is_refused(agent: LocalAgent) -> None:
    odd = zen(PlacementShape(1, 1), "zen")["choices"]["plan"]
    odd["tensors"][0]["tensor"] = "movie.weight"
    odd["digest"] = content_digest(odd)
    plan = runtime_plan({"kind": "zen", "choices": {"plan": odd}}, SPARSE, DENSE)
    event = agent.start_generation(SOURCE, recommender(runtime_plan=plan), 1).leader.wait_for_event("failed")
    assert "the model has no gradient 'movie.weight'" in event["message"]
