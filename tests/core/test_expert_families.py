"""Plan families of functions with experts, and the runtime plans that carry their packing."""

from __future__ import annotations

import pytest

from scheduling.core.runtime_plans.choosing import GradientOrders, choose_runtime_plan
from scheduling.core.runtime_plans.expert_families import (
    gradients_of,
    has_experts,
    packing_of,
    packing_on,
    with_experts,
    with_gradients,
    without_gradient_plan,
)
from scheduling.core.runtime_plans.plan import RuntimePlan
from workers.runtime.synchronisation.plan import RuntimePlan as PlanOfAWorker


@pytest.mark.parametrize(
    ("family", "gradients", "packing"),
    [
        ("moe", "dense", None),
        ("moe(packing=2)", "dense", 2),
        ("lossless+moe", "lossless", None),
        ("lossy(fp16+onebit)+moe(packing=4)", "lossy(fp16+onebit)", 4),
    ],
)
def test_a_name_says_gradients_and_packing(family: str, gradients: str, packing: int | None) -> None:
    assert has_experts(family)
    assert (gradients_of(family), packing_of(family)) == (gradients, packing)
    assert with_experts(gradients, packing) == family
    assert with_gradients(without_gradient_plan(family), gradients) == family


@pytest.mark.parametrize("family", ["dense", "lossless", "lossy", "lossy(fp16+onebit)"])
def test_other_families_stay_as_they_are(family: str) -> None:
    assert not has_experts(family)
    assert (gradients_of(family), packing_of(family)) == (family, None)
    assert without_gradient_plan(family) == "dense"
    assert with_gradients("dense", family) == family


@pytest.mark.parametrize(
    ("workers", "packing", "used"), [(1, 2, 1), (2, 2, 2), (8, 4, 4), (6, 4, 3), (3, 2, 1), (12, 8, 6)]
)
def test_packing_divides_the_workers(workers: int, packing: int, used: int) -> None:
    assert packing_on(workers, packing) == used


def choices(plan: RuntimePlan, ranks: int | None = None) -> dict[str, object]:
    read = PlanOfAWorker.from_message(plan.to_message())
    chosen = read.synchronisers if ranks is None else read.at(ranks).synchronisers
    (experts,) = [dict(one.choices) for one in chosen if one.kind == "expert_parallel"]
    return experts


def test_the_plan_carries_the_packing_of_its_family() -> None:
    assert choices(choose_runtime_plan([1, 1], "moe(packing=2)")) == {"packing": 2}
    assert choices(choose_runtime_plan([1, 1], "moe")) == {}
    assert choices(choose_runtime_plan([1, 1])) == {}


def test_a_measurement_has_the_packing_of_each_level() -> None:
    plan = choose_runtime_plan([1] * 6, "moe(packing=2)", at_levels=dict.fromkeys([1, 2, 3, 6]))
    assert [choices(plan, ranks)["packing"] for ranks in (1, 2, 3, 6)] == [1, 2, 1, 2]


def test_packing_goes_with_plans_of_gradients() -> None:
    orders = GradientOrders(None, {"digest": "0"}, ("weight",))
    plan = choose_runtime_plan([1, 1], "lossless+moe(packing=2)", orders)
    assert choices(plan) == {"packing": 2}
    assert [one.kind for one in plan.synchronisers] == ["expert_parallel", "sparse", "compressed"]
