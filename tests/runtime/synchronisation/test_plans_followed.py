"""From measured gradients to a plan, and to measurements of workers under it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from communication.combined.choosing import choose
from communication.combined.grouping import others
from communication.combined.question import PlanQuestion
from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.placement import PlacementShape
from moe.lina.shared_link import Rates
from scheduling.core.runtime_plans.choosing import GradientOrders, choose_runtime_plan
from scheduling.gradient_records import codecs_of, model_of, sparse_of
from scheduling.services.gradients.expert_schedules import schedule_of
from tests.runtime.conftest import EXAMPLES, FUNCTIONS, REGRESSION, emulated, regression
from tests.runtime.synchronisation.test_measuring_gradients import PROFILE, measured_profiles
from workers.runtime.at_home.local_agent import LocalAgent
from workers.runtime.measuring.gradient_densities import GradientDensities

#: Slow enough that every planner beats having no plan.
SLOW = LinkProfile(LinkRate(1e-5, 1e4), LinkRate(1e-5, 1e4))
RECOMMENDER = {
    "function": {"entry": "recommender:Recommender"},
    "hyperparameters": {"global_batch_size": 64, "rating_count": 4000},
    "termination": {"max_iterations": 8, "target": None},
    "seed": 1,
}


def orders_for(profile: dict[str, Any], planner: str) -> GradientOrders:
    """Return the orders of the planner's plan for these gradients on two ranks of one server."""
    question = PlanQuestion(
        "key", model_of(profile), PlacementShape(1, profile["gpus"]), SLOW, sparse_of(profile),
        codecs_of(profile), lossy=True, codec_names=("fp16",), planners=("dense", "zen", planner),
    )  # fmt: skip
    choice = choose(question)
    chosen = next(plan for plan in (choice.chosen, *choice.beaten) if plan.planner == planner)
    messages = chosen.messages
    rest = others(question, chosen)
    assert rest is not None
    return GradientOrders(messages.get("sparse"), messages.get("rest"), rest.tensor_names)


@pytest.mark.live
@pytest.mark.parametrize("planner", ["cupcake", "espresso", "combined"])
def test_levels_are_measured_under_the_plan_made_from_them(agent: LocalAgent, planner: str) -> None:
    profiles = measured_profiles(agent, REGRESSION, regression())
    _follow(agent, REGRESSION, regression(), profiles, planner)


@pytest.mark.live
@pytest.mark.parametrize("planner", ["zen", "combined"])
def test_sparse_models_are_measured_under_the_plan_made_from_them(agent: LocalAgent, planner: str) -> None:
    """Small batches touch few tags, so that none of the tables is dense."""
    few = RECOMMENDER | {"hyperparameters": {"global_batch_size": 8, "rating_count": 4000}}
    profiles = measured_profiles(agent, EXAMPLES / "recommender.py", few)
    assert {table["name"] for table in profiles[1]["sparse"]} == {"user.weight", "item.weight", "tags.weight"}
    _follow(agent, EXAMPLES / "recommender.py", few, profiles, planner)


@pytest.mark.live
@pytest.mark.parametrize("planner", ["zen", "combined"])
def test_process_groups_are_destroyed_after_each_level(agent: LocalAgent, planner: str) -> None:
    few = RECOMMENDER | {"hyperparameters": {"global_batch_size": 8, "rating_count": 4000}}
    device = emulated(within_server=1e7)
    linked = few | {"device": device, "places": {"servers": [0, 0], "racks": [0, 0]}}
    profiles = measured_profiles(agent, EXAMPLES / "recommender.py", linked)
    _follow(agent, EXAMPLES / "recommender.py", linked, profiles, planner)


@pytest.mark.live
def test_mixture_is_measured_under_linas_schedule(agent: LocalAgent) -> None:
    source = FUNCTIONS / "mixture.py"
    assignment = regression(function={"entry": "mixture:Mixture"})
    alone, pair = measured_profiles(agent, source, assignment)
    assert alone["experts"] is None
    question = PlanQuestion("key", model_of(pair), PlacementShape(1, 2), SLOW)
    schedule = schedule_of(question, pair["experts"], Rates())
    assert schedule is not None
    orders = GradientOrders(None, None, (), schedule.messages["experts"])
    plan = choose_runtime_plan(["a", "a"], "lossless+moe", orders, {1: None, 2: orders}).to_message()
    again = {**assignment, "purpose": "profiling", "profile": PROFILE, "runtime_plan": plan}
    generation = agent.start_generation(source, again, 2)
    generation.leader.wait_for_event("profile_done", 120)
    events = generation.leader.of_kind("event")
    levels = [event["gpus"] for event in events if event["kind"] == "profile_level"]
    assert levels[-1] == 2
    profiles = [event["gpus"] for event in events if event["kind"] == "communication_profile"]
    assert profiles == [1], "a level under the schedule reports no profile"
    assert [worker.end() for worker in generation.workers] == [0, 0]


def test_tables_with_sparse_gradients_are_reported_at_any_density(alone: None) -> None:
    """Otherwise a plan of the other gradients would include them, and could not be carried out."""
    model = nn.ModuleDict({"rows": nn.Embedding(100, 2, sparse=True), "table": nn.Embedding(100, 2)})
    densities = GradientDensities(model)
    densities.watching = True
    indices = torch.arange(80)
    (model["rows"](indices).sum() + model["table"](indices).sum()).backward()
    densities.iteration_done()
    densities.close()
    assert [profile.tensor for profile in densities.profiles(None) or []] == ["rows.weight"]


def _follow(
    agent: LocalAgent, source: Any, assignment: dict[str, Any], profiles: list[dict[str, Any]], planner: str
) -> None:
    alone, pair = profiles
    assert (alone["gpus"], pair["gpus"]) == (1, 2)
    orders = orders_for(pair, planner)
    plan = choose_runtime_plan(["a", "a"], "lossy(fp16)", orders, {1: None, 2: orders}).to_message()
    again = {**assignment, "purpose": "profiling", "profile": PROFILE, "runtime_plan": plan}
    generation = agent.start_generation(source, again, 2)
    done = generation.leader.wait_for_event("profile_done", 60)
    levels = [event for event in generation.leader.of_kind("event") if event["kind"] == "profile_level"]
    assert levels[0]["gpus"] == 1
    if done["reason"] != "no_gain":
        assert [level["gpus"] for level in levels] == [1, 2]
    assert levels[-1]["gpus"] == 2
    assert [worker.end() for worker in generation.workers] == [0, 0]
