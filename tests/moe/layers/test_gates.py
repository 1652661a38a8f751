"""Gates choose the experts, weights and balance losses of worked examples W1 to W4."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from moe.gating.gate import NO_EXPERT, decide
from punctual.moe import Adaptive, Routing, TopK
from punctual.moe.balance import balance_part
from punctual.moe.dispatch import build_rows, combine
from punctual.moe.gates.gate import gate_probabilities

TOKENS = {
    "a": [0.40, 0.35, 0.15, 0.10],
    "b": [0.60, 0.20, 0.15, 0.05],
    "c": [0.30, 0.20, 0.25, 0.25],
    "d": [0.25, 0.25, 0.25, 0.25],
    "e": [0.35, 0.25, 0.20, 0.20],
    "f": [0.45, 0.35, 0.10, 0.10],
    "g": [0.10, 0.70, 0.10, 0.10],
}


def probabilities_of(tokens: str, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor([TOKENS[token] for token in tokens], dtype=dtype)


def chosen_experts(routing: Routing) -> list[list[int]]:
    pairs = zip(routing.experts.tolist(), routing.is_used.tolist(), strict=True)
    return [[expert for expert, is_used in zip(*pair, strict=True) if is_used] for pair in pairs]


def first_choices(routing: Routing) -> Tensor:
    return torch.bincount(routing.experts[routing.is_balanced, 0], minlength=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_second_expert_is_used_when_the_best_two_are_close(dtype: torch.dtype) -> None:
    """W1; f is on the boundary, and beyond it in binary."""
    routing = Adaptive(0.1).route(probabilities_of("abcdefg", dtype))
    assert chosen_experts(routing) == [[0, 1], [0], [0, 2], [0, 1], [0, 1], [0, 1], [1]]


@pytest.mark.parametrize(
    ("threshold", "numbers"),
    [
        (0, [1, 1, 1, 2, 1, 1, 1]),
        (0.05, [2, 1, 2, 2, 1, 1, 1]),
        (0.1, [2, 1, 2, 2, 2, 2, 1]),
        (0.2, [2, 1, 2, 2, 2, 2, 1]),
        (0.4, [2, 2, 2, 2, 2, 2, 1]),
        (1, [2, 2, 2, 2, 2, 2, 2]),
    ],
)
def test_higher_threshold_uses_the_second_expert_more(threshold: float, numbers: list[int]) -> None:
    """W1."""
    routing = Adaptive(threshold).route(probabilities_of("abcdefg"))
    assert [len(experts) for experts in chosen_experts(routing)] == numbers


def test_probabilities_are_a_softmax_over_all_experts() -> None:
    """W2: the margin .219612 lies between the thresholds .2 and .3."""
    probabilities = gate_probabilities(torch.tensor([[2, 1.5, 0, -1]]), torch.eye(4))
    expected = torch.tensor([[0.558144, 0.338531, 0.075537, 0.027788]])
    torch.testing.assert_close(probabilities, expected, atol=1e-6, rtol=0)
    numbers = [
        len(chosen_experts(Adaptive(threshold).route(probabilities))[0]) for threshold in (0.1, 0.2, 0.3)
    ]
    assert numbers == [1, 1, 2]


def test_balance_loss_counts_tokens_of_one_expert_only() -> None:
    """W3, beside the classical loss of the same tokens."""
    probabilities = probabilities_of("abcdg")
    adaptive, top_two = Adaptive(0.1).route(probabilities), TopK(2).route(probabilities)
    assert first_choices(adaptive).tolist() == [1, 1, 0, 0]
    sums = probabilities.sum(0)
    assert float(balance_part(sums, first_choices(adaptive), 5)) == pytest.approx(1.34)
    assert float(balance_part(sums, first_choices(top_two), 5)) == pytest.approx(1.328)
    assert int(adaptive.uses_several.sum()) == 3
    assert build_rows(adaptive, 4)[1].tolist() == [4, 3, 1, 0]


def test_balance_loss_is_zero_without_tokens_of_one_expert() -> None:
    """W3."""
    probabilities = probabilities_of("acd")
    counted = first_choices(Adaptive(0.1).route(probabilities))
    assert float(balance_part(probabilities.sum(0), counted, 3)) == 0
    assert float(balance_part(torch.zeros(4), torch.zeros(4), 0)) == 0


def test_balance_loss_of_even_routing_is_one() -> None:
    assert float(balance_part(torch.full((16,), 2.0), torch.full((16,), 2), 32)) == pytest.approx(1)


@pytest.mark.parametrize(("token", "expected"), [("a", [0.40, 0.70]), ("b", [0.60, 0])])
def test_outputs_are_weighted_by_raw_probabilities(token: str, expected: list[float]) -> None:
    """W4."""
    rows, counts = build_rows(Adaptive(0.1).route(probabilities_of(token)), 4)
    outputs = torch.tensor([[1.0, 0], [0, 2], [9, 9], [9, 9]], dtype=torch.float64)
    combined = combine(outputs.repeat_interleave(counts, dim=0), rows, 1)
    torch.testing.assert_close(combined, torch.tensor([expected], dtype=torch.float64))


def choose_for_one_token(probabilities: list[float], threshold: float) -> list[int]:
    order = sorted(range(len(probabilities)), key=lambda expert: (-probabilities[expert], expert))
    margin = probabilities[order[0]] - probabilities[order[1]]
    return order[: 2 if margin <= threshold + 1e-6 else 1]


def test_many_tokens_are_routed_like_each_alone() -> None:
    generator = torch.Generator().manual_seed(3)
    probabilities = torch.randn(10_000, 16, generator=generator, dtype=torch.float64).softmax(1)
    # Exact ties.
    probabilities[::50, 3] = probabilities[::50, 7]
    expected = [choose_for_one_token(row, 0.05) for row in probabilities.tolist()]
    assert chosen_experts(Adaptive(0.05).route(probabilities)) == expected


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.1, 0.4, 1.0])
def test_gate_decides_as_the_rule_on_arrays(threshold: float) -> None:
    generator = torch.Generator().manual_seed(4)
    probabilities = torch.randn(100_000, 16, generator=generator, dtype=torch.float64).softmax(1)
    # Exact ties.
    probabilities[::50, 3] = probabilities[::50, 7]
    routing = Adaptive(threshold).route(probabilities)
    decision = decide(probabilities.numpy(), threshold)
    second = torch.where(routing.is_used[:, 1], routing.experts[:, 1], NO_EXPERT)
    assert torch.equal(routing.experts[:, 0], torch.from_numpy(decision.first))
    assert torch.equal(second, torch.from_numpy(decision.second))


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan"), "0.1", True])
def test_threshold_outside_zero_to_one_is_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold is .*; it must be"):
        Adaptive(threshold)


@pytest.mark.parametrize("k", [0, 1.5, True])
def test_number_of_experts_of_a_token_is_whole_and_positive(k: int) -> None:
    with pytest.raises(ValueError, match="k is .*; it must be a whole number"):
        TopK(k)
