"""Plan families of functions with experts."""

from __future__ import annotations

import pytest

from scheduling.core.runtime_plans.choosing import GradientOrders, choose_runtime_plan
from scheduling.core.runtime_plans.expert_families import (
    gradients_of,
    has_experts,
    with_experts,
    with_gradients,
    without_gradient_plan,
)
from workers.runtime.runtime_plan import RuntimePlan as PlanOfAWorker
from workers.runtime.synchronisation.kinds import KINDS


@pytest.mark.parametrize(
    ("family", "gradients"),
    [("moe", "dense"), ("lossless+moe", "lossless"), ("lossy(fp16+onebit)+moe", "lossy(fp16+onebit)")],
)
def test_family_name_encodes_gradients_and_experts(family: str, gradients: str) -> None:
    assert has_experts(family)
    assert gradients_of(family) == gradients
    assert with_experts(gradients) == family
    assert with_gradients(without_gradient_plan(family), gradients) == family


@pytest.mark.parametrize("family", ["dense", "lossless", "lossy", "lossy(fp16+onebit)"])
def test_other_families_stay_as_they_are(family: str) -> None:
    assert not has_experts(family)
    assert gradients_of(family) == family
    assert without_gradient_plan(family) == "dense"
    assert with_gradients("dense", family) == family


@pytest.mark.parametrize(
    ("memory", "packs"), [({}, {"packs": False}), ({"expert_bytes": 9}, {"packs": True, "expert_bytes": 9})]
)
def test_experts_move_only_within_known_memory(memory: dict[str, int], packs: dict[str, int]) -> None:
    schedule = {"mode": "leader", "partition_bytes": 7, "digest": "0"}
    orders = GradientOrders(None, None, (), {**schedule, **memory})
    plan = choose_runtime_plan([1, 1], "lossless+moe", orders)
    (read,) = PlanOfAWorker.from_message(plan.to_message()).synchronisers
    assert dict(read.choices) == {"mode": "leader", "partition_bytes": 7, **packs}
    KINDS[read.kind](read.choices)
