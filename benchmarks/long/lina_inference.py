"""Serving with Lina's placement beside the even one, on real ranks with paced links.

Processes of gloo serve a mixture of experts as the group of a deployment does (`workers/serving/experts`):
rows really travel, experts are really swapped. Links and computation take the declared time of SIM-I
(CAL-2), `--scale` times as long: an all-to-all takes as long as its busiest rank sends or receives, an expert
as long as its rows. Planning, swaps and headers take their real time on this host. SIM-I serves the same
batches for comparison, with the published overheads of planning and without any.

    python -m benchmarks.long.lina_inference [--experts 4] [--batches 40] [--scale 2] [--estimate full]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from moe.lina.expert_paths import Counts, PathProfile, profile_paths
from moe.lina.inference_batches import LayerTimes, Serving, serve
from moe.lina.popularity import Estimate
from moe.lina.synthetic_routing import Routing, RoutingModel
from moe.lina.two_phases import PlacementRules
from punctual.moe import MoELayer, TopK, moe_layers
from tests.communication.hooks.ranks import run_on_ranks
from workers.runtime.at_home.local_ports import LOOPBACK, free_port
from workers.serving.experts.group import ExpertGroup
from workers.serving.experts.held import HeldExperts
from workers.serving.experts.meeting import Bell
from workers.serving.experts.plans import ExpertPlanner

RANKS, TOKENS, PROFILED, HIDDEN, OTHERS = 4, 2048, 32_768, 16, 16
#: Batches before the measurement.
WARM_UP = 2


@dataclass(frozen=True)
class Setting:
    """Input of all ranks. `scale`: factor on declared times."""

    experts: int
    batches: int
    scale: float
    estimate: Estimate
    seed: int

    @property
    def routing(self) -> Routing:
        """The routes of tokens; those of 4 experts are as skewed as in `manage.py reproduce lina`."""
        found = RoutingModel(experts=self.experts, seed=self.seed)
        if self.experts == 4:
            found = replace(found, types=12, type_exponent=1.0, popularity_exponent=1.0)
        return Routing(found)

    def draw(self) -> tuple[PathProfile, list[Counts]]:
        """Return the profile and the batches."""
        routing = self.routing
        layers = RoutingModel().layers
        profile = profile_paths(routing.draw_tokens(PROFILED, 0), [self.experts] * layers)
        return profile, [routing.draw_batch(TOKENS, number) for number in range(self.batches)]

    def seconds(self, milliseconds: float) -> float:
        """Return the time here of a declared one."""
        return milliseconds * self.scale / 1e3


class Model(nn.Module):
    """Each token names its expert at each layer; everything except experts and all-to-alls takes `rest`."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        torch.manual_seed(0)
        width, self._setting = setting.experts + OTHERS, setting
        number = RoutingModel().layers
        self.layers = nn.ModuleList(MoELayer(width, HIDDEN, setting.experts, TopK(1)) for _ in range(number))
        with torch.no_grad():
            for layer in self.layers:
                layer.gate_weights.weight.zero_()
                layer.gate_weights.weight[:, : setting.experts] = 5.0 * torch.eye(setting.experts)

    def forward(self, choices: Tensor) -> Tensor:
        """Serve tokens with these experts (tokens, layers)."""
        outputs = torch.zeros(len(choices), self._setting.experts + OTHERS)
        for number, layer in enumerate(self.layers):
            time.sleep(self._setting.seconds(LayerTimes().rest))
            named = nn.functional.one_hot(choices[:, number], self._setting.experts)
            outputs = layer(nn.functional.pad(named.float(), (0, OTHERS)) + 1e-3 * outputs)
        return outputs


@dataclass
class PacedWork:
    """An all-to-all that ends once it has arrived and its time is over."""

    work: Any
    ends_at: float

    def wait(self) -> None:
        """Wait for both."""
        self.work.wait()
        time.sleep(max(0.0, self.ends_at - time.monotonic()))


def pace(setting: Setting) -> None:
    """Make all-to-alls and experts of this process take their declared time."""
    times, mean = LayerTimes(), TOKENS / RANKS
    # Both all-to-alls of an evenly spread batch, of which each rank keeps its own part.
    row = setting.seconds(times.all_to_all / 2) / (mean * (RANKS - 1) / RANKS)
    all_to_all, compute, rank = dist.all_to_all_single, HeldExperts.compute, dist.get_rank()

    def paced_transfer(
        output: Tensor,
        rows: Tensor,
        received: list[int],
        sent: list[int],
        *,
        async_op: bool = False,
        **more: Any,
    ) -> PacedWork | None:
        travelling = max(sum(sent) - sent[rank], sum(received) - received[rank])
        ends_at = time.monotonic() + row * travelling
        work = PacedWork(all_to_all(output, rows, received, sent, async_op=True, **more), ends_at)
        if async_op:
            return work
        work.wait()
        return None

    def paced_compute(held: HeldExperts, layer: int, expert: int, rows: Tensor) -> Tensor:
        ends_at = time.monotonic() + setting.seconds(times.experts) / mean * len(rows)
        outputs = compute(held, layer, expert, rows)
        time.sleep(max(0.0, ends_at - time.monotonic()))
        return outputs

    dist.all_to_all_single = paced_transfer
    HeldExperts.compute = paced_compute  # type: ignore[method-assign, assignment]


def serve_on_this_rank(setting: Setting, ports: dict[str, int]) -> dict[str, Any]:
    """Serve all batches with each placement; return seconds of each batch and the group's counts."""
    rank = dist.get_rank()
    pace(setting)
    between = dist.new_group()
    profile, batches = setting.draw()
    found: dict[str, Any] = {}
    for name, known in (("even", None), ("lina", profile)):
        model = Model(setting).eval()
        planner = ExpertPlanner(profile.experts, RANKS, known, estimate=setting.estimate)
        bell = Bell(dist.TCPStore(LOOPBACK, ports[name], RANKS, is_master=rank == 0), rank)
        group = ExpertGroup(moe_layers(model), planner, torch.device("cpu"), bell)
        seconds = []
        for batch in [*batches[:WARM_UP], *batches]:
            own = torch.from_numpy(batch[rank * TOKENS // RANKS : (rank + 1) * TOKENS // RANKS])
            dist.barrier(between)
            began_at = time.monotonic()
            with group.batch(), torch.inference_mode():
                model(own)
            dist.barrier(between)
            seconds.append(time.monotonic() - began_at)
        group.close()
        found[name] = {"seconds": seconds[WARM_UP:], "counts": group.counts.report()}
    return found


def compare(setting: Setting, found: dict[str, Any]) -> dict[str, Any]:
    """Return how many times faster Lina is, measured and in SIM-I on the same batches."""
    profile, batches = setting.draw()
    rules = PlacementRules(RANKS)
    published = LayerTimes()
    rows: dict[str, Any] = {}
    seconds = {name: found[name]["seconds"] for name in ("even", "lina")}
    rows["measured"] = {
        f"p{percent}": float(
            np.percentile(seconds["even"], percent) / np.percentile(seconds["lina"], percent)
        )
        for percent in (50, 95)
    }
    for name, times in (("SIM-I", published), ("SIM-I, free", replace(published, resume=0.0, schedule=0.0))):
        served = partial(
            serve, batches=batches, rules=rules, profile=profile, estimate=setting.estimate, times=times
        )
        even, lina = served(Serving.EVEN), served(Serving.LINA)
        rows[name] = {f"p{each}": even.percentile(each) / lina.percentile(each) for each in (50, 95)}
    layers = found["lina"]["counts"]["layers"]
    estimated = sum(layer["estimated"] for layer in layers)
    rows["replaced_share"] = sum(layer["replaced"] for layer in layers) / max(1, estimated)
    rows["median_ms"] = {name: 1e3 * float(np.median(each)) for name, each in seconds.items()}
    rows["swaps"] = {
        name: found["lina"]["counts"][name] for name in ("swaps", "swap_seconds", "waited_seconds")
    }
    return rows


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--experts", type=int, default=4)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--scale", type=float, default=2.0)
    parser.add_argument("--estimate", type=Estimate, choices=list(Estimate), default=Estimate.NORM)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    setting = Setting(asked.experts, asked.batches, asked.scale, asked.estimate, asked.seed)
    ports = {"even": free_port(), "lina": free_port()}
    by_rank = run_on_ranks(RANKS, serve_on_this_rank, setting, ports, seconds=900.0)
    rows = compare(setting, by_rank[0])
    rows["load"] = os.getloadavg()[0]
    print(json.dumps(rows, indent=2))
    if asked.json:
        asked.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
