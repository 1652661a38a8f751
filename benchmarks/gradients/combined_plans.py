"""The combined plan beside the best plan of a single system: predicted, over models, links and placements.

    python -m benchmarks.gradients.combined_plans [--whole] [--json OUT]

A single system is Zen for sparse gradients with all-reduces for the rest, or Cupcake, or Espresso for all
gradients, or no plan at all. The combined plan may use each where it is best: Zen for sparse gradients beside
Cupcake's groups or Espresso's options, and Espresso's option for each of Cupcake's groups. Printed are, for
each question, the best single system and the speedup over it; then the number of gains, and the largest.
Gains by sparse gradients are separate from those by groups with options.

The models are seven measured ones (Espresso, appendix A) and the four of Zen's Table 3.1, whose dense part is
assumed to be eight equal tensors; 10, 25 and 100 Gbps between servers, PCIe and NVLink within; with and
without lossy codecs. The short set has three models on one kind of link; ``--whole`` has all (half an hour).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from communication.combined.choosing import choose
from communication.combined.question import PlanQuestion
from communication.library.codecs import cpu_codec, gpu_codec
from communication.library.models import MODELS, measured_model
from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape
from communication.zen.densification import Densification
from communication.zen.profile import SparsityProfile
from research.zen import model as published

GIGABITS_BETWEEN = (10, 25, 100)
BYTES_WITHIN = {"PCIe": 12e9, "NVLink": 50e9}
SHORT_LINKS = ((25,), ("PCIe",))
PLACEMENTS = (PlacementShape(4, 1), PlacementShape(2, 4), PlacementShape(4, 4), PlacementShape(8, 8))
CODECS = (
    *(gpu_codec(name) for name in ("fp16", "random-k", "dgc", "ef-signsgd", "onebit")),
    cpu_codec("dgc"),
    cpu_codec("ef-signsgd"),
)
SHORT_MODELS = ("LSTM", "VGG16", "DeepFM, sparse")
#: An iteration's forward pass takes half as long as its backward pass.
FORWARD = 0.5
#: Smaller speedups are no gain.
NOTHING = 1.0005


@dataclass(frozen=True)
class Trained:
    """A model and which of its gradients are sparse."""

    name: str
    model: ModelProfile
    sparse: tuple[SparsityProfile, ...] = ()


def trained(name: str) -> Trained:
    """Return a model by name; ``NAME, sparse`` is one of Zen's."""
    if name.endswith(", sparse"):
        return _with_embedding(published.MODELS[name.removesuffix(", sparse")])
    model = measured_model(name)
    return Trained(name, replace(model, other_seconds=FORWARD * model.backward_seconds))


def _with_embedding(table: published.TrainedModel) -> Trained:
    """Return an embedding whose gradient comes last, after eight dense tensors of equal size."""
    computing = published.compute_seconds(table.name, published.V100)
    backward = computing / (1.0 + FORWARD)
    sizes = np.array([int(table.mlp / 8)] * 8 + [int(table.embedding)])
    model = ModelProfile.unnamed(table.name, sizes, np.full(9, backward / 9), FORWARD * backward)
    law = Densification(table.density, published.fitted_beta(table.name))
    name = model.tensor_names[-1]
    return Trained(
        f"{table.name}, sparse", model, (SparsityProfile(name, int(sizes[-1]), 1, law, published.SKEW),)
    )


def questions(one: Trained, *, whole: bool) -> Iterator[tuple[dict[str, Any], PlanQuestion]]:
    """Return all questions of a model, each with its setting."""
    between, inside = (GIGABITS_BETWEEN, tuple(BYTES_WITHIN)) if whole else SHORT_LINKS
    for gigabits, within, placement, lossy in product(between, inside, PLACEMENTS, (False, True)):
        links = LinkProfile(LinkRate(50e-6, gigabits * 1e9 / 8), LinkRate(10e-6, BYTES_WITHIN[within]))
        told = {
            "model": one.name,
            "gigabits": gigabits,
            "within": within,
            "placement": f"{placement.servers}x{placement.gpus_per_server}",
            "lossy": lossy,
        }
        yield told, PlanQuestion("job", one.model, placement, links, one.sparse, CODECS, lossy)


def compared(asked: PlanQuestion) -> dict[str, Any]:
    """Return seconds of an iteration by single systems and by mixed plans, and the chosen planner."""
    together = choose(asked)
    every = (together.chosen, *together.beaten)
    singles = {each.planner: each.predicted.iteration_seconds for each in every if each.planner != "combined"}
    if asked.sparse:
        # With sparse gradients Cupcake's and Espresso's plans are combined with Zen: no single system.
        alone = choose(replace(asked, sparse=(), planners=("dense", "cupcake", "espresso")))
        singles = {name: singles[name] for name in ("dense", "zen") if name in singles}
        for each in (alone.chosen, *alone.beaten):
            known = singles.get(each.planner, np.inf)
            singles[each.planner] = min(known, each.predicted.iteration_seconds)
    best = min(singles, key=lambda name: singles[name])
    return {
        "single": best,
        "single_seconds": singles[best],
        "chosen": together.chosen.planner,
        "chosen_seconds": together.chosen.predicted.iteration_seconds,
        "dense_seconds": singles["dense"],
        "gain": singles[best] / together.chosen.predicted.iteration_seconds,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarise rows: their number, the number of gains, their median and the largest."""
    gains = np.array([row["gain"] for row in rows])
    won = gains[gains > NOTHING]
    return {
        "questions": len(rows),
        "won": len(won),
        "median where won": float(np.median(won)) if len(won) else 1.0,
        "most": float(gains.max()),
        "least": float(gains.min()),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--whole", action="store_true", help="all models")
    parser.add_argument("--json", help="write the figures here")
    options = parser.parse_args(arguments)
    sparse = tuple(f"{name}, sparse" for name in published.MODELS)
    rows: list[dict[str, Any]] = []
    for name in (*MODELS, *sparse) if options.whole else SHORT_MODELS:
        for told, asked in questions(trained(name), whole=options.whole):
            rows.append(told | compared(asked))
            row = rows[-1]
            print(
                f"{name:16s} {row['gigabits']:3d} Gbps {row['within']:6s} {row['placement']:4s} "
                f"{'lossy' if row['lossy'] else 'exact':5s}  best single {row['single']:8s} "
                f"{row['single_seconds'] * 1e3:8.1f} ms  chosen {row['chosen']:8s} "
                f"{row['chosen_seconds'] * 1e3:8.1f} ms  {row['gain']:.3f}",
                flush=True,
            )
    found: dict[str, Any] = {"rows": rows, "summaries": {}}
    for name in dict.fromkeys(row["model"] for row in rows):
        for lossy in (False, True):
            mine = [row for row in rows if row["model"] == name and row["lossy"] == lossy]
            found["summaries"][f"{name}, {'lossy' if lossy else 'exact'}"] = summary(mine)
    print()
    for name, told in found["summaries"].items():
        print(
            f"{name:24s} won in {told['won']:3d} of {told['questions']:3d}, median there "
            f"{told['median where won']:.3f}, most {told['most']:.3f}, least {told['least']:.3f}"
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
