"""Scaling of emulated accelerators: the profiled curve on 1, 2, 4 and 8 of them, packed on one server and
spread over two, against their computing alone.

What the ranks exchange is really sent over the emulated links, so this is the cost of synchronising on the
declared devices, provided that the machine keeps the pace: a level whose measurement overran it by more than
5 % is marked as void.

    python -m benchmarks.runtime.emulated_scaling [--examples character_model ...] [--seconds 4] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any

from emulated_links.rates import DEFAULT_LINKS
from launch.settings import DEFAULT_DEVICE_MODEL
from workers.runtime.at_home.local_agent import LocalAgent
from workers.runtime.at_home.local_worker import Message
from workers.runtime.emulation.device_models import DeviceModel
from workers.runtime.profiling import VOID_OVERRUN
from workers.runtime.try_function import find_entry

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LEVELS = [1, 2, 4, 8]
BATCH = 64
PLACES = {
    "packed": {"servers": [0] * 8, "racks": [0] * 8},
    # Neighbours are on different servers, so that every level crosses the network.
    "spread": {"servers": [0, 1] * 4, "racks": [0] * 8},
}


def measure(source: Path, places: Message, seconds: float) -> list[Message]:
    """Return the levels of the curve as a profiling generation reports them."""
    assignment: Message = {
        "function": {"entry": find_entry(source)},
        "hyperparameters": {"global_batch_size": BATCH},
        "purpose": "profiling",
        "profile": {"levels": LEVELS, "seconds_per_level": seconds, "max_seconds": 60 * seconds},
        "device": {
            "kind": "emulated",
            "name": "emulated-gpu",
            "model": dict(DEFAULT_DEVICE_MODEL),
            "links": DEFAULT_LINKS,
        },
        "places": places,
    }
    with LocalAgent() as agent:
        generation = agent.start_generation(source, assignment, max(LEVELS), seconds=300)
        generation.leader.wait_for_event("profile_done", 120 * seconds)
        events = generation.leader.of_kind("event")
    return [event for event in events if event["kind"] == "profile_level"]


def compare(levels: list[Message]) -> list[dict[str, Any]]:
    """Return each level's speed-up over one GPU, and its share of what computing alone would allow."""
    model = DeviceModel.from_message(DEFAULT_DEVICE_MODEL)
    alone = levels[0]["iterations_per_second"]
    return [
        {
            "gpus": level["gpus"],
            "speedup": level["iterations_per_second"] / alone,
            "of_computing_alone": level["iterations_per_second"]
            * model.compute_seconds(BATCH // level["gpus"]),
            "overrun": level["overrun"],
            "void": level["overrun"] > VOID_OVERRUN,
        }
        for level in levels
    ]


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--examples", nargs="+", default=["character_model", "recommender"])
    parser.add_argument("--seconds", type=float, default=4.0, help="measured for each level")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    print(f"emulated devices on {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    results: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name in chosen.examples:
        results[name] = {}
        for shape, places in PLACES.items():
            rows = compare(measure(EXAMPLES / f"{name}.py", places, chosen.seconds))
            results[name][shape] = rows
            for row in rows:
                print(
                    f"{name:18} {shape:7} {row['gpus']} GPUs: {row['speedup']:.2f} times one, "
                    f"{row['of_computing_alone']:.3f} of computing alone"
                    + (f" (void: overran by {row['overrun']:.0%})" if row["void"] else "")
                )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
