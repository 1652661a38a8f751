"""Search for the partition of a model's gradients: Cupcake's exact program beside the same in plain Python
and beside Algorithm 5.1.

    python -m benchmarks.gradients.fusion [--rounds 3] [--json OUT]

Times are processor time, the least of some rounds. The exact program's include building its tables and
choosing the partition with the fewest groups, which the plain one omits; both must find the same iteration
time, which is checked. The search stops after 5,000 partial partitions, and its best result by then is
printed. `--json` writes the figures.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from communication.cupcake.branch_and_bound import search
from communication.cupcake.exchange import Exchange, ExchangeSettings
from communication.cupcake.pareto_program import best_fusion
from communication.cupcake.plan import plan_fusion
from communication.cupcake.problem import FusionProblem
from communication.library.codec_names import LOSSY
from communication.library.codecs import gpu_codec
from communication.library.models import measured_model
from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.placement import PlacementShape

MODELS = ("VGG16", "GPT2", "BERT-base", "ResNet50", "ResNet101")
CODECS = ("random-k", "dgc")
PLACEMENT = PlacementShape(1, 8)
LINK = LinkProfile(LinkRate(150e-6, 3.125e9), LinkRate(150e-6, 2.2e9))
SETTINGS = ExchangeSettings(decode_per_payload=False)
MOST_VISITED = 5_000
Found = TypeVar("Found")


def least_seconds(work: Callable[[], Found], rounds: int) -> tuple[float, Found]:
    """Return the least processor time of some rounds, and the last result."""
    least = float("inf")
    for _round in range(rounds):
        began = time.process_time()
        found = work()
        least = min(least, time.process_time() - began)
    return least, found


def in_plain_python(problem: FusionProblem) -> float:
    """Return the smallest iteration time, by the same program with lists instead of arrays."""
    work, transfer = problem.work_table.tolist(), problem.transfer_table.tolist()
    frontiers: list[list[tuple[float, float]]] = [[(0.0, 0.0)]]
    for end in range(1, problem.tensors + 1):
        points = []
        for begin, frontier in enumerate(frontiers):
            for comp, comm in frontier:
                encoded = comp + work[begin][end]
                points.append((encoded, max(encoded, comm) + transfer[begin][end]))
        kept: list[tuple[float, float]] = []
        for point in sorted(points):
            if not kept or point[1] < kept[-1][1]:
                kept.append(point)
        frontiers.append(kept)
    return problem.other_seconds + frontiers[-1][-1][1]


def measured(name: str, codec: str, rounds: int) -> dict[str, object]:
    """Return one model under one codec: seconds of each way, and its result over the optimum."""
    model = measured_model(name, 0.05)

    def problem() -> FusionProblem:
        return Exchange(model, PLACEMENT, LINK, gpu_codec(codec), SETTINGS).problem()

    exact, answer = least_seconds(lambda: best_fusion(problem()), rounds)
    plain, same = least_seconds(lambda: in_plain_python(problem()), 1)
    if abs(same - answer.iteration_seconds) > 1e-9:
        raise SystemExit(
            f"{name}, {codec}: {same} in plain Python, {answer.iteration_seconds} by the program"
        )
    affine = problem().with_affine_costs()
    searched, found = least_seconds(lambda: search(affine, most_visited=MOST_VISITED), 1)
    return {
        "model": name,
        "codec": codec,
        "tensors": len(model),
        "exact_seconds": exact,
        "plain_over_exact": plain / exact,
        "search_over_exact": searched / exact,
        "search_ended": found.complete,
        "search_over_optimum": found.iteration_seconds / best_fusion(affine).iteration_seconds - 1.0,
        "points": answer.points,
        "groups": len(answer.boundaries),
    }


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    rows = []
    for name in MODELS:
        for codec in CODECS:
            row = measured(name, codec, chosen.rounds)
            rows.append(row)
            ended = "ended" if row["search_ended"] else "given up"
            print(
                f"{name:10} {codec:9} {row['tensors']:4} tensors: exact {row['exact_seconds']:.3f} s; "
                f"plain Python {row['plain_over_exact']:.1f} times that; Algorithm 5.1 "
                f"{row['search_over_exact']:.1f} times, {ended}, "
                f"{row['search_over_optimum']:+.2%} over the optimum"
            )
    codecs = [gpu_codec(codec) for codec in LOSSY]
    seconds, plan = least_seconds(
        lambda: plan_fusion(measured_model("ResNet101", 0.05), PLACEMENT, LINK, codecs), chosen.rounds
    )
    print(
        f"a whole plan for ResNet101 with {len(codecs)} codecs and none: {seconds:.2f} s, takes {plan.codec}"
    )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({"rows": rows, "plan_seconds": seconds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
