"""Training from files with prefetch, beside training without it and the recurrence of MoESys' prefetch.

The runtime's own tiers train one expert in each of some layers; host memory holds three states. Files are
really read and written. Each read, write and expert takes at least a declared time, in sleeps, so a busy host
changes the ratios little. Both ways run alternately. Weights must equal those of training in memory, bit by
bit.

    python -m benchmarks.long.tier_prefetch [--layers 12] [--iterations 4] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from moe.moesys.cache import Key
from moe.moesys.prefetch import LayerTimes, two_channel_schedule
from workers.runtime.tiers.files import ExpertFiles
from workers.runtime.tiers.tiered_experts import TieredExperts

HOST_ENTRIES = 3
WIDTH, HIDDEN, ROWS = 16, 32, 8
COMPUTE_SECONDS, READ_SECONDS, WRITE_SECONDS = 0.48, 0.4, 0.12


def pace(began: float, seconds: float) -> None:
    """Sleep until ``seconds`` have passed since `began`."""
    time.sleep(max(0.0, began + seconds - time.perf_counter()))


class SlowExpert(nn.Module):
    """An expert that takes `COMPUTE_SECONDS` wherever it is paced."""

    paced = True

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.outer = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Compute, in the declared time."""
        began = time.perf_counter()
        found: Tensor = self.outer(self.inner(rows).relu())
        if self.paced:
            pace(began, COMPUTE_SECONDS)
        return found


class SlowFiles(ExpertFiles):
    """Files that take declared times, and record reads and writes in order."""

    def __init__(self, files: ExpertFiles) -> None:
        self.__dict__.update(files.__dict__)
        self.noted: list[tuple[str, Key]] = []

    def read(self, key: Key, into: Tensor) -> None:
        """Read in the declared time."""
        began = time.perf_counter()
        super().read(key, into)
        pace(began, READ_SECONDS)
        self.noted.append(("read", key))

    def write(self, key: Key, values: Tensor) -> None:
        """Write in the declared time."""
        began = time.perf_counter()
        super().write(key, values)
        pace(began, WRITE_SECONDS)
        self.noted.append(("write", key))


class Training:
    """A model of some layers with one expert each.

    Attributes:
        tiers: None in memory.
    """

    def __init__(self, layers: int, folder: Path | None, *, prefetches: bool = True) -> None:
        torch.manual_seed(1)
        self.experts = [SlowExpert() for _ in range(layers)]
        self.optimizer = torch.optim.Adam(
            [each for expert in self.experts for each in expert.parameters()], lr=0.01
        )
        self.inputs = torch.randn(ROWS, WIDTH)
        self.tiers: TieredExperts | None = None
        if folder is not None:
            keys = {(layer, 0): expert for layer, expert in enumerate(self.experts)}
            self.tiers = TieredExperts(keys, self.optimizer, folder, HOST_ENTRIES)
            self.files = SlowFiles(self.tiers.host.files)
            self.tiers.host.files = self.files
            if not prefetches:
                self.tiers._max_ahead = 0

    def iterate(self) -> tuple[list[float], list[list[tuple[str, Key]]]]:
        """Train for an iteration; return the seconds and the file operations of each of its three parts."""
        seconds, operations = [], []
        rows = self.inputs

        def forward() -> None:
            nonlocal rows
            for expert in self.experts:
                rows = rows + expert(rows)

        parts: list[Callable[[], Any]] = [
            forward, lambda: rows.square().mean().backward(), self.optimizer.step
        ]  # fmt: skip
        for part in parts:
            if self.tiers is not None:
                self.files.noted = []
            began = time.perf_counter()
            part()
            seconds.append(time.perf_counter() - began)
            if self.tiers is not None:
                operations.append(self.files.noted)
        self.optimizer.zero_grad()
        return seconds, operations

    def weights(self) -> list[Tensor]:
        """Return all weights."""
        if self.tiers is not None:
            self.tiers.give_back()
        return [each.detach().clone() for expert in self.experts for each in expert.parameters()]


def fetch_seconds(operations: list[tuple[str, Key]], layers: list[int]) -> list[float]:
    """Return the fetch time of each layer in the order of computation: its read, and the writes of evicted
    states."""
    found = dict.fromkeys(layers, 0.0)
    written = 0.0
    for kind, (layer, _) in operations:
        if kind == "write":
            written += WRITE_SECONDS
        else:
            found[layer] += written + READ_SECONDS
            written = 0.0
    return [found[layer] for layer in layers]


def recurrence_seconds(layers: int, operations: list[list[tuple[str, Key]]]) -> float:
    """Return the time of an iteration by the recurrence, with the actual fetches."""
    there, back = list(range(layers)), list(reversed(range(layers)))
    times = None
    for order, part, compute in zip(
        (there, back, there), operations, (COMPUTE_SECONDS, COMPUTE_SECONDS, 0.0), strict=True
    ):
        fetch = fetch_seconds(part, order)
        one = LayerTimes(np.full(layers, compute), np.zeros(layers), np.array(fetch))
        times = one if times is None else times.followed_by(one)
    assert times is not None
    return two_channel_schedule(times).seconds


def measure(layers: int, iterations: int) -> dict[str, Any]:
    """Train both ways alternately; return medians of an iteration, and the recurrence's prediction."""
    with tempfile.TemporaryDirectory(prefix="tiers-") as root:
        ways = {
            "prefetch": Training(layers, Path(root, "prefetch")),
            "none": Training(layers, Path(root, "none"), prefetches=False),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        predicted = []
        # In the first iteration the next one's uses are unknown.
        for iteration in range(iterations + 1):
            for name, way in ways.items():
                seconds, operations = way.iterate()
                if not iteration:
                    continue
                found[name].append(sum(seconds))
                if name == "prefetch":
                    predicted.append(recurrence_seconds(layers, operations))
        weights = {name: way.weights() for name, way in ways.items()}
    SlowExpert.paced = False
    in_memory = Training(layers, None)
    for _ in range(iterations + 1):
        in_memory.iterate()
    expected = in_memory.weights()
    is_equal = all(
        torch.equal(one, other) for own in weights.values() for one, other in zip(own, expected, strict=True)
    )
    return {
        "layers": layers,
        "seconds": {name: median(each) for name, each in found.items()},
        "recurrence_seconds": median(predicted),
        "measured_over_recurrence": median(
            each / wanted for each, wanted in zip(found["prefetch"], predicted, strict=True)
        ),
        "gain": median(none / own for none, own in zip(found["none"], found["prefetch"], strict=True)),
        "is_equal": is_equal,
    }


def main() -> None:
    """Measure, print, and write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--layers", type=int, default=12)
    options.add_argument("--iterations", type=int, default=4)
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    torch.set_num_threads(1)
    found = measure(chosen.layers, chosen.iterations)
    print(
        f"an iteration: {found['seconds']['prefetch']:.2f} s with prefetch, {found['seconds']['none']:.2f} s "
        f"without: {found['gain']:.2f} times as fast; {found['measured_over_recurrence']:.2f} of the "
        f"recurrence ({found['recurrence_seconds']:.2f} s); weights "
        f"{'equal' if found['is_equal'] else 'DIFFER FROM'} those of training in memory"
    )
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
