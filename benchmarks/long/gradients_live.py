"""Training with plans of its gradients beside training without, predicted and measured, on emulated links on
which training without scales as published.

    python -m benchmarks.long.gradients_live [--settings recommender VGG16 ResNet50] [--ranks 4 8] [--rounds
    3]
                                        [--seconds 4] [--slower 1] [--plans dense zen] [--scaling 0.46]
                                        [--json OUT]

Ranks are real worker processes with gloo; the links, the hooks, the measuring and the planners are those of a
live platform. First, one measurement without a plan gives the input of plans: gradients, codecs, links. Then
all planners' plans and training without are measured alternately; medians of rounds are compared. Rounds that
overran the pace by more than 5 % are void, printed as such, and not counted. If the setting's function also
has gradients of whole numbers, lossless plans of these run on the same links and are compared bit by bit with
training without a plan.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gradients.exactness import COUNTS, ITERATIONS, sums_are_equal
from benchmarks.gradients.measuring import Measured, Plan, local_agent, measure, plans
from benchmarks.gradients.scene import DIVISOR, SETTINGS, Scene
from communication.combined.question import PLANNERS
from communication.profiles.placement import PlacementShape

#: Servers of the ranks; eight ranks are two on each.
SERVERS = 4


def compare(scene: Scene, rounds: int, seconds: float, planners: Collection[str]) -> dict[str, Any]:
    """Measure a scene's plans alternately. ``planners``: the planners to include."""
    with local_agent() as agent:
        first = measure(agent, scene, None, seconds)
        made = {name: plan for name, plan in plans(scene, first.profile).items() if name in planners}
        taken: dict[str, list[Measured]] = {name: [] for name in made}
        for _ in range(rounds):
            for name, plan in made.items():
                found = measure(agent, scene, None if name == "dense" else plan, seconds)
                taken[name].append(found)
                print(
                    f"    {name}: {found.iteration_seconds:.4f} s, overran by {found.overrun:.1%}", flush=True
                )
    return _row(scene, first, made, taken)


def compared_to_the_bit(scene: Scene) -> dict[str, bool]:
    """Return, by planner, whether its plan gives the sums of all-reduces; empty if gradients do not count."""
    if scene.setting.entry != COUNTS:
        return {}
    with local_agent() as agent:
        return sums_are_equal(agent, scene)


def _row(
    scene: Scene, first: Measured, made: dict[str, Plan], taken: dict[str, list[Measured]]
) -> dict[str, Any]:
    found = {}
    for name, plan in made.items():
        valid = [each.iteration_seconds for each in taken[name] if not each.void]
        found[name] = {
            "codec": plan.candidate.codec,
            "predicted": plan.predicted_seconds,
            "measured": median(valid) if valid else None,
            "all": [each.iteration_seconds for each in taken[name]],
            "overruns": [each.overrun for each in taken[name]],
        }
    return {
        "setting": scene.setting.name,
        "servers": scene.placement.servers,
        "gpus_per_server": scene.placement.gpus_per_server,
        "compute_seconds": scene.compute_seconds,
        "published_scaling": scene.setting.scaling,
        "network_bytes_per_second": scene.network / scene.slower,
        "links": first.profile["links"],
        "plans": found,
    }


def told(row: dict[str, Any]) -> list[str]:
    """Return a row's lines for readers."""
    dense = row["plans"]["dense"]["measured"]
    lines = [
        f"{row['setting']}, {row['servers']} servers with {row['gpus_per_server']}: "
        + (
            "without a plan always void"
            if dense is None
            else f"without a plan {row['compute_seconds'] / dense:.3f} of computing alone "
            f"(aimed at {row['published_scaling']:.3f})"
        )
    ]
    for name, each in row["plans"].items():
        voided = sum(overrun > 0.05 for overrun in each["overruns"])
        line = f"  {name:9} {each['codec']:10} predicted {each['predicted']:.4f} s"
        if each["measured"] is not None:
            line += f", measured {each['measured']:.4f} s ({each['predicted'] / each['measured'] - 1:+.1%})"
            if dense is not None:
                line += f", {dense / each['measured']:.2f} times dense"
        overruns = ", ".join(f"{overrun:.1%}" for overrun in each["overruns"])
        lines.append(f"{line}; overran by {overruns}" + (f": {voided} VOID" if voided else ""))
    return lines


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--settings", nargs="+", choices=list(SETTINGS), default=["recommender", "VGG16", "ResNet50"]
    )
    parser.add_argument("--ranks", nargs="+", type=int, choices=[4, 8], default=[4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--slower", type=float, default=1.0, help="everything lasts so many times as long")
    parser.add_argument("--plans", nargs="+", choices=PLANNERS, default=PLANNERS, help="that are measured")
    parser.add_argument("--scaling", type=float, help="without a plan, other than as published")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    print(
        f"emulated devices and links on {platform.machine()}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}; sizes divided by {DIVISOR}, times times {chosen.slower:g}"
    )
    rows = []
    for name in chosen.settings:
        for ranks in chosen.ranks:
            setting = SETTINGS[name]
            if chosen.scaling is not None:
                setting = replace(setting, scaling=chosen.scaling)
            scene = Scene(setting, PlacementShape(SERVERS, ranks // SERVERS), chosen.slower)
            rows.append(compare(scene, chosen.rounds, chosen.seconds, {"dense", *chosen.plans}))
            print("\n".join(told(rows[-1])), flush=True)
            rows[-1]["sums_are_equal"] = compared_to_the_bit(scene)
            for planner, equal in rows[-1]["sums_are_equal"].items():
                word = "the bits" if equal else "NOT THE BITS"
                print(f"  {planner:9} {word} of all-reduces, {ITERATIONS} steps in whole numbers", flush=True)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
