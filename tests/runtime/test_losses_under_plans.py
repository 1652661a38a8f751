"""The examples learn under plans as without: rescaled twice and once killed, from what a plan of measured
gradients has made of them."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

import pytest

from communication.combined.choosing import choose
from communication.combined.grouping import others
from communication.combined.question import PlanQuestion
from communication.profiles.placement import PlacementShape
from scheduling.core.runtime_plans.choosing import GradientOrders, choose_runtime_plan
from scheduling.gradient_records import codecs_of, model_of, sparse_of
from tests.runtime.conftest import EXAMPLES, emulated
from tests.runtime.test_plans_followed import SLOW
from workers.runtime.local_agent import Generation, LocalAgent, runtime_plan
from workers.runtime.try_function import find_entry

PACE = emulated(fixed_seconds=0.03)
#: By example: batch, iterations, where losses are compared.
RUNS = {"image_classifier": (64, 300), "character_model": (16, 240), "recommender": (256, 300)}
#: Within which of training without a plan.
LOSSLESS_TOLERANCE, LOSSY_TOLERANCE = 1e-3, 0.03
SIGNS = ("ef-signsgd", "onebit")
#: Signs with one scale for each group of gradients leave 1.4 to 6 times the loss after so few steps: a known
#: fault. Whoever mends it is told by this mark.
BEHIND = pytest.mark.xfail(reason="signs of whole groups learn too slowly", strict=True)
Plans = Mapping[int, dict[str, Any]]


def _assignment(name: str) -> dict[str, Any]:
    batch, iterations = RUNS[name]
    return {
        "function": {"entry": find_entry(EXAMPLES / f"{name}.py")},
        "hyperparameters": {"global_batch_size": batch},
        "termination": {"max_iterations": iterations, "target": None},
        "seed": 1,
    }


def _plans(agent: LocalAgent, name: str, codec: str | None) -> Plans:
    """The plan of two and of four ranks that wins on slow links; without a codec it loses nothing."""
    profile = {"levels": [2, 4], "seconds_per_level": 0.2, "max_seconds": 120}
    measured = agent.start_generation(
        EXAMPLES / f"{name}.py", {**_assignment(name), "purpose": "profiling", "profile": profile}, 4
    )
    measured.leader.wait_for_event("profile_done", 120)
    found = {}
    for told in measured.leader.of_kind("event"):
        if told["kind"] != "communication_profile":
            continue
        question = PlanQuestion(
            name, model_of(told), PlacementShape(1, told["gpus"]), SLOW, sparse_of(told), codecs_of(told),
            lossy=codec is not None, codec_names=(codec,) if codec else (),
        )  # fmt: skip
        chosen = choose(question).chosen
        rest = others(question, chosen)
        assert chosen.codec == (codec or "none")
        messages = chosen.messages
        orders = GradientOrders(
            messages.get("sparse"), messages.get("rest"), rest.tensor_names if rest else ()
        )
        family = "lossless" if codec is None else f"lossy({codec})"
        found[told["gpus"]] = choose_runtime_plan(["a"] * told["gpus"], family, orders).to_message()
    return found


def _through_two_rescales_and_a_kill(agent: LocalAgent, name: str, plans: Plans) -> dict[str, Any]:
    """From two ranks to four, one of which is killed; on from what was stored, and back to two."""
    source, base = EXAMPLES / f"{name}.py", {**_assignment(name), "device": PACE}
    iterations = base["termination"]["max_iterations"]

    def generation(number: int, world_size: int, **changes: Any) -> Generation:
        told = {**base, "generation": number, "runtime_plan": plans[world_size], **changes}
        return agent.start_generation(source, told, world_size).wait_until_ready()

    first = generation(1, 2).train_from_nothing()
    second = generation(2, 4, checkpoint_seconds=1)
    first.wait_for_iteration(iterations // 6)
    second.train_from(first)
    stored = second.checkpoint_files()
    first.stop()
    assert iterations // 6 < stored.iteration < iterations
    second.workers[3].kill()
    assert second.leader.wait_for_event("failed")["reason"] == "peer_lost"
    second.stop()
    third = generation(3, 4).train_from_checkpoint(stored)
    fourth = generation(4, 2)
    assert third.leader.wait_for_event("first_iteration")["iteration"] == stored.iteration + 1
    fourth.train_from(third)
    report = fourth.report(240)
    third.stop()
    fourth.stop()
    return report


def _unscaled(agent: LocalAgent, name: str) -> dict[str, Any]:
    generation = agent.start_generation(
        EXAMPLES / f"{name}.py", {**_assignment(name), "runtime_plan": runtime_plan()}, 2
    )
    report = generation.wait_until_ready().train_from_nothing().report(240)
    generation.stop()
    return report


def _loss(report: dict[str, Any]) -> float:
    """Mean of the last sixth."""
    losses = [point["values"]["loss"] for point in report["history"]]
    return fmean(losses[-max(1, len(losses) // 6) :])


def _compared(agent: LocalAgent, name: str, codec: str | None) -> float:
    """Loss with plans over that without, at equal steps and on the same samples."""
    plans = _plans(agent, name, codec)
    without = _unscaled(agent, name)
    under = _through_two_rescales_and_a_kill(agent, name, plans)
    assert under["iterations"] == without["iterations"]
    assert under["sample_order_digest"] == without["sample_order_digest"]
    return _loss(under) / _loss(without)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_lost_under_a_lossless_plan(agent: LocalAgent, name: str) -> None:
    assert _compared(agent, name, None) == pytest.approx(1.0, rel=LOSSLESS_TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "codec"),
    [
        *((name, "fp16") for name in RUNS),
        *(("recommender", codec) for codec in SIGNS),
        *(
            pytest.param(name, codec, marks=BEHIND)
            for name in RUNS
            if name != "recommender"
            for codec in SIGNS
        ),
    ],
)
def test_what_codecs_lose_is_made_up_for(agent: LocalAgent, name: str, codec: str) -> None:
    assert _compared(agent, name, codec) <= 1.0 + LOSSY_TOLERANCE
