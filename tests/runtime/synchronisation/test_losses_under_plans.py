"""The examples learn under plans as without: rescaled twice and killed once, under plans made from measured
gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from communication.combined.choosing import choose
from communication.combined.grouping import others
from communication.combined.question import PlanQuestion
from communication.profiles.placement import PlacementShape
from scheduling.core.runtime_plans.choosing import GradientOrders, choose_runtime_plan
from scheduling.core.runtime_plans.plan import codecs_of_family
from scheduling.gradient_records import codecs_of, model_of, sparse_of
from tests.runtime.conftest import EXAMPLES, emulated
from tests.runtime.synchronisation.test_plans_followed import SLOW
from workers.runtime.at_home.local_agent import Generation, LocalAgent, runtime_plan
from workers.runtime.try_function import find_entry

PACE = emulated(fixed_seconds=0.03)
#: By example: batch, iterations, and the iteration at which losses are compared.
RUNS = {"image_classifier": (64, 300), "character_model": (16, 240), "recommender": (256, 300)}
#: With steps in proportion to gradients, for which very lossy codecs are made.
PLAIN = "plain_classifier"
PLAIN_SOURCE = """

class PlainClassifier(ImageClassifier):
    def init_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.05)
"""
#: Tolerance relative to training without a plan.
LOSSLESS_TOLERANCE, LOSSY_TOLERANCE = 1e-3, 0.03
Plans = Mapping[int, dict[str, Any]]


@dataclass(frozen=True)
class Run:
    source: Path
    entry: str
    batch: int
    iterations: int


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Return an example, or the classifier with plain gradient descent."""
    name = request.param
    source = EXAMPLES / f"{name}.py"
    if name != PLAIN:
        return Run(source, find_entry(source), *RUNS[name])
    example = EXAMPLES / "image_classifier.py"
    source = tmp_path / f"{name}.py"
    source.write_text(example.read_text() + PLAIN_SOURCE)
    return Run(source, f"{name}:PlainClassifier", *RUNS["image_classifier"])


def _assignment(run: Run) -> dict[str, Any]:
    return {
        "function": {"entry": run.entry},
        "hyperparameters": {"global_batch_size": run.batch},
        "termination": {"max_iterations": run.iterations, "target": None},
        "seed": 1,
    }


def _plans(agent: LocalAgent, run: Run, family: str) -> Plans:
    """Return a family's plan on two and on four ranks that wins on slow links."""
    codecs = codecs_of_family(family)
    profile = {"levels": [2, 4], "seconds_per_level": 0.2, "max_seconds": 120}
    measured = agent.start_generation(
        run.source, {**_assignment(run), "purpose": "profiling", "profile": profile}, 4
    )
    measured.leader.wait_for_event("profile_done", 120)
    made = {}
    for event in measured.leader.of_kind("event"):
        if event["kind"] != "communication_profile":
            continue
        question = PlanQuestion(
            "job", model_of(event), PlacementShape(1, event["gpus"]), SLOW, sparse_of(event),
            codecs_of(event), lossy=bool(codecs), codec_names=codecs,
        )  # fmt: skip
        chosen = choose(question).chosen
        rest = others(question, chosen)
        assert chosen.codec in (codecs or ("none",))
        messages = chosen.messages
        orders = GradientOrders(
            messages.get("sparse"), messages.get("rest"), rest.tensor_names if rest else ()
        )
        made[event["gpus"]] = choose_runtime_plan(["a"] * event["gpus"], family, orders).to_message()
    return made


def _through_two_rescales_and_a_kill(agent: LocalAgent, run: Run, plans: Plans) -> dict[str, Any]:
    """Train on two ranks, then four, one of which is killed; resume from the stored state, and end on two."""
    base, iterations = {**_assignment(run), "device": PACE}, run.iterations

    def generation(number: int, world_size: int, **changes: Any) -> Generation:
        assignment = {**base, "generation": number, "runtime_plan": plans[world_size], **changes}
        return agent.start_generation(run.source, assignment, world_size).wait_until_ready()

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


def _unscaled(agent: LocalAgent, run: Run) -> dict[str, Any]:
    assignment = {**_assignment(run), "runtime_plan": runtime_plan()}
    generation = agent.start_generation(run.source, assignment, 2)
    report = generation.wait_until_ready().train_from_nothing().report(240)
    generation.stop()
    return report


def _loss(report: dict[str, Any]) -> float:
    """Return the mean of the last sixth."""
    losses = [point["values"]["loss"] for point in report["history"]]
    return fmean(losses[-max(1, len(losses) // 6) :])


def _compared(agent: LocalAgent, run: Run, family: str) -> float:
    """Return the loss with a family's plans over that without, at equal steps and on the same samples."""
    plans = _plans(agent, run, family)
    without = _unscaled(agent, run)
    under = _through_two_rescales_and_a_kill(agent, run, plans)
    assert under["iterations"] == without["iterations"]
    assert under["sample_order_digest"] == without["sample_order_digest"]
    return _loss(under) / _loss(without)


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, indirect=True)
def test_a_lossless_plan_does_not_change_the_loss(agent: LocalAgent, run: Run) -> None:
    assert _compared(agent, run, "lossless") == pytest.approx(1.0, rel=LOSSLESS_TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, indirect=True)
def test_default_codecs_do_not_change_the_loss(agent: LocalAgent, run: Run) -> None:
    assert _compared(agent, run, "lossy") <= 1.0 + LOSSY_TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["ef-signsgd", "onebit", "dgc"])
@pytest.mark.parametrize("run", [PLAIN], indirect=True)
def test_error_feedback_recovers_the_loss_of_named_codecs_under_sgd(
    agent: LocalAgent, run: Run, codec: str
) -> None:
    """With other optimizers it may not be recovered: `tests/communication/hooks/test_learning.py`."""
    assert _compared(agent, run, f"lossy({codec})") <= 1.0 + LOSSY_TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["ef-signsgd", "onebit"])
@pytest.mark.parametrize("run", ["recommender"], indirect=True)
def test_error_feedback_recovers_the_recommenders_loss_under_signs(
    agent: LocalAgent, run: Run, codec: str
) -> None:
    assert _compared(agent, run, f"lossy({codec})") <= 1.0 + LOSSY_TOLERANCE
