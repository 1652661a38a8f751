"""Rows of experts that travel in two phases, beside the flat all-to-all and the cost model, on real ranks.

Eight processes of gloo exchange random rows over the platform's emulated links. Every rank has a network
interface of its own; messages between ranks with different numbers on their servers cross a spine. Times are
emulated, so a busy host changes them little. The constants of the cost model (MoESys, with shared
uplinks) are fitted to the two smallest sizes; larger ones are predicted. An exchange pays emulated latencies
once; the fit divides them by the messages of the model.

    python -m benchmarks.long.hierarchical_exchange [--shapes 2x4 4x2] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from emulated_links.rates import EXPERTS, ServerLinks
from moe.moesys.all_to_all import (
    Algorithm,
    AllToAll,
    AllToAllChoice,
    LinkRates,
    choose_all_to_all,
    flat_seconds,
    hierarchical_seconds,
)
from punctual.moe import ExpertPlacement
from tests.communication.hooks.ranks import run_on_ranks
from workers.runtime.emulation.emulated_network import BACKEND, Emulation, register
from workers.runtime.emulation.places import Places
from workers.runtime.synchronisation.hierarchical_exchange import HierarchicalExchange, RailGroups
from workers.runtime.topology import EMULATED, RankGrid

WIDTH = 8
ROW_BYTES = WIDTH * 4
NETWORK_BYTES_PER_SECOND = 4e6
#: Mean rows from one rank to one other. The constants are fitted to the first two sizes.
SIZES = (256, 512, 1024, 2048, 4096, 8192)
FITTED = 2
REPEATS = 3
LIMIT_SECONDS = 900.0
#: Delay of the host that does not change a measurement.
PATIENCE_SECONDS = 4.0


@dataclass(frozen=True)
class Setting:
    """Links of each rank: rates relative to its network interface, latencies in seconds."""

    name: str
    #: Rate within a server, relative to the network interface.
    within: float
    #: Rate of the spine, relative to the network interface.
    spine: float
    #: Seconds.
    within_latency: float
    #: Seconds.
    network_latency: float
    #: Seconds.
    spine_latency: float

    @property
    def links(self) -> ServerLinks:
        """The emulated links of a rank."""
        rate = NETWORK_BYTES_PER_SECOND
        table = {
            "within_server": _link(self.within * rate, self.within_latency),
            "network": _link(rate, self.network_latency),
            "spine": _link(self.spine * rate, self.spine_latency),
            "host_to_device": _link(1e12, 0.0),
            "disk": _link(1e12, 0.0),
        }
        return ServerLinks.from_message(table)


def _link(bytes_per_second: float, latency_seconds: float) -> dict[str, float]:
    return {"bytes_per_second": bytes_per_second, "latency_seconds": latency_seconds}


SETTINGS = (
    Setting("slow spine", within=8.0, spine=1 / 3, within_latency=0.002, network_latency=0.01,
            spine_latency=0.01),
    Setting("spine as fast", within=8.0, spine=1.0, within_latency=0.002, network_latency=0.01,
            spine_latency=0.012),
    Setting("slow servers", within=1.0, spine=0.75, within_latency=0.002, network_latency=0.01,
            spine_latency=0.012),
)  # fmt: skip


class ForcedExchange(HierarchicalExchange):
    """An exchange whose algorithm is given."""

    forced = Algorithm.FLAT

    def _choose(self, rows: Tensor, between: Tensor) -> AllToAllChoice:
        return AllToAllChoice(self.forced, 0.0, 0.0)


@dataclass
class Links:
    """This rank's emulation, and its exchange over it."""

    emulation: Emulation
    everybody: Any
    rails: RailGroups
    exchange: ForcedExchange

    @classmethod
    def open(cls, setting: Setting, grid: RankGrid, box: str) -> Links:
        """Make the groups. All ranks must call this together."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        g = grid.ranks_per_server
        # Ranks with one number on their servers are on one leaf switch.
        places = Places(tuple(r // g for r in range(ranks)), tuple(r % g for r in range(ranks)))
        emulation = Emulation(setting.links, places, Path(box))
        register(emulation)
        everybody = dist.new_group(backend=BACKEND, group_desc=EXPERTS)
        rows = {tuple(row): dist.new_group(row, backend=BACKEND, group_desc=EXPERTS) for row in grid.rows}
        rails = {
            tuple(rail): dist.new_group(rail, backend=BACKEND, group_desc=EXPERTS) for rail in grid.rails
        }
        (within,) = (group for members, group in rows.items() if rank in members)
        (between,) = (group for members, group in rails.items() if rank in members)
        own = RailGroups(grid, within, between, LinkRates(), EMULATED)
        placement = ExpertPlacement.even(ranks, ranks)
        return cls(emulation, everybody, own, ForcedExchange(placement, everybody, own))

    def time(self, algorithm: Algorithm, rows: Tensor, between: Tensor) -> tuple[float, float, Tensor]:
        """Exchange once, all ranks from one instant; return emulated seconds, those of the first phase, and
        what arrived."""
        clock = self.emulation.clock
        # Late enough that every rank is there in time.
        at = torch.tensor([time.monotonic() + 0.05], dtype=torch.float64)
        dist.all_reduce(at, op=dist.ReduceOp.MAX)
        clock.at = began = float(at)
        clock.begin(PATIENCE_SECONDS)
        self.exchange.forced = algorithm
        arrived = self.exchange.transfer(rows, between)
        if algorithm is Algorithm.FLAT:
            return self.everybody.last[1] - began, 0.0, arrived
        first: Any = self.rails.within
        second: Any = self.rails.between
        return second.last[1] - began, first.last[1] - began, arrived


def measure(settings: tuple[Setting, ...], servers: int, each: int, box: str) -> list[dict[str, Any]]:
    """Return for each setting what this rank measured, by rows and algorithm."""
    grid = RankGrid(servers, each)
    return [_measure(setting, grid, box) for setting in settings]


def _measure(setting: Setting, grid: RankGrid, box: str) -> dict[str, Any]:
    links = Links.open(setting, grid, box)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(1)
    found: dict[str, Any] = {"lost_seconds": 0.0, "sizes": {}}
    for size in SIZES:
        # Rows of a router that spreads them evenly except for chance, equally many from each rank.
        chosen = torch.randint(ranks, (ranks, size * ranks), generator=generator)
        between = torch.stack([torch.bincount(each, minlength=ranks) for each in chosen])
        rows = torch.randn(size * ranks, WIDTH, generator=torch.Generator().manual_seed(rank))
        times: dict[str, list[tuple[float, float]]] = {each.value: [] for each in Algorithm}
        arrived: dict[str, Tensor] = {}
        for _ in range(REPEATS):
            for algorithm in Algorithm:
                seconds, first, arrived[algorithm.value] = links.time(algorithm, rows, between)
                times[algorithm.value].append((seconds, first))
        assert torch.equal(*arrived.values()), "both ways must bring the same bits"
        found["sizes"][size] = times
    found["lost_seconds"] = links.emulation.clock.lost_seconds
    return found


def slowest(by_rank: list[dict[str, Any]], size: int, algorithm: str) -> tuple[float, float]:
    """Return the seconds of an exchange, and of its first phase; it ends with the last rank."""
    ranks = [each["sizes"][size][algorithm] for each in by_rank]
    runs = [tuple(max(values) for values in zip(*run, strict=True)) for run in zip(*ranks, strict=True)]
    return median(run[0] for run in runs), median(run[1] for run in runs)


def fit(grid: RankGrid, times: Mapping[int, Mapping[str, tuple[float, float]]]) -> LinkRates:
    """Return the constants of the cost model, fitted to the times of the two smallest sizes."""
    n, g = grid.servers, grid.ranks_per_server
    ranks = n * g
    small, large = sorted(times)[:FITTED]
    more_bytes = (large - small) * ROW_BYTES

    def line(of: Any) -> tuple[float, float]:
        slope = (of(times[large]) - of(times[small])) / more_bytes
        return slope, of(times[small]) - slope * small * ROW_BYTES

    flat_slope, flat_constant = line(lambda each: each["flat"][0])
    first_slope, first_constant = line(lambda each: each["hierarchical"][1])
    both_slope, both_constant = line(lambda each: each["hierarchical"][0])
    leaf = (n - 1) * g / (both_slope - first_slope)
    # In the model each message pays latency: those of flat, and of both phases together.
    between_latency = max(0.0, flat_constant / (ranks - g))
    within_latency = max(0.0, (both_constant - between_latency * (n - 1)) / (g - 1))
    oversubscription = flat_slope * leaf / (ranks - g) * g / (g - 1)
    return LinkRates(
        within=(g - 1) * n / first_slope,
        leaf=leaf,
        spine=leaf,
        within_latency=within_latency,
        between_latency=between_latency,
        oversubscription=oversubscription,
    )


def compare(setting: Setting, grid: RankGrid, by_rank: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare measured times with predictions."""
    times = {size: {each.value: slowest(by_rank, size, each.value) for each in Algorithm} for size in SIZES}
    rates = fit(grid, times)
    rows = []
    for size in SIZES:
        exchange = AllToAll(grid.servers, grid.ranks_per_server, float(size * ROW_BYTES))
        flat, hierarchical = times[size]["flat"][0], times[size]["hierarchical"][0]
        wins = Algorithm.FLAT if flat < hierarchical else Algorithm.HIERARCHICAL
        rows.append(
            {
                "pair_bytes": size * ROW_BYTES,
                "is_fitted": size in SIZES[:FITTED],
                "flat": flat,
                "hierarchical": hierarchical,
                "flat_over_hierarchical": flat / hierarchical,
                "flat_predicted": flat_seconds(exchange, rates) / flat,
                "hierarchical_predicted": hierarchical_seconds(exchange, rates) / hierarchical,
                "wins": wins.value,
                "chosen": choose_all_to_all(exchange, rates).algorithm.value,
            }
        )
    lost = max(each["lost_seconds"] for each in by_rank)
    return {"setting": asdict(setting), "grid": asdict(grid), "lost_seconds": lost, "rows": rows}


def show(found: dict[str, Any]) -> None:
    """Print one comparison."""
    grid, name = found["grid"], found["setting"]["name"]
    print(f"{grid['servers']}x{grid['ranks_per_server']}, {name} (host lost {found['lost_seconds']:.2f} s)")
    for row in found["rows"]:
        print(
            f"  {row['pair_bytes'] / 1e3:8.1f} kB: flat/hierarchical {row['flat_over_hierarchical']:.2f}; "
            f"predicted/measured flat {row['flat_predicted']:.3f}, hierarchical "
            f"{row['hierarchical_predicted']:.3f}{' (fitted)' if row['is_fitted'] else ''}; "
            f"chosen {row['chosen']}, wins {row['wins']}",
            flush=True,
        )


def main() -> None:
    """Measure, print, and write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--shapes", nargs="+", default=["2x4", "4x2"], help="servers x ranks of each")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    found = []
    for shape in chosen.shapes:
        servers, each = map(int, shape.split("x"))
        with tempfile.TemporaryDirectory(prefix="links-") as box:
            by_rank = run_on_ranks(
                servers * each, measure, SETTINGS, servers, each, box, seconds=LIMIT_SECONDS
            )
        for number, setting in enumerate(SETTINGS):
            one = compare(setting, RankGrid(servers, each), [rank[number] for rank in by_rank])
            show(one)
            found.append(one)
    predicted = [row for one in found for row in one["rows"] if not row["is_fitted"]]
    errors = [abs(row[f"{each.value}_predicted"] - 1) for row in predicted for each in Algorithm]
    right = sum(row["chosen"] == row["wins"] for row in predicted)
    print(f"largest error of a prediction {max(errors):.1%}; chosen as it wins {right} of {len(predicted)}")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
