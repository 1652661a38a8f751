"""Layers on real gloo processes compute what one process computes, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from punctual.moe import (
    Adaptive,
    ExpertPlacement,
    Gate,
    GroupExchange,
    MoELayer,
    TopK,
    balance_loss,
    routing_counts,
)
from tests.communication.hooks.ranks import run_on_ranks

WIDTH, HIDDEN, EXPERTS, TOKENS, SAMPLES = 8, 12, 8, 6, 8


@dataclass(frozen=True)
class Case:
    """A layer, and how samples and experts are spread.

    Attributes:
        shares: number of samples of each rank.
        experts: number of experts.
        single: samples whose tokens all go to one expert.
        double: samples whose tokens all go to two.
    """

    shares: tuple[int, ...]
    gate: Gate = Adaptive(0.1)
    experts: int = EXPERTS
    capacity_factor: float | None = None
    hosts: tuple[tuple[int, ...], ...] | None = None
    single: tuple[int, ...] = ()
    double: tuple[int, ...] = ()
    has_frozen_experts: bool = False
    has_token_gradients: bool = True
    is_autocast: bool = False
    passes: int = 1

    @property
    def placement(self) -> ExpertPlacement:
        ranks = len(self.shares)
        hosts = self.hosts
        return ExpertPlacement(hosts, ranks) if hosts else ExpertPlacement.even(self.experts, ranks)


CASES = {
    "even": Case((4, 4)),
    "rank of single beside rank of double tokens": Case((4, 4), single=(0, 1, 2, 3), double=(4, 5, 6, 7)),
    "top-2 with capacity": Case((2, 2, 2, 2), TopK(2), capacity_factor=0.9),
    "rank without samples": Case((5, 0, 1, 2), TopK(2), capacity_factor=1.0),
    "experts that do not divide": Case((3, 3, 2), capacity_factor=0.8),
    "rank without experts": Case((3, 5), hosts=((1,),) * EXPERTS, is_autocast=True),
    "two hosts for each expert": Case((2, 2, 2, 2), hosts=((0, 2),) * 4 + ((1, 3),) * 4),
    "every expert on every rank": Case((5, 3), TopK(2), capacity_factor=0.7, hosts=((0, 1),) * EXPERTS),
    "frozen experts": Case((4, 4), has_frozen_experts=True),
    # On the rank without experts nothing needs a gradient, yet it must join the exchange backward.
    "only experts train": Case((3, 5), hosts=((1,),) * EXPERTS, has_token_gradients=False),
    "only the gate trains": Case((4, 4), has_frozen_experts=True, has_token_gradients=False),
    "two passes": Case((4, 4), passes=2),
}


def build_layer(case: Case) -> MoELayer:
    torch.manual_seed(7)
    layer = MoELayer(WIDTH, HIDDEN, case.experts, case.gate, capacity_factor=case.capacity_factor)
    with torch.no_grad():
        # The gate has clear preferences, and never chooses experts 0 and 1: see `build_tokens`.
        layer.gate_weights.weight.mul_(3)
        layer.gate_weights.weight[:, 0] = 0
        layer.gate_weights.weight[:2, 0] = -30
    layer.experts.requires_grad_(not case.has_frozen_experts)
    return layer


def build_tokens(case: Case, layer: MoELayer) -> Tensor:
    tokens = torch.randn(SAMPLES, TOKENS, WIDTH, generator=torch.Generator().manual_seed(8))
    weight = layer.gate_weights.weight.detach()
    for sample in case.single:
        tokens[sample] = 3 * weight[2 + sample]
    for sample in case.double:
        tokens[sample] *= 1e-3
    tokens[..., 0] = 1
    return tokens


def run(case: Case, layer: MoELayer, tokens: Tensor, weight: float) -> dict[str, Any]:
    """Train for one iteration; `weight` makes the sum over ranks the loss of the global batch."""
    tokens.requires_grad_(case.has_token_gradients)
    output = tokens
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=case.is_autocast):
        for _ in range(case.passes):
            output = layer(output)
    loss = ((output - torch.linspace(-1, 1, WIDTH)) ** 2).mean() + balance_loss(layer)
    (loss * weight).backward()
    return {
        "output": output.detach(),
        "loss": loss.detach() * weight,
        "tokens": tokens.grad,
        "gradients": {name: parameter.grad for name, parameter in layer.named_parameters()},
        "counts": routing_counts(layer)[""],
    }


def run_in_one_process(case: Case) -> dict[str, Any]:
    layer = build_layer(case)
    return run(case, layer, build_tokens(case, layer), weight=1.0)


def run_on_this_rank(cases: list[Case]) -> list[dict[str, Any] | None]:
    results: list[dict[str, Any] | None] = []
    sizes = sorted({len(case.shares) for case in cases})
    groups = {ranks: dist.new_group(list(range(ranks))) for ranks in sizes}
    rank = dist.get_rank()
    for case in cases:
        if rank >= len(case.shares):
            results.append(None)
            continue
        layer = build_layer(case)
        tokens, size = build_tokens(case, layer), case.shares[rank]
        first = sum(case.shares[:rank])
        exchange = layer.exchange = GroupExchange(case.placement, groups[len(case.shares)])
        if len(set(case.shares)) > 1:
            exchange.share = size / SAMPLES
        # As in the runtime, a rank without samples computes one of weight 0.
        own = tokens[first : first + size] if size else tokens[:1]
        results.append(run(case, layer, own.clone(), weight=size / SAMPLES))
    return results


def assert_same(case: Case, ranks: list[dict[str, Any]]) -> None:
    alone = run_in_one_process(case)
    # BF16 rounds sums in another order.
    tolerance = {"rtol": 2e-2, "atol": 1e-3} if case.is_autocast else {"rtol": 1e-5, "atol": 1e-6}

    def compare(actual: Any, expected: Any) -> None:
        torch.testing.assert_close(actual, expected, **tolerance)

    busy = [result for result, share in zip(ranks, case.shares, strict=True) if share]
    compare(torch.cat([result["output"] for result in busy]), alone["output"])
    compare(sum(result["loss"] for result in ranks), alone["loss"])
    if case.has_token_gradients:
        compare(torch.cat([result["tokens"] for result in busy]), alone["tokens"])
    for name, expected in alone["gradients"].items():
        hosts: tuple[int, ...] = tuple(range(len(ranks)))
        if name.startswith("experts."):
            hosts = case.placement.hosts[int(name.split(".")[1])]
        parts = {rank: result["gradients"][name] for rank, result in enumerate(ranks)}
        assert all(parts[rank] is None for rank in parts if rank not in hosts)
        if expected is None:
            assert all(part is None for part in parts.values())
        else:
            compare(sum(parts[rank] for rank in hosts), expected)
    expected_counts = alone["counts"]
    assert bool(expected_counts.dropped.any()) == (case.capacity_factor is not None)
    if case.passes == 1:
        assert not expected_counts.rows[:2].any()
    if case.single:
        assert expected_counts.multi_expert_tokens == len(case.double) * TOKENS
    for result in ranks:
        counts = result["counts"]
        assert torch.equal(counts.rows, expected_counts.rows)
        assert torch.equal(counts.dropped, expected_counts.dropped)
        assert counts.tokens == expected_counts.tokens
        assert counts.multi_expert_tokens == expected_counts.multi_expert_tokens


def test_ranks_compute_what_one_process_computes() -> None:
    by_rank = run_on_ranks(4, run_on_this_rank, list(CASES.values()))
    for (name, case), results in zip(CASES.items(), zip(*by_rank, strict=True), strict=True):
        try:
            assert_same(case, [result for result in results if result is not None])
        except AssertionError as error:
            error.add_note(f"case: {name}")
            raise


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_sixteen_experts_compute_on_any_number_of_ranks(ranks: int) -> None:
    """Some ranks have tokens of one expert only, others of two only, or no row of an expert."""
    shares = (SAMPLES // ranks,) * ranks
    case = Case(shares, experts=16, single=(0, 1, 2, 3), double=(4, 5, 6, 7))
    assert_same(case, [result for (result,) in run_on_ranks(ranks, run_on_this_rank, [case])])


def count_sent_bytes(gates: list[Gate]) -> list[tuple[list[int], int, float]]:
    """Return by gate the bytes of each all-to-all of rows of a forward and backward pass, all rows, and the
    share of two-expert tokens."""
    sent: list[int] = []
    all_to_all = dist.all_to_all_single

    def count(output: Tensor, rows: Tensor, *arguments: Any, **options: Any) -> None:
        sent.append(rows.nbytes)
        all_to_all(output, rows, *arguments, **options)

    by_gate = []
    dist.all_to_all_single = count
    for gate in gates:
        case = Case((4, 4), gate)
        layer = build_layer(case)
        layer.exchange = GroupExchange(case.placement)
        first = 4 * dist.get_rank()
        counts = run(case, layer, build_tokens(case, layer)[first : first + 4], weight=0.5)["counts"]
        by_gate.append((list(sent), int(counts.rows.sum()), counts.two_expert_share))
        sent.clear()
    return by_gate


def test_bytes_sent_are_those_of_the_rows() -> None:
    by_rank = run_on_ranks(2, count_sent_bytes, [Adaptive(0.1), TopK(2)])
    totals = []
    for by_gate in zip(*by_rank, strict=True):
        sent = [sum(ranks) for ranks in zip(*(rank_counts[0] for rank_counts in by_gate), strict=True)]
        # There and back, forward and backward.
        assert sent == [by_gate[0][1] * WIDTH * 4] * 4
        totals.append(sent[0])
    share = by_rank[0][0][2]
    assert 0 < share < 1
    assert totals[0] / totals[1] == pytest.approx((1 + share) / 2)


def raise_on_each_rank() -> str:
    layer = build_layer(Case((4, 4)))
    layer.exchange = GroupExchange(ExpertPlacement.even(EXPERTS, 2))
    tokens = torch.ones(2, WIDTH)
    if dist.get_rank() == 1:
        tokens[0] = torch.nan
    try:
        layer(tokens)
    except FloatingPointError as error:
        return str(error)
    return ""


def test_gate_that_is_not_finite_on_one_rank_stops_all() -> None:
    assert all("not finite for 1 of 4 tokens" in message for message in run_on_ranks(2, raise_on_each_rank))


def test_placement_with_impossible_hosts_is_refused() -> None:
    with pytest.raises(ValueError, match="hosts of expert 1 are"):
        ExpertPlacement(((0,), ()), 2)
    with pytest.raises(ValueError, match="hosts of expert 0 are .2,.; ranks are 0 to 1"):
        ExpertPlacement(((2,),), 2)


@pytest.mark.parametrize(("experts", "ranks"), [(16, 8), (16, 5), (3, 7), (1, 2), (8, 3)])
def test_even_placement_differs_by_one_expert_at_most(experts: int, ranks: int) -> None:
    placement = ExpertPlacement.even(experts, ranks)
    sizes = [len(placement.hosted_by(rank)) for rank in range(ranks)]
    assert sum(sizes) == experts
    assert max(sizes) - min(sizes) <= 1
    assert list(placement.hosts) == sorted(placement.hosts)
