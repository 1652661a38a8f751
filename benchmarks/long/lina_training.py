"""Lina's training step beside the same code without its scheduler, pieces and packing, on real ranks.

Processes of gloo train a small mixture of experts with the runtime's own synchroniser: rows, gradients and
experts really travel. Each rank has a link of a declared rate, which all-to-all and all-reduce share as in
`emulated_links`; transfers end no earlier than the link allows. Computation takes its declared time. Times
are emulated: each part of a step begins when what it waits for has ended, so a host that is late for a while
changes little; its delay is printed. The effects of overlap, priority and packing are not computed by any
formula. The simulator (SIM-T) predicts them from the same parameters.

There are two links: fair, where both classes get a half while both are active; and with the fitted
interference (0.24 and 0.055).

    python -m benchmarks.long.lina_training [--ranks 4 8] [--mode leader] [--steps 3] [--unit 0.15] [--json
    OUT]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.lina.paced_ranks import (
    CLOCK,
    LINKS,
    PAYLOAD_BYTES,
    ROWS,
    SETTINGS,
    VARIANTS,
    WIDTH,
    Baseline,
    Layer,
    PacedCommunication,
    PacedLina,
    PacedLink,
    Setting,
    parts_of,
)
from moe.lina.scheduler import Mode
from moe.lina.shared_link import Rates
from moe.lina.training_step import BASELINE, PIPELINING, simulate_step
from punctual.moe import ExpertPlacement
from tests.communication.hooks.ranks import run_on_ranks
from workers.runtime.lina.exchange import PipelinedExchange

LIMIT_SECONDS = 900.0
#: Share by which real work may overrun the pace; beyond, a measurement is void.
LARGEST_OVERRUN = 0.05


def train(setting: Setting, rates: Rates, variant: str, steps: int, mode: Mode) -> dict[str, list[float]]:
    """Train for some steps on this rank; return their seconds, those of all-to-alls, and overruns."""
    torch.manual_seed(1)
    model = nn.Sequential(*(Layer(setting) for _ in range(setting.layers)))
    parts = parts_of(model)
    kind = Baseline if variant == "baseline" else PacedLina
    synchroniser = kind(setting, rates, mode, setting.packing if variant == "lina" else 1)
    wrapped = synchroniser.wrap(parts, None, synchroniser.takes(parts, dict(_trained(model))))
    synchroniser.begin_alike()
    for layer in model:
        layer.slow_combination()
    tokens = torch.randn(1, ROWS, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
    communication = synchroniser.paced
    found = []
    # The first steps open connections, without a known order of gradients.
    for step in range(steps + 2):
        communication.take_all_to_all_seconds()
        CLOCK.begin()
        began = CLOCK.at
        wrapped.begin_iteration()
        with wrapped.lend() as lent:
            loss = lent(tokens).square().mean()
        wrapped.before_backward(loss)
        loss.backward()
        wrapped.after_backward(in_pieces=False)
        synchroniser.after_backward()
        seconds = CLOCK.at - began
        overrun = max(0.0, time.monotonic() - CLOCK.at) / seconds
        parts.optimizer.zero_grad()
        if step > 1:
            found.append((seconds, communication.take_all_to_all_seconds(), overrun))
    synchroniser.close()
    names = ("seconds", "all_to_all", "overrun")
    return {name: list(each) for name, each in zip(names, zip(*found, strict=True), strict=True)}


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, each) for name, each in model.named_parameters() if each.requires_grad]


def measure_hidden(setting: Setting) -> list[float]:
    """Return the share of the experts' computation that a pipelined block hides on a link of its own."""
    link = PacedLink(setting.bytes_per_second, Rates())
    communication = PacedCommunication(Mode.BOUNDED_OVERLAP, link, setting.ranks)
    layer = Layer(setting)
    exchange = PipelinedExchange(
        ExpertPlacement.even(setting.ranks, setting.ranks),
        dist.new_group(list(range(setting.ranks))),
        communication,
        name="layer",
        partition_bytes=PAYLOAD_BYTES / setting.pieces,
    )
    rows = torch.ones(ROWS, WIDTH)
    counts = torch.full((setting.ranks, setting.ranks), ROWS // setting.ranks)
    found = []
    with torch.no_grad():
        for _ in range(6):
            CLOCK.begin()
            began = CLOCK.at
            exchange.exchange(rows, counts, layer.moe._compute_expert)
            units = (CLOCK.at - began) / setting.unit_seconds
            found.append((2 * setting.all_to_all + setting.expert - units) / setting.expert)
    communication.close()
    return found[1:]


def measure(setting: Setting, links: list[str], steps: int, mode: Mode) -> dict[str, Any]:
    """Measure everything on this rank, by link and variant."""
    found: dict[str, Any] = {"hidden": measure_hidden(setting)}
    for link in links:
        found[link] = {name: train(setting, LINKS[link], name, steps, mode) for name in VARIANTS}
    return found


def compare(setting: Setting, link: str, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare the ranks' measurements on one link with the simulation."""
    model = setting.model(LINKS[link])
    simulated = {
        "baseline": simulate_step(model, setting.ranks, BASELINE),
        "unpacked": simulate_step(model, setting.ranks, PIPELINING),
        "lina": simulate_step(model, setting.ranks // setting.packing, PIPELINING, is_packed=True),
    }
    unit = setting.unit_seconds
    seconds, all_to_all, overruns = {}, {}, {}
    for name in VARIANTS:
        own = [rank[link][name] for rank in ranks]
        # A step ends with the last of its ranks.
        seconds[name] = median(max(steps) for steps in zip(*(one["seconds"] for one in own), strict=True))
        overruns[name] = median(max(steps) for steps in zip(*(one["overrun"] for one in own), strict=True))
        all_to_all[name] = median(value for one in own for value in one["all_to_all"])
    found: dict[str, Any] = {
        "link": link,
        "ranks": setting.ranks,
        "setting": asdict(setting),
        "seconds": seconds,
        "simulated_seconds": {name: step.total * unit for name, step in simulated.items()},
        "all_to_all_share": all_to_all["baseline"] / seconds["baseline"],
        "overruns": overruns,
        "is_void": max(overruns.values()) > LARGEST_OVERRUN,
    }
    for name in ("unpacked", "lina"):
        found[name] = {
            "gain": seconds["baseline"] / seconds[name],
            "simulated_gain": simulated["baseline"].total / simulated[name].total,
            "all_to_all_gain": all_to_all["baseline"] / all_to_all[name],
            "simulated_all_to_all_gain": simulated["baseline"].all_to_all / simulated[name].all_to_all,
        }
    return found


def show(run: dict[str, Any]) -> None:
    """Print one comparison."""
    print(
        f"  {run['link']}: step {run['seconds']['baseline']:.2f} s without Lina (simulated "
        f"{run['simulated_seconds']['baseline']:.2f}), all-to-all {run['all_to_all_share']:.0%} of it; the "
        f"host overran the pace by {max(run['overruns'].values()):.1%}"
        + (": void" if run["is_void"] else ""),
        flush=True,
    )
    for name, label in (("unpacked", "scheduled, in pieces"), ("lina", "and packed")):
        each = run[name]
        print(
            f"    {label}: {each['gain']:.2f} times as fast (simulated {each['simulated_gain']:.2f}), "
            f"all-to-all {each['all_to_all_gain']:.2f} times "
            f"(simulated {each['simulated_all_to_all_gain']:.2f})",
            flush=True,
        )


def main() -> None:
    """Measure, print, and write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--ranks", type=int, nargs="+", default=sorted(SETTINGS), choices=sorted(SETTINGS))
    options.add_argument("--links", nargs="+", default=list(LINKS), choices=list(LINKS))
    options.add_argument("--steps", type=int, default=3)
    options.add_argument("--unit", type=float, default=0.15, help="seconds of a unit of the declared times")
    modes = [Mode.BOUNDED_OVERLAP.value, Mode.LEADER.value]
    options.add_argument("--mode", default=modes[0], choices=modes, help="of Lina's scheduler")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    print(
        f"emulated links and computation, on {platform.machine()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}, {chosen.mode}"
    )
    found: dict[str, Any] = {"mode": chosen.mode, "runs": [], "hidden": {}}
    for ranks in chosen.ranks:
        setting = replace(SETTINGS[ranks], unit_seconds=chosen.unit)
        told = run_on_ranks(
            ranks, measure, setting, chosen.links, chosen.steps, Mode(chosen.mode), seconds=LIMIT_SECONDS
        )
        hidden = median(min(each) for each in zip(*(one["hidden"] for one in told), strict=True))
        found["hidden"][ranks] = hidden
        print(f"{ranks} ranks: pipelining hides {hidden:.0%} of the experts' computation", flush=True)
        for link in chosen.links:
            run = compare(setting, link, told)
            found["runs"].append(run)
            show(run)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
