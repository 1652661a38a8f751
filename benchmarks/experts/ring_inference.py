"""A model whose layers stream through a ring of device memory, against the same model resident.

Both are in one process and alternate. Layers are mixtures of experts, as wide as `--width`; `--tokens` sets
the time of computing a layer relative to copying it. A thread copies from host memory to preallocated memory
that represents a device's. Each kind's best pass counts, since other work on the machine only adds time; the
median of alternating passes shows whether both had the same luck.

    python -m benchmarks.experts.ring_inference [--layers 12] [--saved 0.3] [--tokens 256]
        [--rounds 5] [--json OUT]
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from moe.moesys.serving_ring import RingTimes, judge_ring
from punctual.moe import MoELayer, TopK
from workers.serving.ring.layer_ring import LayerRing
from workers.serving.ring.layers import count_bytes
from workers.serving.ring.placing import place_model

CPU = torch.device("cpu")


class Tower(nn.Module):
    """Mixtures of experts in sequence."""

    def __init__(self, layers: int, width: int, experts: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(MoELayer(width, 4 * width, experts, TopK(1)) for _ in range(layers))

    def forward(self, rows: Tensor) -> Tensor:
        """Return rows of the same shape."""
        for layer in self.layers:
            rows = torch.tanh(rows + layer(rows))
        return rows


@dataclass(frozen=True)
class Figures:
    """Seconds of a pass and of a layer, and ratios.

    Attributes:
        saved: share of the resident model's memory.
        over_resident: streamed over resident time, each of its best pass. median_over_resident: of
            alternating passes, pair by pair.
        over_prediction: streamed time over the planner's prediction from the times of the same run.
        stall_share: share of the passes spent waiting for copies.
    """

    saved: float
    resident_seconds: float
    streamed_seconds: float
    load_seconds: float
    compute_seconds: float
    over_resident: float
    median_over_resident: float
    over_prediction: float
    stall_share: float
    are_bits_equal: bool


def measure(layers: int, width: int, experts: int, tokens: int, saved: float, rounds: int) -> Figures:
    """Measure both models alternately.

    Args:
        saved: least share of memory to save.
        rounds: rounds of three passes each.
    """
    torch.manual_seed(0)
    resident = Tower(layers, width, experts).eval()
    streamed = copy.deepcopy(resident)
    ring = place_model(streamed, CPU, int((1 - saved) * count_bytes(resident)))
    if ring is None:
        raise SystemExit(f"--saved is {saved:g}; nothing streams")
    rows = torch.randn(1, tokens, width)
    pairs: list[tuple[float, float]] = []
    equal = True
    for _ in range(rounds):
        for _ in range(3):
            began = time.perf_counter()
            wanted = resident(rows)
            middle = time.perf_counter()
            with ring.call():
                found = streamed(rows)
            ended = time.perf_counter()
            pairs.append((middle - began, ended - middle))
            equal = equal and torch.equal(wanted, found)
    return _figures(ring, count_bytes(resident), pairs, equal)


def _figures(ring: LayerRing, model_bytes: int, pairs: Sequence[tuple[float, float]], equal: bool) -> Figures:
    resident, streamed = (min(times) for times in zip(*pairs, strict=True))
    report, times = ring.report(), ring.times()
    # The best passes of both, so that other work on the machine affects neither.
    best = RingTimes(times.load_seconds, resident / ring.plan.layers)
    waited, computed = report["stall_seconds"], report["compute_seconds"]
    return Figures(
        saved=1 - ring.plan.device_bytes / model_bytes,
        resident_seconds=resident,
        streamed_seconds=streamed,
        load_seconds=times.load_seconds,
        compute_seconds=best.compute_seconds,
        over_resident=streamed / resident,
        median_over_resident=median(second / first for first, second in pairs),
        over_prediction=streamed / judge_ring(ring.plan, best, None).seconds,
        stall_share=waited / (waited + computed),
        are_bits_equal=equal,
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--saved", type=float, default=0.3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with torch.inference_mode():
        found = measure(asked.layers, asked.width, asked.experts, asked.tokens, asked.saved, asked.rounds)
    for name, value in asdict(found).items():
        print(f"{name:21} {value if isinstance(value, bool) else format(value, '.4g')}")
    if asked.json:
        asked.json.write_text(json.dumps(asdict(found), indent=1))


if __name__ == "__main__":
    main()
