"""A group of servers as real gloo processes computes the same as the even placement, with less load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from moe.lina.expert_paths import Counts, PathProfile, profile_paths
from punctual.moe import MoELayer, TopK, moe_layers
from tests.communication.hooks.ranks import run_on_ranks
from workers.runtime.at_home.local_ports import LOOPBACK, free_port
from workers.serving.experts.group import ExpertGroup
from workers.serving.experts.meeting import Bell
from workers.serving.experts.plans import ExpertPlanner

EXPERTS, LAYERS, PATH, WIDTH, HIDDEN = 8, 4, 2, 24, 6
CPU = torch.device("cpu")


class Tower(nn.Module):
    """Each token names its best expert at each layer. With `exact` weights, experts compute whole numbers,
    which have no rounding that could depend on the number of rows."""

    def __init__(self, gate: TopK, *, exact: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(MoELayer(WIDTH, HIDDEN, EXPERTS, gate) for _ in range(LAYERS))
        with torch.no_grad():
            for layer in self.layers:
                layer.gate_weights.weight.mul_(0.01)
                layer.gate_weights.weight[:, :EXPERTS] = 2.0 * torch.eye(EXPERTS)
                if exact:
                    for parameter in layer.experts.parameters():
                        parameter.copy_(torch.randint(-3, 4, parameter.shape))
        self.eval()

    def forward(self, choices: Tensor) -> Tensor:
        """Return the outputs of all layers for tokens with these experts (tokens, layers)."""
        others = (torch.arange(len(choices)).unsqueeze(1) * torch.arange(WIDTH - EXPERTS)) % 5
        outputs = []
        for number, layer in enumerate(self.layers):
            named = nn.functional.one_hot(choices[:, number], EXPERTS)
            outputs.append(layer(torch.cat([named, others], dim=1).float()))
        return torch.stack(outputs, dim=1)


def build_choices(tokens: int, seed: int, *, follows: bool = True) -> Counts:
    """Return experts by token and layer. Most tokens take expert 3 first; each has one successor, unless
    `follows` is False."""
    generator = np.random.default_rng(seed)
    columns = [np.where(generator.random(tokens) < 0.7, 3, generator.integers(EXPERTS, size=tokens))]
    for _ in range(LAYERS - 1):
        columns.append((columns[-1] * 3 + 1) % EXPERTS)
    if not follows:
        columns[PATH:] = [np.full(tokens, 6) for _ in columns[PATH:]]
    return np.stack(columns, axis=1).astype(np.int64)


def profile() -> PathProfile:
    return profile_paths(build_choices(2000, seed=9), [EXPERTS] * LAYERS, PATH)


#: By session and rank: tokens, or None where a rank has no batch.
Batches = list[list[Counts | None]]


def build_batches(ranks: int) -> Batches:
    def batch(seed: int, tokens: int = 40, **how: Any) -> Counts:
        return build_choices(tokens, seed, **how)

    return [
        [batch(rank) for rank in range(ranks)],
        [batch(20, follows=False), *[None] * (ranks - 1)],
        [*[None] * (ranks - 1), batch(30, tokens=3)],
        [batch(40 + rank, follows=rank > 0) for rank in range(ranks)],
    ]


def bell_of(port: int) -> Bell:
    rank = dist.get_rank()
    return Bell(dist.TCPStore(LOOPBACK, port, dist.get_world_size(), is_master=rank == 0), rank)


@contextmanager
def opened(model: nn.Module, port: int, top: int, known: PathProfile | None) -> Iterator[ExpertGroup]:
    planner = ExpertPlanner([EXPERTS] * LAYERS, dist.get_world_size(), known, experts_per_token=top)
    # Rounds end in another thread: what this thread exchanges afterwards is outside their process group.
    group = ExpertGroup(moe_layers(model), planner, CPU, bell_of(port), dist.new_group())
    try:
        yield group
        dist.barrier(_barriers)
    finally:
        group.close()


_barriers: dist.ProcessGroup


def serve_on_this_rank(
    ports: tuple[int, int], top: int, exact: bool
) -> list[tuple[list[Tensor | None], dict[str, Any]]]:
    global _barriers
    _barriers = dist.new_group()
    results = []
    for port, known in zip(ports, (None, profile()), strict=True):
        model = Tower(TopK(top), exact=exact)
        outputs: list[Tensor | None] = []
        with opened(model, port, top, known) as group, torch.inference_mode():
            for session in build_batches(dist.get_world_size()):
                choices = session[dist.get_rank()]
                outputs.append(None)
                if choices is not None:
                    with group.batch():
                        outputs[-1] = model(torch.from_numpy(choices))
                dist.barrier(_barriers)
        results.append((outputs, group.counts.report()))
    return results


@pytest.mark.parametrize(("ranks", "top"), [(2, 1), (4, 1), (4, 2)])
def test_lina_computes_what_the_even_placement_computes(ranks: int, top: int) -> None:
    ports = (free_port(), free_port())
    by_rank = run_on_ranks(ranks, serve_on_this_rank, ports, top, top == 1)
    alone = Tower(TopK(top), exact=top == 1)
    batches = build_batches(ranks)
    for rank, ((even, _), (lina, _)) in enumerate(by_rank):
        for number, session in enumerate(batches):
            choices = session[rank]
            if choices is None:
                assert lina[number] is None
                continue
            with torch.inference_mode():
                expected = alone(torch.from_numpy(choices))
            if top == 1:
                assert torch.equal(lina[number], even[number])
                assert torch.equal(lina[number], expected)
            else:
                torch.testing.assert_close(lina[number], even[number], rtol=1e-5, atol=1e-5)
                torch.testing.assert_close(lina[number], expected, rtol=1e-5, atol=1e-5)
    assert_counts([lina for _, (_, lina) in by_rank], batches, top)


def assert_counts(reports: list[dict[str, Any]], batches: Batches, top: int) -> None:
    tokens = np.concatenate([batch for session in batches for batch in session if batch is not None])
    for report in reports:
        assert report["layers"] == reports[0]["layers"], "every rank counts the same"
        assert report["swaps"] > 0
    for number, layer in enumerate(reports[0]["layers"]):
        assert sum(layer["rows"]) == top * len(tokens)
        # A batch that arrives during others' computation begins after them.
        assert layer["passes"] >= len(batches)
        assert layer["estimated"] == (layer["passes"] if number >= PATH else 0)
        if top == 1:
            assert layer["rows"] == np.bincount(tokens[:, number], minlength=EXPERTS).tolist()
        if number >= PATH:
            assert 0 < layer["replaced"] <= layer["passes"]
            # With two experts per token, the second experts are nearly even: no order of four is predicted.
            assert top > 1 or layer["replaced"] < layer["passes"], "both outcomes of the second phase"
            assert layer["fullest_rows"] < layer["fullest_rows_evenly"]
        else:
            assert layer["fullest_rows"] == layer["fullest_rows_evenly"]
    assert any(len(hosts) > 1 for layer in reports[0]["layers"] for hosts in layer["hosts"])


def fail_after_one_layer(model: Tower, group: ExpertGroup) -> None:
    with group.batch():
        model.layers[0](torch.zeros(2, WIDTH))
        raise ZeroDivisionError


def call_unevenly(port: int) -> list[Tensor]:
    """Rank 0 calls the model twice in a batch, rank 1 fails after a layer, and begins again."""
    global _barriers
    _barriers = dist.new_group()
    model, choices, outputs = Tower(TopK(1), exact=True), torch.from_numpy(build_choices(20, 1)), []
    with opened(model, port, 1, profile()) as group, torch.inference_mode():
        if dist.get_rank() == 0:
            with group.batch():
                outputs = [model(choices), model(choices)]
        else:
            with pytest.raises(ZeroDivisionError):
                fail_after_one_layer(model, group)
            with group.batch():
                outputs = [model(choices)]
    return outputs


def test_ranks_need_not_call_the_model_equally_often() -> None:
    first, second = run_on_ranks(2, call_unevenly, free_port())
    with torch.inference_mode():
        expected = Tower(TopK(1), exact=True)(torch.from_numpy(build_choices(20, 1)))
    assert (len(first), len(second)) == (2, 1)
    assert all(torch.equal(output, expected) for output in (*first, *second))
