"""Fused gradients on real ranks: the mean for any groups; nothing is lost between iterations."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from communication.cupcake.plan import FusionPlan
from communication.espresso.decision_tree import gpu_options
from communication.espresso.operations import operations
from communication.espresso.options import Option, option_code
from communication.hooks.codecs.dgc import DGC
from communication.hooks.codecs.identity import Identity
from communication.hooks.codecs.interface import Codec
from communication.hooks.codecs.names import codec_named
from communication.hooks.codecs.random_k import RandomK
from communication.hooks.feedback import ErrorFeedback
from communication.hooks.fusion import FusedGradients
from communication.hooks.fusion_orders import FusionOrders, parse_fusion_plan
from communication.hooks.groups import PlacementGroups
from communication.hooks.residuals import RESIDUAL, from_state
from communication.plan import Prediction
from communication.profiles.codec import Device, WireFormat
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape
from tests.communication.hooks.ranks import run_on_ranks

PARTITIONS = {"layer-wise": (1, 2, 3, 4, 5, 6), "two groups": (3, 6), "one group": (6,)}
TENTH = WireFormat(kept_share=0.1, value_bits=32, index_bits=32)


def the_codec(name: str) -> Codec:
    if name in ("dgc", "random-k"):
        return (DGC if name == "dgc" else RandomK)(TENTH)
    return codec_named(name)


def the_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 11), nn.Tanh(), nn.Linear(11, 5), nn.Tanh(), nn.Linear(5, 2))


def gradients_in_order(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return parameters in the order in which gradients are ready: the last layer's first."""
    return dict(reversed(list(model.named_parameters())))


def message(shape: PlacementShape, boundaries: tuple[int, ...], codec: str = "none") -> dict[str, Any]:
    """Return the message of the plan that fuses the model's gradients at these boundaries."""
    gradients = gradients_in_order(the_model())
    elements = np.array([gradient.numel() for gradient in gradients.values()])
    model = ModelProfile("model", tuple(gradients), elements, np.ones(len(elements)))
    prediction = Prediction(1.0, 0.0, 0.0)
    return FusionPlan(
        codec, Device.GPU, codec == "none", boundaries, model.layout, shape, prediction, 0
    ).to_message()


def orders(shape: PlacementShape, boundaries: tuple[int, ...], codec: str = "none") -> FusionOrders:
    gradients = gradients_in_order(the_model())
    sizes = [gradient.numel() for gradient in gradients.values()]
    return parse_fusion_plan(message(shape, boundaries, codec), list(gradients), sizes)


def fused(
    model: nn.Module,
    group_orders: FusionOrders,
    groups: PlacementGroups,
    codec: Codec | None = None,
    option: Option | None = None,
) -> FusedGradients:
    feedback = ErrorFeedback(codec or the_codec(group_orders.codec))
    gradients = gradients_in_order(model)
    return FusedGradients(
        gradients,
        group_orders.boundaries,
        [option or group_orders.option] * len(group_orders.boundaries),
        feedback,
        groups,
        plan_digest=group_orders.digest,
        seed=3,
    )


def backward(model: nn.Module, step: int) -> None:
    """Run the backward pass of this rank's batch, which depends only on rank and step."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    model.zero_grad()
    model(torch.randn(4, 7, generator=generator)).square().mean().backward()


def flat_gradients(model: nn.Module) -> Tensor:
    return torch.cat(
        [parameter.grad.reshape(-1) for parameter in model.parameters() if parameter.grad is not None]
    )


def step(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad


# -- on ranks


def trained_beside_dense(shape: PlacementShape) -> dict[str, float]:
    """Return for each partition the largest deviation from parameters trained with all-reduces."""
    groups = PlacementGroups.open(shape)
    deviations = {}
    for partition, boundaries in PARTITIONS.items():
        for codec in (None, Identity()):
            group_orders = orders(shape, boundaries, "none" if codec is None else "random-k")
            model, dense = the_model(), the_model()
            synchroniser = fused(model, group_orders, groups, codec)
            for number in range(2):
                backward(model, number)
                synchroniser.after_backward()
                backward(dense, number)
                for parameter in dense.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= shape.workers
                step(model)
                step(dense)
            synchroniser.close()
            assert synchroniser.state() == {}
            both = zip(model.parameters(), dense.parameters(), strict=True)
            deviations[f"{partition} {codec is None}"] = max(float((a - b).abs().max()) for a, b in both)
    groups.close()
    return deviations


def option_with_an_idle_rank(shape: PlacementShape) -> Option:
    """Return an option under which some rank encodes nothing."""
    ranks = list(product(range(shape.servers), range(shape.gpus_per_server)))
    for option in gpu_options():
        points = [operation for operation in operations(option, shape) if operation.point is not None]
        encoding = [any(point.takes_part(*rank) for point in points) for rank in ranks]
        if any(encoding) and not all(encoding):
            return option
    raise AssertionError("no such option")


def interrupted(shape: PlacementShape, codec: str, option: Option | None) -> list[Tensor]:
    """Return the parameters after four iterations: undisturbed; with a new synchroniser after two; and with a
    new synchroniser that loads another rank's state."""
    groups, group_orders = PlacementGroups.open(shape), orders(shape, (2, 6), codec)
    results = []
    for offset in (None, 0, 1):
        model = the_model()
        synchroniser = fused(model, group_orders, groups, option=option)
        for number in range(4):
            if number == 2 and offset is not None:
                state = {name: values.clone() for name, values in synchroniser.state().items()}
                synchroniser.close()
                synchroniser = fused(model, group_orders, groups, option=option)
                states: list[Any] = [None] * shape.workers
                dist.all_gather_object(states, state)
                synchroniser.load_state([states[(dist.get_rank() + offset) % shape.workers]])
            backward(model, number)
            synchroniser.after_backward()
            step(model)
        synchroniser.close()
        results.append(torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]))
    groups.close()
    return results


def residual_sums(states: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    sums = {name: torch.zeros(item.numel()) for name, item in the_model().named_parameters()}
    for state in states:
        for item in from_state({name: values for name, values in state.items() if name != "origin"}):
            if item.kind == RESIDUAL:
                sums[item.parameter][item.start : item.start + len(item.values)] += item.values
    return sums


def moved_to_fewer_ranks(codec: str, before: PlacementShape, after: PlacementShape) -> float:
    """Return how much of the residuals is lost when four ranks become two, which then compute zeros."""
    groups, model = PlacementGroups.open(before), the_model()
    synchroniser = fused(model, orders(before, (2, 6), codec), groups)
    for number in range(2):
        backward(model, number)
        synchroniser.after_backward()
    synchroniser.close()
    states: list[Any] = [None] * before.workers
    dist.all_gather_object(states, synchroniser.state())
    expected = residual_sums(states)
    assert sum(float(tensor.abs().sum()) for tensor in expected.values()) > 1e-3
    pair = dist.new_group([0, 1])
    lost = 0.0
    if dist.get_rank() < 2:
        groups = PlacementGroups.open(after, pair)
        synchroniser = fused(model, orders(after, (6,), codec), groups)
        synchroniser.load_state(states[dist.get_rank() :: 2])
        again: list[Any] = [None, None]
        dist.all_gather_object(again, synchroniser.state(), group=pair)
        lost = max(
            float((expected[name] - tensor).abs().max()) for name, tensor in residual_sums(again).items()
        )
        model.zero_grad()
        (model(torch.zeros(1, 7)).sum() * 0.0).backward()
        synchroniser.after_backward()
        dist.all_gather_object(again, synchroniser.state(), group=pair)
        remaining = residual_sums(again)
        for name, tensor in model.named_parameters():
            assert tensor.grad is not None
            lost = max(lost, float((remaining[name] + tensor.grad.reshape(-1) - expected[name]).abs().max()))
        synchroniser.close()
    dist.barrier()
    return lost


def lost_of_a_layer_used_in_turns(codec: str) -> float:
    """Return how much of a layer's gradients is neither applied nor a residual, if no rank uses it in every
    second iteration."""
    shape = PlacementShape(1, 2)
    groups, model = PlacementGroups.open(shape), the_model()
    synchroniser = fused(model, orders(shape, (2, 6), codec), groups)
    weight = model[4].weight
    total, applied = torch.zeros_like(weight), torch.zeros_like(weight)
    for number in range(4):
        generator = torch.Generator().manual_seed(10 * number + dist.get_rank())
        uses = model if number % 2 == 0 else model[:4]
        model.zero_grad()
        uses(torch.randn(4, 7, generator=generator)).square().mean().backward()
        total += 0.0 if weight.grad is None else weight.grad / shape.workers
        is_unused = weight.grad is None
        synchroniser.after_backward()
        if is_unused:
            synchroniser.take_back([weight])
        else:
            applied += weight.grad
    synchroniser.close()
    dist.all_reduce(total)
    states: list[Any] = [None] * shape.workers
    dist.all_gather_object(states, synchroniser.state())
    groups.close()
    return float((total - applied - residual_sums(states)["4.weight"].view_as(weight)).abs().max())


class _Noting(Identity):
    """Notes how many gradients are ready when a group is encoded."""

    def __init__(self) -> None:
        super().__init__()
        self.ready: list[int] = []
        self.count = 0

    def encode(self, values: Tensor, seed: int) -> Tensor:
        self.ready.append(self.count)
        return super().encode(values, seed)


def when_groups_are_sent(shape: PlacementShape) -> list[int]:
    groups, model, codec = PlacementGroups.open(shape), the_model(), _Noting()

    def note(_: Tensor) -> None:
        codec.count += 1

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(note)
    synchroniser = fused(model, orders(shape, (2, 4, 6), "random-k"), groups, codec)
    backward(model, 0)
    synchroniser.after_backward()
    synchroniser.close()
    return codec.ready


def with_a_layer_that_one_rank_uses() -> list[Any]:
    """Return gradients of layers used by all ranks, by the first rank and by none, then the gradient of the
    first layer with an inactive synchroniser."""
    shape = PlacementShape(1, 2)
    groups = PlacementGroups.open(shape)
    layers = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(3))
    gradients = gradients_in_order(layers)
    active = [True]
    synchroniser = FusedGradients(
        gradients,
        (2, 3),
        [orders(shape, (6,)).option] * 2,
        ErrorFeedback(codec_named("none")),
        groups,
        plan_digest="0" * 64,
        active=lambda: active[0],
    )
    used = layers[:2] if dist.get_rank() == 0 else layers[:1]
    sum(layer(torch.ones(1)).sum() for layer in used).backward()
    synchroniser.after_backward()
    values = [None if item.weight.grad is None else item.weight.grad.item() for item in layers]
    active[0] = False
    layers.zero_grad()
    layers[0](torch.ones(1) * (1 + dist.get_rank())).sum().backward()
    synchroniser.close()
    return [*values, layers[0].weight.grad.item()]


# -- tests


@pytest.mark.parametrize(
    "shape",
    [PlacementShape(1, 2), PlacementShape(2, 2), pytest.param(PlacementShape(2, 1), marks=pytest.mark.slow)],
    ids=str,
)
def test_lossless_plans_train_like_all_reduces(shape: PlacementShape) -> None:
    for deviations in run_on_ranks(shape.workers, trained_beside_dense, shape):
        assert len(deviations) == 6
        assert max(deviations.values()) < 1e-6, deviations


@pytest.mark.parametrize(
    ("shape", "codec", "some_rank_is_idle"),
    [
        (PlacementShape(2, 2), "dgc", False),
        (PlacementShape(1, 2), "random-k", False),
        (PlacementShape(2, 2), "random-k", True),
    ],
    ids=str,
)
def test_training_resumes_from_its_own_state_with_the_same_bits(
    shape: PlacementShape, codec: str, some_rank_is_idle: bool
) -> None:
    option = option_with_an_idle_rank(shape) if some_rank_is_idle else None
    results = run_on_ranks(shape.workers, interrupted, shape, codec, option)
    for undisturbed, resumed, exchanged in results:
        assert torch.equal(undisturbed, resumed)
        # With another rank's state the result differs, but equally on all ranks.
        assert not torch.equal(undisturbed, exchanged)
        assert torch.equal(undisturbed, results[0][0])
        assert torch.equal(exchanged, results[0][2])


@pytest.mark.parametrize(
    ("codec", "before", "after"),
    [
        ("dgc", PlacementShape(2, 2), PlacementShape(1, 2)),
        ("onebit", PlacementShape(1, 4), PlacementShape(2, 1)),
    ],
    ids=str,
)
def test_nothing_is_lost_with_fewer_ranks(codec: str, before: PlacementShape, after: PlacementShape) -> None:
    assert max(run_on_ranks(4, moved_to_fewer_ranks, codec, before, after)) < 1e-6


@pytest.mark.parametrize("codec", ["random-k", "onebit"])
def test_nothing_is_lost_of_a_layer_that_no_rank_uses_at_times(codec: str) -> None:
    assert max(run_on_ranks(2, lost_of_a_layer_used_in_turns, codec)) < 1e-6


def test_a_group_is_sent_during_the_backward_pass() -> None:
    for ready in run_on_ranks(2, when_groups_are_sent, PlacementShape(1, 2)):
        assert ready == [2, 4, 6]


def test_missing_gradients_count_as_zeros() -> None:
    first, second = run_on_ranks(2, with_a_layer_that_one_rank_uses)
    assert first == [1.0, 0.5, 0.0, 1.0]
    assert second == [1.0, 0.5, 0.0, 2.0]


def test_groups_are_exchanged_as_planners_assume() -> None:
    """On several servers only exchanges between servers are compressed."""
    packed, spread = PlacementShape(1, 4), PlacementShape(2, 4)
    assert option_code(orders(packed, (6,)).option) == "Comm/all-reduce/flat"
    assert option_code(orders(packed, (6,), "dgc").option) == (
        "Comp/encode/gpu Comm_c/all-gather/flat Decomp/decode/gpu"
    )
    assert option_code(orders(spread, (6,)).option) == (
        "Comm1/reduce-scatter/intra Comm/all-reduce/inter Comm2/all-gather/intra"
    )
    assert option_code(orders(spread, (6,), "dgc").option) == (
        "Comm1/reduce-scatter/intra Comp/encode/gpu Comm_c/all-gather/inter Decomp/decode/gpu "
        "Comm2/all-gather/intra"
    )


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"planner": "zen"}, "not a message of the planner"),
        ({"digest": "0" * 64}, "digest of the plan"),
        ({"boundaries": [3]}, "digest of the plan"),
    ],
)
def test_a_changed_message_is_refused(change: dict[str, Any], complaint: str) -> None:
    gradients = gradients_in_order(the_model())
    sizes = [gradient.numel() for gradient in gradients.values()]
    original = message(PlacementShape(1, 2), (2, 6))
    assert parse_fusion_plan(original, list(gradients), sizes).boundaries == (2, 6)
    with pytest.raises(ValueError, match=complaint):
        parse_fusion_plan({**original, **change}, list(gradients), sizes)
    with pytest.raises(ValueError, match="the plan is for other gradients"):
        parse_fusion_plan(original, list(gradients), [1] * len(sizes))


@pytest.mark.parametrize("boundaries", [(3,), (2, 2, 6), (6, 3), (0, 6), (7,), ()])
def test_boundaries_that_are_no_partition_are_refused(boundaries: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="boundaries .*ascend"):
        orders(PlacementShape(1, 2), boundaries)
