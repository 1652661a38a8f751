"""Ranks exchange nothing before all hold the same runtime plan, and follow the kinds that it names."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from examples.recommender import Recommender
from tests.runtime.conftest import REGRESSION, emulated, regression
from workers.runtime.at_home.local_agent import LocalAgent, runtime_plan
from workers.runtime.failures import WorkerFailureError
from workers.runtime.function.parts import TrainingParts, build_parts
from workers.runtime.runtime_plan import RuntimePlan
from workers.runtime.synchronisation.dense import DenseSynchroniser
from workers.runtime.synchronisation.interface import GradientSynchroniser
from workers.runtime.synchronisation.model import DistributedModel
from workers.runtime.synchronisation.together import Synchronisation

BESIDE = {"kind": "dense", "choices": {"gradients_in_buckets": False}}
SPARSE = {"kind": "sparse", "choices": {}}


@pytest.mark.parametrize(
    ("purpose", "odd"),
    [
        ("training", 0),
        ("profiling", 2),
        *(pytest.param(*case, marks=pytest.mark.live) for case in [("training", 2), ("profiling", 0)]),
    ],
)
def test_ranks_with_different_plans_fail_before_any_exchange(
    agent: LocalAgent, purpose: str, odd: int
) -> None:
    usual, other = runtime_plan(), runtime_plan(SPARSE, BESIDE)
    profile = {"levels": [1], "seconds_per_level": 0.1, "max_seconds": 60}
    assignment = regression(purpose=purpose, profile=profile if purpose == "profiling" else None)
    generation = agent.start_generation(REGRESSION, assignment, 3, by_rank={odd: {"runtime_plan": other}})
    first, second, named = (other, usual, 1) if odd == 0 else (usual, other, 2)
    given = (
        f"rank {named} was given the runtime plan {second['digest'][:12]} and rank 0 {first['digest'][:12]}"
    )
    how_many = f"({2 if odd == 0 else 1} of 3 ranks differ from rank 0): nothing is exchanged"
    for worker in generation.workers:
        event = worker.wait_for_event("failed")
        assert event["reason"] == "start_failed"
        assert event["message"] == f"{given} {how_many}"
        assert worker.end() == 1


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        ({**runtime_plan(), "digest": "0" * 64}, "the runtime plan's content has the digest"),
        ({**runtime_plan(), "shape": "spread"}, "the runtime plan's content has the digest"),
        ({}, "the assignment lacks 'digest'"),
        (
            runtime_plan({"kind": "magic", "choices": {}}),
            "no synchroniser 'magic', only compressed, dense, expert_parallel, lina, sparse, zen",
        ),
        (runtime_plan(SPARSE), "leaves the gradients of 0.weight to nobody"),
        (runtime_plan({"kind": "dense", "choices": {}}), "synchroniser 'dense' cannot do what was chosen"),
        (runtime_plan({**SPARSE, "choices": {"a": 1}}), "there is nothing to choose, but it was given ['a']"),
    ],
)
def test_an_impossible_plan_fails_the_start_with_the_reason(
    agent: LocalAgent, plan: Mapping[str, Any], complaint: str
) -> None:
    assignment = regression(runtime_plan=plan)
    generation = agent.start_generation(REGRESSION, assignment, 1)
    event = generation.leader.wait_for_event("failed")
    # An unreadable plan was not made by the control plane.
    unread = "lacks" in complaint or "digest" in complaint
    assert event["reason"] == ("start_failed" if unread else "plan_refused")
    assert complaint in event["message"]


def test_following_another_plan_trains_the_same(agent: LocalAgent) -> None:
    reports = []
    for plan in (runtime_plan(), runtime_plan(SPARSE, BESIDE)):
        generation = agent.start_generation(REGRESSION, regression(runtime_plan=plan), 2).wait_until_ready()
        reports.append(generation.train_from_nothing().report())
    assert reports[0]["final"] == reports[1]["final"]


def parts_of_the_recommender() -> TrainingParts:
    function = Recommender({"global_batch_size": 8})
    return build_parts(function, torch.device("cpu"), 0)


@pytest.mark.parametrize("in_buckets", [True, False])
def test_settings_chosen_for_dense_gradients_reach_ddp(alone: None, in_buckets: bool) -> None:
    dense = {"kind": "dense", "choices": {"gradients_in_buckets": in_buckets}}
    plan = RuntimePlan.from_message(runtime_plan(SPARSE, dense))
    assert Synchronisation(plan, parts_of_the_recommender()).model.gradient_as_bucket_view is in_buckets


class Biases(GradientSynchroniser):
    """A kind of the test's own: it takes the biases and notes when the backward pass is over."""

    def __init__(self, choices: Mapping[str, Any]) -> None:
        self.seen: list[str] = choices["seen"]

    def takes(self, parts: TrainingParts, left: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in left.items() if name.endswith("bias")}

    def wrap(
        self, parts: TrainingParts, group: dist.ProcessGroup | None, parameters: Mapping[str, nn.Parameter]
    ) -> DistributedModel | None:
        self.seen.extend(parameters)
        return None

    def begin_alike(self) -> None:
        return

    def after_backward(self) -> None:
        self.seen.append("after the backward pass")

    def state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        return


def test_each_kind_takes_the_gradients_left_by_earlier_kinds(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "workers.runtime.synchronisation.together.KINDS", {"biases": Biases, "dense": DenseSynchroniser}
    )
    seen: list[str] = []
    parts = parts_of_the_recommender()
    message = runtime_plan({"kind": "biases", "choices": {"seen": seen}}, BESIDE)
    synchronisation = Synchronisation(RuntimePlan.from_message(message), parts)
    biases = [name for name, _ in parts.module.named_parameters() if name.endswith("bias")]
    assert seen == biases != []
    assert set(biases) <= set(synchronisation.model.parameters_to_ignore)
    synchronisation.after_backward()
    assert seen[-1] == "after the backward pass"


def test_without_a_sparse_kind_tables_go_to_the_dense_one(alone: None) -> None:
    with_it = Synchronisation(RuntimePlan.from_message(runtime_plan()), parts_of_the_recommender())
    without = Synchronisation(RuntimePlan.from_message(runtime_plan(BESIDE)), parts_of_the_recommender())
    assert set(with_it.model.parameters_to_ignore) > set(without.model.parameters_to_ignore) == set()


def test_gradients_taken_by_no_kind_are_refused(alone: None) -> None:
    with pytest.raises(WorkerFailureError, match="to nobody"):
        Synchronisation(RuntimePlan.from_message(runtime_plan(SPARSE)), parts_of_the_recommender())


def test_a_kind_that_is_named_twice_is_refused(alone: None) -> None:
    with pytest.raises(WorkerFailureError, match="a kind twice"):
        Synchronisation(RuntimePlan.from_message(runtime_plan(BESIDE, BESIDE)), parts_of_the_recommender())


RESIDUALS = """
import torch.distributed as dist
from workers.runtime.synchronisation.interface import GradientSynchroniser
from workers.runtime.synchronisation.kinds import KINDS

class Residuals(GradientSynchroniser):
    def __init__(self, choices):
        self.left_over = torch.full((2, 3), float(choices["of_each_rank"])) * (1 + dist.get_rank())
    def takes(self, parts, left):
        return {}
    def wrap(self, parts, group, parameters):
        return None
    def begin_alike(self):
        pass
    def after_backward(self):
        pass
    def state(self):
        return {"left over": self.left_over}
    def load_state(self, states):
        self.left_over = sum((one["left over"] for one in states), torch.zeros(2, 3))

KINDS["residuals"] = Residuals
"""


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_per_rank_residuals_keep_their_sum_when_rescaled(
    agent: LocalAgent, tmp_path: Path, ranks: int
) -> None:
    """Two ranks keep 1 and 2; handed over through memory, then written to files."""
    source = tmp_path / REGRESSION.name
    source.write_text(REGRESSION.read_text() + RESIDUALS)
    plan = runtime_plan({"kind": "residuals", "choices": {"of_each_rank": 1}}, SPARSE, BESIDE)
    assignment = regression(iterations=10**6, runtime_plan=plan, device=emulated())
    old = agent.start_generation(source, assignment, 2).wait_until_ready().train_from_nothing()
    old.wait_for_iteration(2)
    new = agent.start_generation(source, {**assignment, "generation": 2}, ranks)
    new.wait_until_ready().train_from(old)
    new.leader.wait_for_event("first_iteration")
    new.goal("suspend")
    residuals = []
    for content in new.checkpoint_files().shards:
        shard = torch.load(io.BytesIO(content), weights_only=True)
        assert [(entry["path"], entry["shape"]) for entry in shard["own"]] == [
            (("residuals", "left over"), (2, 3))
        ]
        residuals.append(shard["values"][-1].view(2, 3))
    assert [float(residual[0, 0]) for residual in residuals] == ([3.0] if ranks == 1 else [1.0, 2.0, 0.0])
    assert torch.equal(sum(residuals, torch.zeros(2, 3)), torch.full((2, 3), 3.0))
