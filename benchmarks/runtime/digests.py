"""Cost of checking data and parameters, in percent of an iteration.

For some models on two ranks, or on a GPU alone: the check for parameters that `train()` has changed, in every
iteration; the comparison of all parameters, every hundred iterations; and, once for each generation while it
prepares, the digest of the data set's first samples.

    python -m benchmarks.runtime.digests [--rounds 20] [--ranks 2] [--device cpu]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from punctual.function import TrainingFunction
from punctual.protocol.hyperparameters import COMPARED_EVERY
from workers.runtime.at_home.local_agent import runtime_plan
from workers.runtime.data.batches import BatchLoader
from workers.runtime.data.data_comparison import fetch_first_samples
from workers.runtime.data.sample_order import SampleOrder
from workers.runtime.function.parts import build_parts
from workers.runtime.iterating.iteration import IterationRunner
from workers.runtime.iterating.trained_parameters import TrainedParameters
from workers.runtime.parameter_comparison import ParameterComparison, digests_of
from workers.runtime.runtime_plan import RuntimePlan
from workers.runtime.synchronisation.together import Synchronisation

BATCH = 16


class Measured(TrainingFunction):
    """A model on random inputs."""

    shape: tuple[int, ...]

    def init_dataset(self) -> TensorDataset:
        """Return enough samples for a few iterations."""
        return TensorDataset(torch.randn(4 * BATCH, *self.shape))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return plain steps, which are the shortest."""
        return torch.optim.SGD(model.parameters(), lr=1e-3)

    def train(self, batch: Any, model: nn.Module) -> torch.Tensor:
        """Return any loss of the output."""
        loss: torch.Tensor = model(batch[0]).square().mean()
        return loss


class Perceptron(Measured):
    """A small model: 0.2 million parameters in 6 tensors."""

    shape = (256,)

    def init_model(self) -> nn.Module:
        """Return three layers."""
        return nn.Sequential(
            nn.Linear(256, 384), nn.ReLU(), nn.Linear(384, 256), nn.ReLU(), nn.Linear(256, 10)
        )


class Transformer(Measured):
    """Six layers of width 384: 10.6 million parameters in 72 tensors."""

    shape, width, layers = (64, 384), 384, 6

    def init_model(self) -> nn.Module:
        """Return an encoder."""
        layer = nn.TransformerEncoderLayer(self.width, 6, 4 * self.width, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, self.layers, enable_nested_tensor=False)


class LargeTransformer(Transformer):
    """Twelve layers of width 768: 85 million parameters in 144 tensors."""

    shape, width, layers = (256, 768), 768, 12


MODELS: dict[str, type[Measured]] = {
    "perceptron": Perceptron,
    "transformer": Transformer,
    "large transformer": LargeTransformer,
}


def seconds(work: Callable[[], object], rounds: int, device: torch.device) -> float:
    """Return the median of some rounds, after one that does not count."""
    found = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - begun)
    return median(found[1:])


def measure(name: str, rounds: int, device: torch.device) -> None:
    """Print one model's row. All ranks must call this together."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    function = MODELS[name]({})
    parts = build_parts(function, device, 0)
    dataset = function.init_dataset()
    synchronisation = Synchronisation(RuntimePlan.from_message(runtime_plan()), parts)
    synchronisation.begin_alike()
    order = SampleOrder(len(dataset), BATCH, 0)
    loader = BatchLoader(dataset, function.collate, order, rank=rank, world_size=ranks, device=device)
    runner = IterationRunner(
        parts, synchronisation, loader,
        group=None, world_size=ranks, rank=rank, seed=0, clip_norm=None, pace=None,
    )  # fmt: skip
    iteration = seconds(lambda: runner.run(0), rounds, device)
    trained = TrainedParameters(parts, None, ranks)
    look = seconds(trained.check, rounds, device)
    comparison = ParameterComparison(parts.module, every=1, last=None, device=device, world_size=ranks)
    if ranks == 1:
        parameters = dict(parts.module.named_parameters())
        compared = seconds(lambda: digests_of(parameters), rounds, device)
    else:
        compared = seconds(lambda: comparison.iteration_done(1), rounds, device)
    first_samples = seconds(lambda: fetch_first_samples(dataset, 0), 5, torch.device("cpu"))
    if rank == 0:
        share = 100 * compared / COMPARED_EVERY / iteration
        print(
            f"| {name} | {iteration * 1e3:.1f} ms | {look * 1e6:.0f} us, {100 * look / iteration:.2f} % "
            f"| {compared * 1e3:.2f} ms, {share:.3f} % | {first_samples * 1e3:.0f} ms |",
            flush=True,
        )


def run_rank(rank: int, ranks: int, folder: str, rounds: int, kind: str) -> None:
    """Measure all models on one rank."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(f"{folder}/store", ranks)
    backend = "gloo" if kind == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)
    device = torch.device(kind) if kind == "cpu" else torch.device(kind, rank)
    for name in MODELS:
        if device.type == "cpu" and name == "large transformer":
            continue  # one iteration takes a minute
        measure(name, rounds, device)
    dist.destroy_process_group()


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.runtime.digests", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    asked = parser.parse_args()
    print(f"| model | iteration | look | comparison, every {COMPARED_EVERY} | first samples, once |")
    print("|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            get_context("spawn").Process(
                target=run_rank, args=(rank, asked.ranks, folder, asked.rounds, asked.device)
            )
            for rank in range(asked.ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    return max(abs(process.exitcode or 0) for process in processes)


if __name__ == "__main__":
    raise SystemExit(main())
