"""The stored part of a run: iteration times of each system, and the cost and choices of the selection."""

from __future__ import annotations

from math import prod
from time import perf_counter

import numpy as np

from communication.espresso.baselines import BASELINES, uncompressed
from communication.espresso.bounds import free_compression_seconds, least_iteration_seconds
from communication.espresso.gpu_decision import decide
from communication.espresso.offloading import offload, offload_groups
from communication.espresso.options import devices_of
from communication.espresso.question import Question
from communication.espresso.selection import Selection, select, select_as_published
from communication.espresso.variants import VARIANTS
from communication.profiles.codec import Device
from research.store import RunResult

ESPRESSO, ESPRESSO_PAPER, UPPER_BOUND, LEAST = "Espresso", "Espresso, one pass", "Upper Bound", "least"


def result_of(question: Question, variants: bool) -> RunResult:
    """Return ``summary``: iteration seconds by system, and ``facts``: cost and choices of the selection."""
    engine = question.engine
    seconds = {each.name: engine.seconds(each.choose(question)) for each in BASELINES}
    selection = select(question)
    seconds[ESPRESSO] = selection.seconds
    seconds[ESPRESSO_PAPER] = select_as_published(question).seconds
    seconds[UPPER_BOUND] = free_compression_seconds(question, selection)
    seconds[LEAST] = least_iteration_seconds(question)
    if variants:
        seconds |= {each.name: each.select(question).seconds for each in VARIANTS}
    facts = _facts(question) | _chosen(question, selection)
    return RunResult(summary=seconds, facts=facts, series={})


def _facts(question: Question) -> dict[str, float | int]:
    """Return seconds, evaluations and candidates of the published algorithms, which are compiled by now."""
    engine, start = question.engine, uncompressed(question)
    candidates = question.candidates(question.columns_on(Device.GPU, uncompressed=False))
    began, before = perf_counter(), engine.evaluations
    strategy, _ = decide(question.choices, start, candidates)
    decided, evaluations = perf_counter(), engine.evaluations - before
    groups = offload_groups(question.choices, strategy)
    offload(question.choices, strategy)
    return {
        "tensors": len(question.model),
        "candidates": max(map(len, candidates)),
        "decision_seconds": decided - began,
        "decision_evaluations": evaluations,
        "offload_seconds": perf_counter() - decided,
        "offload_candidates": sum(map(len, groups)),
        "offload_vectors": prod(len(group) + 1 for group in groups),
        "before_last_bubble": engine.last_bubble(start),
    }


def _chosen(question: Question, selection: Selection) -> dict[str, float | int]:
    used = [devices_of(question.options[column]) for column in selection.strategy]
    sizes = np.array(question.model.sizes_bytes)
    compressed = np.array([bool(devices) for devices in used])
    return {
        "untouched": sum(not devices for devices in used),
        "on_gpus": sum(Device.GPU in devices for devices in used),
        "on_processors": sum(devices == frozenset((Device.CPU,)) for devices in used),
        "compressed_share_of_bytes": float(sizes[compressed].sum() / sizes.sum()),
        "evaluations": selection.evaluations,
    }
