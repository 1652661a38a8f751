"""Rows of experts travel between servers in one all-to-all or in two phases, with the same result."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from communication.profiles.link import LinkRate as MeasuredLink
from emulated_links.rates import DECLARED_LINKS, LinkRate, ServerLinks
from moe.moesys.all_to_all import Algorithm, LinkRates
from punctual.moe import ExpertPlacement, GroupExchange, MoELayer, TopK
from tests.communication.hooks.ranks import run_on_ranks
from workers.runtime.assignment import Assignment, Device
from workers.runtime.emulation.places import Places
from workers.runtime.synchronisation.hierarchical_exchange import HierarchicalExchange, RailGroups
from workers.runtime.topology import RankGrid, Topology, emulated_rates, measured_rates

WIDTH, EXPERTS = 5, 8
#: With these, two phases win below 2 us of bytes along rails; here each rank has its own network interface.
RATES = LinkRates(within=1e6, leaf=1e9, spine=1e9, within_latency=0.0, between_latency=1e-3)


def servers_of(shape: tuple[int, int]) -> tuple[int, ...]:
    return tuple(server for server in range(shape[0]) for _ in range(shape[1]))


def exchange_both_ways(shapes: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return for each shape what this rank received, there and back, flat and hierarchical, by passes."""
    return [exchange_in(shape) for shape in shapes]


def exchange_in(shape: tuple[int, int]) -> dict[str, Any]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    rails = RailGroups.open(Topology(servers_of(shape), RATES), group)
    assert rails is not None
    placement = ExpertPlacement.even(EXPERTS, ranks)
    two_phases = HierarchicalExchange(placement, group, rails)
    flat = GroupExchange(placement, group)
    generator = torch.Generator().manual_seed(3)
    passes = []
    for most in (1, 4):
        between = torch.randint(0, most + 1, (ranks, ranks), generator=generator)
        between[0] = 0
        rows = torch.randn(int(between[rank].sum()), WIDTH, generator=torch.Generator().manual_seed(rank))
        results = []
        for exchange in (flat, two_phases):
            own = rows.clone().requires_grad_()
            arrived = exchange._all_to_all(own, between)
            (arrived * torch.arange(arrived.numel()).view(arrived.shape)).sum().backward()
            results.append((arrived.detach(), own.grad))
        passes.append((results, two_phases.choice))
    layers = [run_layer(exchange, rank) for exchange in (flat, two_phases)]
    large = torch.full((ranks, ranks), 10_000)
    choice = two_phases._choose(torch.zeros(1, WIDTH), large)
    return {"passes": passes, "layers": layers, "peers": rails.between.size() - 1, "large": choice}


def run_layer(exchange: GroupExchange, rank: int) -> list[torch.Tensor | None]:
    torch.manual_seed(0)
    layer = MoELayer(WIDTH, 7, EXPERTS, TopK(2))
    layer.exchange = exchange
    tokens = torch.randn(3, 4, WIDTH, generator=torch.Generator().manual_seed(rank)).requires_grad_()
    output = layer(tokens)
    output.square().mean().backward()
    return [output.detach(), tokens.grad, *(parameter.grad for parameter in layer.parameters())]


def assert_same_bits(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=0.0, atol=0.0)


@pytest.mark.parametrize(
    "shapes", [[(2, 2)], pytest.param([(2, 4), (4, 2)], marks=pytest.mark.slow)], ids=["4 ranks", "8 ranks"]
)
def test_flat_and_hierarchical_exchanges_give_the_same_bits(shapes: list[tuple[int, int]]) -> None:
    by_rank = run_on_ranks(math.prod(shapes[0]), exchange_both_ways, shapes)
    for number, shape in enumerate(shapes):
        for rank in by_rank:
            received = rank[number]
            for (flat, two_phases), choice in received["passes"]:
                assert choice.algorithm is Algorithm.HIERARCHICAL
                assert_same_bits(flat, two_phases)
            assert_same_bits(*received["layers"])
            # A flat exchange has as many messages to each of these ranks.
            assert received["peers"] == shape[0] - 1
            assert received["large"].algorithm is Algorithm.FLAT


@pytest.mark.parametrize(
    ("servers", "grid"),
    [
        ((0, 0, 1, 1), RankGrid(2, 2)),
        ((5, 5, 5, 2, 2, 2), RankGrid(2, 3)),
        ((0, 0, 1), None),
        ((0, 1, 0, 1), None),
        ((0, 1), None),
        ((0, 0), None),
        ((), None),
    ],
)
def test_rails_need_equally_full_servers(servers: tuple[int, ...], grid: RankGrid | None) -> None:
    assert Topology(servers).grid(range(len(servers))) == grid


def test_ranks_of_a_level_may_be_on_fewer_servers() -> None:
    topology = Topology((0, 0, 1, 1))
    assert topology.grid([0, 1]) is None
    assert topology.grid([0, 1, 2, 3]) == RankGrid(2, 2)


def test_gpus_of_an_emulated_server_share_its_links() -> None:
    links = ServerLinks({name: LinkRate(8.0 if name == "spine" else 16.0, 0.1) for name in DECLARED_LINKS})
    one_rack = emulated_rates(links, Places((0, 0, 1, 1), (0, 0, 0, 0)))
    assert (one_rack.within, one_rack.leaf, one_rack.spine) == (8.0, 8.0, 8.0)
    assert emulated_rates(links, Places((0, 0, 1, 1), (0, 0, 1, 1))).leaf == 4.0


def test_measured_links_replace_published_and_declared_ones() -> None:
    places = Places((0, 0, 1, 1), (0, 0, 1, 1))
    measured = MeasuredLink(1e-4, 6.0)
    real = measured_rates(measured, places)
    assert (real.leaf, real.spine, real.between_latency) == (3.0, 3.0, 1e-4)
    assert real.within == LinkRates().within
    links = ServerLinks({name: LinkRate(16.0) for name in DECLARED_LINKS})
    emulated = emulated_rates(links, places, measured)
    assert (emulated.leaf, emulated.within, emulated.between_latency) == (3.0, 8.0, 0.0)


@pytest.mark.parametrize("link", [None, MeasuredLink(1e-4, 6.0)])
def test_a_topology_names_the_sources_of_its_rates(link: MeasuredLink | None) -> None:
    assignment = cast(
        Assignment,
        SimpleNamespace(
            device=Device("cuda"),
            places=Places((0, 0, 1, 1), (0,) * 4),
            runtime_plan=SimpleNamespace(link=link),
        ),
    )
    topology = Topology.of(assignment)
    assert topology.source == ("published" if link is None else "measured")
    assert topology.rates.leaf == (LinkRates().leaf if link is None else 3.0)
