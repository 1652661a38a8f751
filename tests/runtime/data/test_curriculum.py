"""An order of samples that depends on their tokens' routing, on any number of workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from moe.gating.curriculum import Curriculum, SampleRecord, order_samples
from punctual import TrainingFunction
from punctual.moe import Adaptive, Gate, MoELayer, Routing, TopK
from punctual.protocol.hyperparameters import RANDOM_ORDER, SAMPLE_ORDERS, HyperparameterError, read_settings
from tests.communication.hooks.ranks import run_on_ranks
from tests.runtime.in_process import runner_of
from workers.runtime.data.batches import BatchLoader
from workers.runtime.data.curriculum import CurriculumOrder, build_order
from workers.runtime.data.sample_order import SampleOrder
from workers.runtime.failures import WorkerFailureError
from workers.runtime.iterating.iteration import IterationRunner
from workers.runtime.iterating.training_state import Progress, capture, restore

COSINE, MAGNITUDE = Curriculum.COSINE, Curriculum.MAGNITUDE
SAMPLES, TOKENS, WIDTH, BATCH, SEED = 64, 12, 6, 8, 4
EPOCH = SAMPLES // BATCH


# -- the order alone


def counts_of(indices: Tensor, iteration: int) -> Tensor:
    """Return counts of samples that differ in each iteration."""
    two = (indices * 7 + iteration) % 11
    return torch.stack([torch.full_like(two, 20), two]).unsqueeze(2)


def order_of(samples: int, batch: int, curriculum: Curriculum = MAGNITUDE) -> CurriculumOrder:
    return CurriculumOrder(samples, batch, SEED, curriculum=curriculum, layers=1)


def train_on(order: CurriculumOrder, first: int, last: int) -> Iterator[list[int]]:
    for iteration in range(first, last):
        indices = order.global_batch(iteration)
        order.note(indices, counts_of(indices, iteration))
        yield indices.tolist()


@given(st.integers(1, 20), st.integers(1, 30), st.sampled_from(Curriculum))
def test_every_epoch_has_every_sample_once(samples: int, batch: int, curriculum: Curriculum) -> None:
    taken = sum(train_on(order_of(samples, batch, curriculum), 0, 3 * samples), [])
    for epoch in range(len(taken) // samples):
        assert sorted(taken[epoch * samples : (epoch + 1) * samples]) == list(range(samples))


@given(st.integers(1, 20), st.integers(1, 30), st.integers(0, 40), st.data())
def test_the_order_continues_from_a_state(
    samples: int, batch: int, iterations: int, data: st.DataObject
) -> None:
    before = data.draw(st.integers(0, iterations))
    expected = list(train_on(order_of(samples, batch), 0, iterations))
    first, second = order_of(samples, batch), order_of(samples, batch)
    orders = list(train_on(first, 0, before))
    second.load_state(first.state(before))
    # The state shares the record of an order that is still training.
    list(train_on(first, before, before + 1))
    assert [*orders, *train_on(second, before, iterations)] == expected


def test_an_epoch_is_ordered_by_the_one_before() -> None:
    order = order_of(12, 4)
    first = sum(train_on(order, 0, 3), [])
    assert first == torch.cat([SampleOrder(12, 4, SEED).global_batch(step) for step in range(3)]).tolist()
    tokens, two = order.state(3)["record"].numpy().astype(np.int64)
    assert sorted(two.flatten().tolist()) != two.flatten().tolist()
    expected = order_samples(SampleRecord(tokens, two), MAGNITUDE).tolist()
    # The record changes meanwhile.
    assert sum(train_on(order, 3, 6), []) == expected


@given(st.integers(1, 20), st.integers(1, 30), st.integers(0, 60))
def test_recorded_samples_are_kept_until_the_next_epoch(samples: int, batch: int, iteration: int) -> None:
    def last_epoch(number: int) -> int:
        return ((number + 1) * batch - 1) // samples

    end = order_of(samples, batch).known_until(iteration)
    assert last_epoch(end - 1) == last_epoch(iteration) < last_epoch(end)


def test_data_workers_wait_for_the_order() -> None:
    def load(data_workers: int) -> list[Any]:
        order = order_of(10, 4)
        loader = BatchLoader(
            list(range(10)), list, order,
            rank=0, world_size=1, device=torch.device("cpu"), data_workers=data_workers,
        )  # fmt: skip
        contents = []
        for iteration in range(9):
            batch = loader.load(iteration)
            order.note(batch.global_indices, counts_of(batch.global_indices, iteration))
            contents.append(batch.content)
        return contents

    assert load(data_workers=2) == load(data_workers=0)


# -- in training


#: The routing by this rank's gates since the last read: shares of two-expert tokens.
SHARES: list[float] = []


@dataclass(frozen=True)
class Watched(Adaptive):
    """An adaptive gate that records its routing."""

    def route(self, probabilities: Tensor) -> Routing:
        routing = super().route(probabilities)
        SHARES.append(routing.uses_several.double().mean().item())
        return routing


class Strengths(nn.Module):
    """Two layers of experts."""

    def __init__(self, gate: Gate = Watched(0.1)) -> None:
        super().__init__()
        self.layers = nn.ModuleList(MoELayer(WIDTH, 8, 4, gate) for _ in range(2))
        self.output = nn.Linear(WIDTH, 1)
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        for layer in self.layers:
            tokens = tokens + layer(tokens)
        return self.output(tokens.mean(1).tanh())


class Unequal(TrainingFunction):
    """Samples of weak tokens, about which the gate is unsure, and of strong tokens."""

    def init_model(self) -> nn.Module:
        return Strengths()

    def init_dataset(self) -> TensorDataset:
        samples = self.hyperparameters.get("samples", SAMPLES)
        generator = torch.Generator().manual_seed(1)
        strengths = 0.1 + 4 * torch.rand(samples, 1, 1, generator=generator, dtype=torch.float64)
        tokens = strengths * torch.randn(samples, TOKENS, WIDTH, generator=generator, dtype=torch.float64)
        # Every sample has some two-expert tokens, so that its cosine exists.
        tokens[:, :2] *= 0.01
        return TensorDataset(tokens, tokens.sum((1, 2)).tanh())

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.02)

    def train(self, batch: Any, model: nn.Module) -> Tensor:
        tokens, targets = batch
        if self.hyperparameters.get("flattens"):
            return model(tokens.flatten(0, 1).unsqueeze(1)).mean()
        return nn.functional.mse_loss(model(tokens).squeeze(1), targets)


def begin(curriculum: Curriculum | None, batch: int = BATCH, **hyperparameters: Any) -> IterationRunner:
    return runner_of(Unequal(hyperparameters), batch=batch, seed=SEED, curriculum=curriculum)


def train(runner: IterationRunner, first: int, last: int) -> list[list[int]]:
    """Return the samples of each iteration."""
    return [runner.run(iteration).global_indices.tolist() for iteration in range(first, last)]


#: A batch of 3 leaves one of four workers without samples, and spans ends of epochs of 10.
UNEVEN: Mapping[str, int] = {"batch": 3, "samples": 10}


def train_all(path: Path) -> dict[str, Any]:
    """Train in random order, by magnitude and by cosine. One worker stores a state in the middle of a second
    epoch, and several resume from it."""
    results: dict[str, Any] = {}
    for curriculum in (None, MAGNITUDE):
        SHARES.clear()
        runner = begin(curriculum)
        samples = train(runner, 0, EPOCH + 1)
        if curriculum is MAGNITUDE and dist.get_world_size() == 1:
            state = capture(runner.parts, Progress(EPOCH + 1), generation=1, global_batch_size=BATCH)
            torch.save(state, path)
        samples += train(runner, EPOCH + 1, 2 * EPOCH)
        results[str(curriculum)] = samples, SHARES[2 * EPOCH :]
        runner.synchronisation.close()
    runner = begin(COSINE, **UNEVEN)
    results["uneven"] = train(runner, 0, 8), []
    runner.synchronisation.close()
    runner = begin(MAGNITUDE)
    restore(runner.parts, torch.load(path, weights_only=True), global_batch_size=BATCH)
    assert train(runner, EPOCH + 1, EPOCH + 4) == results["magnitude"][0][EPOCH + 1 : EPOCH + 4]
    runner.synchronisation.close()
    return results


def spread(by_rank: list[dict[str, Any]], name: str) -> float:
    """Return how far the largest share of a rank is above the mean, in the second epoch."""
    shares = np.array([results[name][1] for results in by_rank])
    return float((shares.max(0) - shares.mean(0)).mean())


def test_order_is_the_same_on_any_number_of_workers(alone: None, tmp_path: Path) -> None:
    path = tmp_path / "state"
    expected = train_all(path)
    by_rank = run_on_ranks(4, train_all, path)
    for results in by_rank:
        assert {name: result[0] for name, result in results.items()} == {
            name: result[0] for name, result in expected.items()
        }
    for samples, _ in (expected["None"], expected["magnitude"]):
        for epoch in (samples[:EPOCH], samples[EPOCH:]):
            assert sorted(sum(epoch, [])) == list(range(SAMPLES))
    # The ranks wait less for each other.
    assert spread(by_rank, "magnitude") < 0.7 * spread(by_rank, "None")


def test_only_training_passes_are_recorded(alone: None) -> None:
    runner = begin(COSINE)
    runner.rehearse(0)
    runner.parts.module.eval()
    runner.parts.module(torch.randn(3, TOKENS, WIDTH, dtype=torch.float64))
    result = runner.run(0)
    assert runner.parts.curriculum is not None
    record = runner.parts.curriculum.state(1)["record"]
    trained = torch.zeros(SAMPLES, 2, dtype=torch.int32)
    trained[result.global_indices] = TOKENS
    assert torch.equal(record[0], trained)
    assert (record[1].sum(), record[0].sum()) > (0, 0)


# -- refused


@pytest.mark.parametrize("module", [nn.Linear(2, 2), Strengths(TopK(2))])
def test_model_without_an_adaptive_gate_is_refused(module: nn.Module) -> None:
    with pytest.raises(WorkerFailureError, match='"cosine": the model has no MoELayer with an adaptive gate'):
        build_order(COSINE, module, 10, 4, 0)
    assert type(build_order(None, module, 10, 4, 0)) is SampleOrder


def test_more_samples_than_can_be_kept_are_refused() -> None:
    with pytest.raises(WorkerFailureError, match="100000000 samples times 2 layers are more than"):
        build_order(MAGNITUDE, Strengths(), 100_000_000, 4, 0)


def test_tokens_not_grouped_by_sample_are_refused(alone: None) -> None:
    runner = begin(MAGNITUDE, flattens=True)
    with pytest.raises(WorkerFailureError, match=r"layers\.0 had 96 samples .* the batch has 8: give it"):
        runner.run(0)


def test_sample_orders_have_the_names_of_the_curricula() -> None:
    assert (RANDOM_ORDER, *sorted(Curriculum, reverse=True)) == SAMPLE_ORDERS
    for name in SAMPLE_ORDERS:
        assert read_settings({"global_batch_size": 1, "sample_order": name}).sample_order == name
    assert read_settings({"global_batch_size": 1, "sample_order": None}).sample_order == RANDOM_ORDER
    with pytest.raises(HyperparameterError, match='"magnitude" or "cosine" for models with an adaptive gate'):
        read_settings({"global_batch_size": 1, "sample_order": "alphabet"})
