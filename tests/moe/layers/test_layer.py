"""A layer in one process: what it computes, records and refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from moe.gating.flops import LayerSizes, flops_per_token, interpolate, measured_flops
from punctual.moe import Adaptive, Gate, MoELayer, TopK, balance_loss, expert_parameters, routing_counts


def build_layer(gate: Gate = TopK(2), **options: Any) -> MoELayer:  # noqa: B008 - it is frozen
    torch.manual_seed(1)
    layer = MoELayer(8, 12, 4, gate, **options)
    with torch.no_grad():
        # Some margins are large, others small.
        layer.gate_weights.weight.mul_(2)
    return layer


def build_tokens(*shape: int) -> Tensor:
    return torch.randn(*shape, 8, generator=torch.Generator().manual_seed(2))


def gradients_of(module: nn.Module) -> dict[str, Tensor]:
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    module.zero_grad()
    return {name: gradient for name, gradient in gradients.items() if gradient is not None}


def test_output_is_the_weighted_sum_of_the_chosen_experts() -> None:
    """Against a loop over tokens, forward and backward."""
    layer, tokens = build_layer(Adaptive(0.1)), build_tokens(3, 5)
    output = layer(tokens)
    output.square().sum().backward()
    gradients = gradients_of(layer)
    probabilities = layer.gate_weights(tokens).softmax(-1)
    rows = []
    for token, row in zip(tokens.reshape(-1, 8), probabilities.reshape(-1, 4), strict=True):
        best, second = row.topk(2).indices.tolist()
        chosen = [best, second] if row[best] - row[second] <= 0.1 else [best]
        rows.append(sum(row[expert] * layer.experts[expert](token) for expert in chosen))
    expected = torch.stack(rows).view(3, 5, 8)
    torch.testing.assert_close(output, expected)
    expected.square().sum().backward()
    torch.testing.assert_close(gradients, gradients_of(layer))
    assert 0 < routing_counts(layer)[""].two_expert_share < 1


def test_thresholds_one_and_zero_are_top_two_and_top_one() -> None:
    tokens = build_tokens(3, 20)
    assert torch.equal(build_layer(Adaptive(1))(tokens), build_layer(TopK(2))(tokens))
    assert torch.equal(build_layer(Adaptive(0))(tokens), build_layer(TopK(1))(tokens))


def test_evaluation_can_use_another_gate() -> None:
    layer, tokens = build_layer(evaluation_gate=TopK(1)).eval(), build_tokens(3, 20)
    assert torch.equal(layer(tokens), build_layer(TopK(1))(tokens))


def test_single_expert_computes_every_token_once() -> None:
    layer, tokens = MoELayer(8, 12, 1, Adaptive(1)), build_tokens(2, 5)
    torch.testing.assert_close(layer(tokens), layer.experts[0](tokens))
    assert routing_counts(layer)[""].rows.tolist() == [10]


def test_balance_loss_has_gradients_through_probabilities() -> None:
    """Against finite differences, away from changes of decisions."""
    layer = build_layer(Adaptive(0.02), balance_weight=1.0).double()
    tokens = build_tokens(1, 12).double()

    def loss(weight: Tensor) -> Tensor:
        with torch.no_grad():
            layer.gate_weights.weight.copy_(weight)
        layer(tokens)
        return balance_loss(layer)

    weight = layer.gate_weights.weight.detach().clone()
    loss(weight).backward()
    gradient = layer.gate_weights.weight.grad
    assert gradient is not None
    for place in [(0, 0), (1, 3), (3, 5)]:
        step = torch.zeros_like(weight)
        step[place] = 1e-6
        difference = (loss(weight + step) - loss(weight - step)) / 2e-6
        assert gradient[place].item() == pytest.approx(difference.item(), rel=1e-5, abs=1e-9)


def test_padding_goes_nowhere_and_counts_nowhere() -> None:
    layer = build_layer(Adaptive(0.1), capacity_factor=1.0)
    tokens = build_tokens(2, 6)
    tokens[:, 4:] = torch.nan
    padded = layer(tokens, tokens.isnan().any(-1))
    padded.sum().backward()
    gradients, loss, counts = gradients_of(layer), balance_loss(layer), routing_counts(layer)[""]
    bare = layer(tokens[:, :4])
    bare.sum().backward()
    torch.testing.assert_close(padded[:, :4], bare)
    assert padded[:, 4:].abs().sum() == 0
    torch.testing.assert_close(gradients, gradients_of(layer))
    torch.testing.assert_close(loss, balance_loss(layer))
    assert counts.tokens == 8
    assert counts.rows.tolist() == routing_counts(layer)[""].rows.tolist()


def test_rows_beyond_the_capacity_are_dropped_in_order() -> None:
    """Eight rows of expert 0, which takes half of an even share of four."""
    layer = MoELayer(4, 4, 2, TopK(1), capacity_factor=0.5)
    with torch.no_grad():
        layer.gate_weights.weight.copy_(torch.tensor([[1.0, 0, 0, 0], [-1, 0, 0, 0]]))
    output = layer(torch.ones(8, 1, 4))
    assert [bool(row.any()) for row in output] == [True, True, *[False] * 6]
    counts = routing_counts(layer)[""]
    assert (counts.dropped.tolist(), counts.dropped_share) == ([6, 0], 0.75)
    layer.eval()
    assert bool(layer(torch.ones(8, 1, 4)).flatten(1).any(1).all())


def test_layer_may_run_twice_in_one_pass() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.second = build_layer()

        def forward(self, tokens: Tensor) -> Tensor:
            output: Tensor = self.second(self.first(tokens))
            return output

    model, tokens = Twice(), build_tokens(2, 5)
    loss = model(tokens).sum() + balance_loss(model)
    loss.backward()
    layer = model.first
    alone = layer(tokens)
    first_balance = balance_loss(layer)
    expected = layer(alone).sum() + first_balance + balance_loss(layer)
    torch.testing.assert_close(loss, expected)
    gradients = gradients_of(layer)
    expected.backward()
    torch.testing.assert_close(gradients, gradients_of(layer))
    counts = routing_counts(model)
    assert list(counts) == ["first"]
    assert counts["first"].tokens == 40
    names = expert_parameters(model)
    assert set(names) <= set(model.state_dict())
    assert names["second.experts.3.outer.weight"].layer == "first"
    assert names["second.experts.3.outer.weight"].expert == 3


def test_expert_without_tokens_has_a_zero_gradient() -> None:
    """DDP waits for the gradient of every parameter."""
    layer = build_layer(TopK(1))
    layer(build_tokens(1, 1)).sum().backward()
    idle = [e for e, rows in enumerate(routing_counts(layer)[""].rows.tolist()) if not rows]
    assert len(idle) == 3
    gradients = gradients_of(layer)
    assert all(not gradients[f"experts.{expert}.inner.weight"].any() for expert in idle)


def test_batch_without_tokens_gives_zero_gradients() -> None:
    layer = build_layer(capacity_factor=1.0)
    (layer(build_tokens(0, 5)).sum() + balance_loss(layer)).backward()
    assert routing_counts(layer)[""].two_expert_share == 0
    assert not any(gradient.any() for gradient in gradients_of(layer).values())


def test_frozen_experts_pass_gradients_on() -> None:
    layer = build_layer()
    layer.experts.requires_grad_(False)
    tokens = build_tokens(2, 5).requires_grad_()
    layer(tokens).sum().backward()
    assert set(gradients_of(layer)) == {"gate_weights.weight"}
    assert tokens.grad is not None
    assert bool(tokens.grad.any())


def test_gate_that_is_not_finite_is_refused() -> None:
    layer = build_layer()
    with torch.no_grad():
        layer.gate_weights.weight[0] = torch.nan
    with pytest.raises(FloatingPointError, match="not finite for 10 of 10 tokens"):
        layer(build_tokens(2, 5))


@pytest.mark.parametrize("is_autocast", [True, False])
def test_gate_is_in_single_precision_under_bf16(is_autocast: bool) -> None:
    """The same experts as in single precision, also where two are close."""
    layer, tokens = build_layer(Adaptive(0.1)).bfloat16(), build_tokens(8, 40).bfloat16()
    exact = copy.deepcopy(layer).float()
    expected = exact(tokens.float())
    if is_autocast:
        layer, tokens = exact, tokens.float()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_autocast):
        output = layer(tokens)
    assert output.dtype == tokens.dtype
    torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.02)
    assert routing_counts(exact)[""].rows.tolist() == routing_counts(layer)[""].rows.tolist() or is_autocast
    (output.sum() + balance_loss(layer)).backward()
    assert all(gradient.isfinite().all() for gradient in gradients_of(layer).values())


def test_checkpointed_layer_is_recorded_once() -> None:
    layer, tokens = build_layer(), build_tokens(2, 5).requires_grad_()
    (layer(tokens).sum() + balance_loss(layer)).backward()
    gradients, counts = gradients_of(layer), routing_counts(layer)[""]
    output = checkpoint(layer, tokens, use_reentrant=False)
    (output.sum() + balance_loss(layer)).backward()
    torch.testing.assert_close(gradients, gradients_of(layer))
    assert routing_counts(layer)[""].tokens == counts.tokens == 10
    assert balance_loss(layer).item() == 0


def test_tokens_of_each_sample_are_counted_where_asked() -> None:
    """In training passes, without padding, and once if the layer is checkpointed."""
    layer, tokens = build_layer(Adaptive(0.1)), build_tokens(3, 5).requires_grad_()
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 2:] = True
    layer(tokens, padding)
    assert not layer.records.take_sample_counts()
    layer.records.counts_samples = True
    checkpoint(layer, tokens, padding, use_reentrant=False).sum().backward()
    layer.eval()(tokens)
    (counts,) = layer.records.take_sample_counts()
    probabilities = layer.gate_weights(tokens).softmax(-1).topk(2).values
    has_two = (probabilities[..., 0] - probabilities[..., 1] <= 0.1) & ~padding
    assert counts.tolist() == [[5, 2, 5], has_two.sum(1).tolist()]
    assert len(set(counts[1].tolist())) > 1


def test_thresholds_follow_each_other_for_the_same_weights() -> None:
    layer, tokens, shares = build_layer(), build_tokens(20, 20), []
    for threshold in (0.0, 0.05, 0.1, 0.2, 0.4, 1.0):
        layer.gate = Adaptive(threshold)
        layer(tokens)
        shares.append(routing_counts(layer)[""].two_expert_share)
    assert shares == sorted(set(shares))


def test_counted_operations_are_those_of_the_formula() -> None:
    layer, tokens = build_layer(Adaptive(0.1)), build_tokens(3, 20)
    with FlopCounterMode(display=False) as counter:
        layer(tokens)
    counts = routing_counts(layer)[""]
    sizes = LayerSizes(width=8, hidden=12, sequence=20, experts=4)
    expected = measured_flops(sizes, [counts.tokens], [counts.multi_expert_tokens])
    assert counter.get_total_flops() == expected - counts.tokens * sizes.attention_flops
    law = interpolate(flops_per_token(sizes, 1), flops_per_token(sizes, 2), counts.two_expert_share)
    assert expected / counts.tokens == pytest.approx(law, rel=1e-12)


def test_reentrant_checkpoint_is_refused() -> None:
    layer, tokens = build_layer(), build_tokens(2, 5).requires_grad_()
    loss = checkpoint(layer, tokens, use_reentrant=True).sum() + balance_loss(layer)
    with pytest.raises(ValueError, match="pass use_reentrant=False"):
        loss.backward()
    # Passes without gradients of earlier iterations do not count.
    balance_loss(layer)
    (checkpoint(layer, tokens, use_reentrant=False).sum() + balance_loss(layer)).backward()


# The compiler reads `.grad` of tensors that are no leaves, and hides the warning, an error in tests.
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_compiled_model_computes_the_same() -> None:
    model = nn.Sequential(nn.Linear(8, 8), build_layer(Adaptive(0.1)), nn.Linear(8, 1))
    compiled = torch.compile(model, backend="eager")
    for samples in (3, 4):
        tokens = build_tokens(samples, 5)
        computed = []
        for form in (model, compiled):
            output = form(tokens)
            (output.sum() + balance_loss(form)).backward()
            computed.append((output.detach(), gradients_of(model), routing_counts(form).popitem()[1].tokens))
        torch.testing.assert_close(computed[0], computed[1])


def test_copy_has_no_losses_of_the_original() -> None:
    layer = build_layer()
    layer(build_tokens(2, 5))
    assert balance_loss(copy.deepcopy(layer)).item() == 0
    assert balance_loss(layer).item() > 0


def test_unused_balance_losses_give_a_warning() -> None:
    layer = MoELayer(4, 4, 2)
    for _ in range(64):
        layer(torch.zeros(2, 4))
    with pytest.warns(RuntimeWarning, match="add punctual.moe.balance_loss"):
        layer(torch.zeros(2, 4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 0}, "width is 0"),
        ({"hidden": 1.5}, "hidden is 1.5"),
        ({"experts": True}, "experts is True"),
        ({"gate": TopK(5)}, r"TopK\(5\) needs at least 5 experts; the layer has 4"),
        ({"gate": 2}, "gate is 2"),
        ({"evaluation_gate": "top-1"}, "evaluation_gate is 'top-1'"),
        ({"capacity_factor": 0.0}, "capacity_factor is 0.0"),
        ({"balance_weight": -1.0}, "balance_weight is -1.0"),
    ],
)
def test_argument_out_of_range_is_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MoELayer(**{"width": 4, "hidden": 4, "experts": 4, **arguments})


def test_shapes_that_do_not_fit_are_refused() -> None:
    layer = MoELayer(4, 4, 2)
    with pytest.raises(ValueError, match="tokens have the shape"):
        layer(torch.zeros(2, 3, 5))
    with pytest.raises(ValueError, match="padding has the shape"):
        layer(torch.zeros(2, 3, 4), torch.zeros(2, 3, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"the type torch.float32; it must be \(2, 3\) and torch.bool"):
        layer(torch.zeros(2, 3, 4), torch.zeros(2, 3))


def test_counts_go_on_after_a_reader_in_inference_mode() -> None:
    layer, tokens = build_layer(), build_tokens(3, 5)
    with torch.inference_mode():
        layer(tokens)
        routing_counts(layer)
    layer(tokens)
    (counts,) = routing_counts(layer).values()
    assert counts.tokens == 15
