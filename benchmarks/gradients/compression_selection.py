"""Espresso's selection: how long it takes against the published times, and how far it is from the optimum.

    python -m benchmarks.gradients.compression_selection [--json OUT] [--exact] [--instances 12] [--seed 0]

First ResNet101's 314 tensors on 64 GPUs: one pass of the published algorithms with dominated options dropped,
and the whole selection with its starts and passes, against the 0.18 s that were published for the authors'
own tree; with ``--exact`` also a pass over all 165 options. Also options that are left of a size.

Then small instances of two to four tensors, whose optimum is found by trying every strategy: the share of
instances in which the published pass and the whole selection find it, and by how much they miss it at worst.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from communication.espresso.costs import CostModel
from communication.espresso.question import Question, question_of
from communication.espresso.selection import select, select_as_published
from communication.library.codecs import cpu_codec, gpu_codec
from communication.library.models import measured_model
from communication.profiles.codec import Device
from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape

PUBLISHED_SECONDS = 0.179 + 0.030
#: Limit on strategies that are tried one by one; larger instances are drawn again.
MOST_STRATEGIES = 150_000


def resnet101() -> Question:
    """Return ResNet101 on 64 GPUs as published, with all options on one device."""
    latency = 150e-6
    links = LinkProfile(LinkRate(latency, 25e9 / 8), LinkRate(latency, 2.5e9))
    codecs = {Device.GPU: gpu_codec("dgc"), Device.CPU: cpu_codec("dgc")}
    model = measured_model("ResNet101", 0.07)
    return question_of(model, CostModel(PlacementShape(8, 8), links, codecs))


def small(rng: np.random.Generator, tensors: int) -> Question:
    """Return random sizes, gaps and links. Four tensors are on GPUs alone: with processors there are too many
    strategies to try."""
    codec = str(rng.choice(["random-k", "dgc", "ef-signsgd", "onebit"]))
    links = LinkProfile(
        LinkRate(10 ** rng.uniform(-5, -3.5), 10 ** rng.uniform(8.5, 10)),
        LinkRate(10 ** rng.uniform(-5, -3.5), 10 ** rng.uniform(9, 10.7)),
    )
    model = ModelProfile.unnamed(
        "small",
        (10 ** rng.uniform(3, 7.5, tensors)).astype(np.int64),
        10 ** rng.uniform(-4.5, -1.5, tensors),
        other_seconds=0.01,
    )
    codecs = {Device.GPU: gpu_codec(codec)}
    if tensors < 4:
        codecs[Device.CPU] = cpu_codec(codec)
    return question_of(model, CostModel(PlacementShape(4, 4), links, codecs))


def optimum(question: Question) -> float | None:
    """Return the shortest iteration over strategies of undominated options; None if there are too many."""
    by_size = question.candidates(question.columns_on(*Device))
    each = [by_size[row] for row in question.table.size_of]
    if np.prod([float(len(columns)) for columns in each]) > MOST_STRATEGIES:
        return None
    return min(question.engine.seconds(np.array(strategy)) for strategy in product(*each))


def seconds_of(function: Callable[[], Any]) -> float:
    """Return the processor time of a call."""
    began = time.process_time()
    function()
    return time.process_time() - began


def times(exact: bool) -> dict[str, float]:
    """Return the times of ResNet101, against the published time."""
    question = resnet101()
    select(question)
    found = {
        "one pass over published": seconds_of(lambda: select_as_published(question)) / PUBLISHED_SECONDS,
        "whole selection over published": seconds_of(lambda: select(question)) / PUBLISHED_SECONDS,
        "options left of a size": float(max(map(len, question.candidates(question.columns_on(*Device))))),
    }
    if exact:
        every = replace(question, exact=True)
        found["one pass over all options over published"] = (
            seconds_of(lambda: select_as_published(every)) / PUBLISHED_SECONDS
        )
    return found


def gaps(instances: int, seed: int) -> dict[str, dict[str, float]]:
    """Return, by tensors, instances, shares in which the optimum is found, and the worst ratio to it."""
    rng = np.random.default_rng(seed)
    found = {}
    for tensors in (2, 3, 4):
        ratios: list[tuple[float, float]] = []
        while len(ratios) < instances:
            question = small(rng, tensors)
            if (best := optimum(question)) is not None:
                published, whole = select_as_published(question).seconds, select(question).seconds
                ratios.append((published / best, whole / best))
        of_pass, of_whole = (np.array(each) for each in zip(*ratios, strict=True))
        found[f"{tensors} tensors"] = {
            "one pass optimal": float((of_pass <= 1.0 + 1e-6).mean()),
            "one pass at worst": float(of_pass.max()),
            "selection optimal": float((of_whole <= 1.0 + 1e-6).mean()),
            "selection at worst": float(of_whole.max()),
        }
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--exact", action="store_true", help="also a pass over dominated options")
    parser.add_argument("--instances", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    figures: dict[str, Any] = {"times": times(options.exact)}
    for name, value in figures["times"].items():
        print(f"{name:42s} {value:8.3f}", flush=True)
    figures["gaps"] = gaps(options.instances, options.seed)
    for name, each in figures["gaps"].items():
        print(name, ", ".join(f"{what} {value:.4f}" for what, value in each.items()))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
