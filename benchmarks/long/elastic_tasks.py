"""Four tasks with loads 4:2:1:1 on workers assigned by load, beside one worker for each task.

Gloo processes train `examples/multi_task_model.py` with the runtime's own parts. Computation takes the time
of a declared device, fitted to the published step times (MoESys); collectives are really sent over fast
emulated links. Times are emulated, so a busy host changes them little; a measurement that it overran by more
than 5 % is void. A larger `--scale` gives it more time. Rounds of all layouts alternate.

    python -m benchmarks.long.elastic_tasks [--iterations 4] [--rounds 2] [--scale 1] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from emulated_links.rates import ServerLinks
from examples.multi_task_model import MultiTask
from moe.moesys import tasks as planned
from moe.moesys.elastic import plan_one_gpu_each
from tests.communication.hooks.ranks import run_on_ranks
from workers.runtime.at_home.local_agent import runtime_plan
from workers.runtime.data.batches import BatchLoader
from workers.runtime.data.task_order import TaskOrder
from workers.runtime.emulation.device_models import DeviceModel
from workers.runtime.emulation.emulated_network import BACKEND, Emulation, register
from workers.runtime.emulation.emulated_time import Overrun
from workers.runtime.emulation.pace import Pace
from workers.runtime.emulation.places import Places
from workers.runtime.function.parts import build_dataset, build_parts, build_sample_order
from workers.runtime.iterating.iteration import IterationRunner
from workers.runtime.runtime_plan import RuntimePlan
from workers.runtime.synchronisation.together import Synchronisation

#: A sixteenth of the published batch of 1,024 samples.
BATCH = 64
#: The published step: T = 0.9435 s + 6.1444 ms for each sample of the published batch.
FIXED_SECONDS, SECONDS_PER_SAMPLE = 0.9435, 6.1444e-3 * 16
HYPERPARAMETERS = {"width": 16, "hidden": 16, "heads": 2, "experts": 2, "samples": 512}
#: Untimed iterations, in which connections are made.
WARM_UP = 1
LARGEST_OVERRUN = 0.05
PUBLISHED_GAIN = 74.0 / 62.6
#: Workers, and whether they are assigned to tasks by load.
LAYOUTS = {
    "one each": (4, False),
    "elastic on 4": (4, True),
    "elastic on 8": (8, True),
    "elastic on 2": (2, True),
}
LIMIT_SECONDS = 900.0


def links() -> ServerLinks:
    """Return links whose time is negligible beside computation."""
    names = ("within_server", "network", "spine", "host_to_device", "disk")
    return ServerLinks.from_message({name: {"bytes_per_second": 1e11} for name in names})


def order_by_task(order: TaskOrder, ranks: int) -> None:
    """Give each task one worker, as without elasticity."""
    order._plans[ranks] = plan_one_gpu_each([planned.Task(batch) for batch in order.batches])


def train(box: str, iterations: int, is_elastic: bool, scale: float) -> dict[str, Any]:
    """Train on this rank; return emulated seconds of an iteration, losses and weights."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    emulation = Emulation(links(), Places((0,) * ranks, (0,) * ranks), Path(box))
    register(emulation)
    group = dist.new_group(backend=BACKEND)
    function = MultiTask(HYPERPARAMETERS)
    parts = build_parts(function, torch.device("cpu"), seed=0)
    dataset = build_dataset(function, seed=0)
    synchronisation = Synchronisation(RuntimePlan.from_message(runtime_plan()), parts, group)
    synchronisation.begin_alike()
    order = build_sample_order(parts, dataset, "random", BATCH, 0)
    assert isinstance(order, TaskOrder)
    if not is_elastic:
        order_by_task(order, ranks)
    loader = BatchLoader(dataset, function.collate, order, rank=rank, world_size=ranks, device=parts.device)
    samples = len(order.local_places(rank, ranks))
    device = DeviceModel(scale * FIXED_SECONDS, scale * SECONDS_PER_SAMPLE)
    pace = Pace(emulation, device, samples, parts.module)
    runner = IterationRunner(
        parts,
        synchronisation,
        loader,
        group=group,
        world_size=ranks,
        rank=rank,
        seed=0,
        clip_norm=None,
        pace=pace,
    )
    losses = [runner.run(iteration).values["loss"] for iteration in range(WARM_UP)]
    overrun = Overrun(emulation.clock)
    began = emulation.clock.at
    losses += [runner.run(WARM_UP + iteration).values["loss"] for iteration in range(iterations)]
    seconds = (emulation.clock.at - began) / iterations
    with synchronisation.whole():
        weights = [each.detach().clone() for each in parts.module.parameters()] if rank == 0 else []
    return {
        "seconds": seconds,
        "overrun": overrun.share(),
        "losses": losses,
        "weights": weights,
        "loads": order.loads(ranks),
    }


def run_layout(name: str, iterations: int, scale: float) -> dict[str, Any]:
    """Train under a layout; return what its slowest rank measured."""
    ranks, is_elastic = LAYOUTS[name]
    with tempfile.TemporaryDirectory(prefix="tasks-") as box:
        told = run_on_ranks(ranks, train, box, iterations, is_elastic, scale, seconds=LIMIT_SECONDS)
    seconds = max(each["seconds"] for each in told)
    return {
        "seconds": seconds,
        "per_worker": BATCH / seconds / ranks,
        "overrun": max(each["overrun"] for each in told),
        "losses": told[0]["losses"],
        "weights": told[0]["weights"],
        "loads": told[0]["loads"],
    }


def main() -> None:
    """Measure, print, and write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--iterations", type=int, default=4)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--scale", type=float, default=1.0, help="of the declared times")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    rounds = [
        {name: run_layout(name, chosen.iterations, chosen.scale) for name in LAYOUTS}
        for _ in range(chosen.rounds)
    ]
    first = rounds[0]
    found = []
    for name, (ranks, _) in LAYOUTS.items():
        gain = median(each[name]["per_worker"] / each["one each"]["per_worker"] for each in rounds)
        overrun = max(each[name]["overrun"] for each in rounds)
        difference = max(
            (one - other).abs().max().item()
            for one, other in zip(first[name]["weights"], first["one each"]["weights"], strict=True)
        )
        found.append(
            {
                "layout": name,
                "workers": ranks,
                "loads": first[name]["loads"],
                "seconds": median(each[name]["seconds"] for each in rounds),
                "gain_per_worker": gain,
                "overrun": overrun,
                "largest_difference_of_weights": difference,
                "losses": first[name]["losses"],
            }
        )
        print(
            f"{name}: loads {', '.join(f'{load:g}' for load in first[name]['loads'])}; "
            f"{found[-1]['seconds']:.3f} s an iteration; {gain:.2f} times the samples per worker; weights "
            f"differ by {difference:.1e} at most; overrun {overrun:.1%}"
            + (": void" if overrun > LARGEST_OVERRUN else ""),
            flush=True,
        )
    print(f"published: {PUBLISHED_GAIN:.2f} times the samples per GPU on 8 GPUs")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
