"""Espresso's plans on real ranks: each gradient is exchanged by its option, and all ranks get the mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from communication.combined.plan import GroupPlan
from communication.espresso.decision_tree import gpu_options
from communication.espresso.options import compressions
from communication.espresso.plan import EspressoPlan, TensorOption
from communication.hooks.codecs.identity import Identity
from communication.hooks.codecs.names import codec_named
from communication.hooks.feedback import ErrorFeedback
from communication.hooks.fusion import FusedGradients
from communication.hooks.groups import PlacementGroups
from communication.hooks.plan_messages import GroupOrders, orders_of
from communication.hooks.residuals import RESIDUAL, from_state
from communication.plan import Prediction, content_digest
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape
from tests.communication.hooks.ranks import run_on_ranks
from tests.communication.hooks.test_fusion import backward, gradients_in_order, message, the_model

SHAPE = PlacementShape(2, 2)


def espresso_message(seed: int, bytes_per_element: int = 4) -> dict[str, Any]:
    """Return the message of a plan with widely different options for the model's gradients."""
    options = gpu_options()
    tensors = [
        TensorOption(name, parameter.numel(), options[(seed + 29 * number) % len(options)])
        for number, (name, parameter) in enumerate(gradients_in_order(the_model()).items())
    ]
    prediction = Prediction(1.0, 0.0, 0.0)
    plan = EspressoPlan(SHAPE, "onebit", False, bytes_per_element, tuple(tensors), 0, prediction, prediction)
    return plan.to_message()


def combined_message(boundaries: tuple[int, ...] = (1, 4, 6)) -> dict[str, Any]:
    """Return the message of a plan with an option for each group."""
    gradients = gradients_in_order(the_model())
    elements = np.array([gradient.numel() for gradient in gradients.values()])
    layout = ModelProfile("model", tuple(gradients), elements, np.ones(len(elements))).layout
    prediction = Prediction(1.0, 0.0, 0.0)
    available = gpu_options()
    groups = tuple(TensorOption(str(at), 1, available[11 * at]) for at in range(len(boundaries)))
    options = EspressoPlan(SHAPE, "onebit", False, 4, groups, 0, prediction, prediction)
    return GroupPlan(boundaries, layout, options).to_message()


def orders(body: dict[str, Any]) -> GroupOrders:
    gradients = gradients_in_order(the_model())
    return orders_of(body, list(gradients), [gradient.numel() for gradient in gradients.values()])


def digested(message: dict[str, Any]) -> dict[str, Any]:
    return message | {"digest": content_digest(message)}


def carried_out(seeds: int) -> list[tuple[float, float, list[float]]]:
    """Return for several plans the deviation from the mean without compression; the deviation of sent values
    and residuals with compression; and the gradients."""
    groups, results = PlacementGroups.open(SHAPE), []
    for seed in range(seeds):
        group_orders, deviations = orders(espresso_message(seed) if seed else combined_message()), []
        for codec in (Identity(), codec_named("onebit")):
            model, dense = the_model(), the_model()
            gradients = gradients_in_order(model)
            synchroniser = FusedGradients(
                gradients,
                group_orders.boundaries,
                group_orders.options,
                ErrorFeedback(codec),
                groups,
                plan_digest=group_orders.digest,
            )
            backward(model, seed)
            synchroniser.after_backward()
            synchroniser.close()
            residuals = {name: torch.zeros(item.numel()) for name, item in gradients.items()}
            state = {name: values for name, values in synchroniser.state().items() if name != "origin"}
            for item in from_state(state):
                if item.kind == RESIDUAL:
                    residuals[item.parameter][item.start : item.start + len(item.values)] += item.values
            backward(dense, seed)
            worst = 0.0
            for name, parameter in dense.named_parameters():
                assert parameter.grad is not None
                assert gradients[name].grad is not None
                dist.all_reduce(parameter.grad)
                dist.all_reduce(residuals[name])
                sent = gradients[name].grad.reshape(-1) + residuals[name]
                worst = max(worst, float((sent - parameter.grad.reshape(-1) / 4).abs().max()))
            deviations.append(worst)
        results.append(
            (*deviations, torch.cat([gradient.grad.reshape(-1) for gradient in gradients.values()]).tolist())
        )
    groups.close()
    return results


def test_each_gradient_uses_its_own_option_and_becomes_the_mean() -> None:
    seeds = 5
    assert sum(
        compressions(option) for seed in range(seeds) for option in orders(espresso_message(seed)).options
    )
    first, *others = run_on_ranks(4, carried_out, seeds)
    for without, with_it, _ in first:
        assert without < 1e-6
        assert with_it < 1e-5
    assert all(other == first for other in others)


def test_espresso_exchanges_each_gradient_as_its_own_group() -> None:
    group_orders = orders(espresso_message(3))
    assert group_orders.boundaries == (1, 2, 3, 4, 5, 6)
    assert (group_orders.placement, group_orders.codec, len(set(group_orders.options))) == (
        SHAPE,
        "onebit",
        6,
    )
    fused = orders(message(SHAPE, (2, 6), "dgc"))
    assert (fused.boundaries, len(fused.options), len(set(fused.options))) == ((2, 6), 2, 1)
    combined = orders(combined_message())
    assert combined.boundaries == (1, 4, 6)
    assert combined.options == tuple(gpu_options()[11 * at] for at in range(3))


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (espresso_message(0) | {"codec": "dgc"}, "digest of the plan"),
        (espresso_message(0, bytes_per_element=2), "gradients are sent as FP32"),
        ({"planner": "zen"}, "not a message of the planner cupcake"),
        (combined_message() | {"digest": "0" * 64}, "digest of the plan"),
        (digested(combined_message() | {"group_options": [0, 1]}), "the number of an option"),
        (
            digested(combined_message() | {"group_options": [0, 1, 3]}),
            "has the number of an option that the plan does not have",
        ),
        (
            digested(combined_message() | {"options": ["Comm/all-reduce/flat Comm/all-reduce/flat"] * 3}),
            "that the decision tree does not have",
        ),
        (digested(combined_message() | {"boundaries": [1, 4, 7]}), "boundaries must ascend"),
        (digested(combined_message() | {"layout": "0" * 64}), "the plan is for other gradients"),
    ],
)
def test_orders_that_cannot_be_executed_are_refused(body: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        orders(body)
    with pytest.raises(ValueError, match="names, sizes or order"):
        orders_of(espresso_message(0), ["a"], [1])
