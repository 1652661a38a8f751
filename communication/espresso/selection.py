"""Espresso's selection: the published algorithms, several starts, and improvement passes (4.4).

One greedy pass can end above a simple rule if two huge tensors help only together. So passes start from no
compression, from the isolated-times rule, and from a baseline that is still better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from communication.espresso.baselines import BASELINES, FP32, SCHEMES, fastest_by_itself
from communication.espresso.gpu_decision import decide, passes
from communication.espresso.offloading import offload, offload_groups, swap
from communication.espresso.question import Question
from communication.espresso.timeline import EQUAL_SECONDS
from communication.profiles.arrays import Integers
from communication.profiles.codec import Device


@dataclass(frozen=True, eq=False)
class Selection:
    """A strategy, F(S), and how it was found. ``evaluations``: timelines computed."""

    strategy: Integers
    seconds: float
    found_by: str
    evaluations: int


def select_as_published(question: Question) -> Selection:
    """Run one pass of Algorithm 4.1 from no compression, then Algorithm 4.2."""
    before = question.engine.evaluations
    candidates = question.candidates(question.columns_on(Device.GPU, uncompressed=False))
    strategy, _ = decide(question.choices, _start(question), candidates)
    strategy, seconds = offload(question.choices, strategy)
    return Selection(strategy, seconds, "one pass", question.engine.evaluations - before)


def select(question: Question) -> Selection:
    """Return the best strategy found by passes from several starts; never worse than a baseline."""
    engine = question.engine
    before = engine.evaluations
    starts = _starts(question) | _by_scheme(question)
    found = {name: _decided_and_offloaded(question, start) for name, start in starts.items()}
    by = min(found, key=lambda name: found[name][1])
    strategy, seconds = _over_all_devices(question, found[by][0])
    for baseline in BASELINES:
        if baseline.available(question):
            start = baseline.choose(question)
            if engine.seconds(start) < seconds - EQUAL_SECONDS:
                strategy, seconds = _over_all_devices(question, _decided_and_offloaded(question, start)[0])
                by = baseline.name
    return Selection(strategy, seconds, by, engine.evaluations - before)


def _decided_and_offloaded(question: Question, start: Integers) -> tuple[Integers, float]:
    """Run passes on the GPU, then offloading with its swaps."""
    strategy, seconds = passes(question.choices, start, question.candidates(question.columns_on(Device.GPU)))
    groups = offload_groups(question.choices, strategy)
    if not groups:
        return strategy, seconds
    return swap(question.choices, offload(question.choices, strategy)[0], groups)


def _over_all_devices(question: Question, strategy: Integers) -> tuple[Integers, float]:
    """Run passes in which each tensor may also choose its device, without removal before bubbles: with
    several resources a bubble proves nothing."""
    every = question.candidates(question.columns_on(*Device))
    return passes(question.choices, strategy, every, removes=False)


def _starts(question: Question) -> dict[str, Integers]:
    """Return the starts: no compression, the isolated-times rule, and a pass from all compressed."""
    every = np.arange(len(question.options))
    starts = {"nothing compressed": _start(question), "fastest by itself": fastest_by_itself(question, every)}
    compressing = np.flatnonzero(question.compressions > 0)
    if compressing.size:
        all_compressed = fastest_by_itself(question, compressing)
        starts["all compressed"] = passes(
            question.choices, all_compressed, question.candidates(compressing), most=1
        )[0]
    return starts


def _by_scheme(question: Question) -> dict[str, Integers]:
    """Return starts in which each tensor uses one scheme or no compression. With free choice the first
    tensors decided can leave too little to later ones."""
    found = {}
    for name, make in SCHEMES.items():
        options = (FP32, make(Device.GPU))
        if all(option in question.table.columns for option in options):
            columns = np.array([question.table.columns[option] for option in options])
            start = question.everywhere(FP32)
            found[name] = passes(question.choices, start, question.candidates(columns))[0]
    return found


def _start(question: Question) -> Integers:
    """Return no compression: hierarchical if that is an option, else the fastest."""
    if FP32 in question.table.columns:
        return question.everywhere(FP32)
    columns = np.flatnonzero(question.compressions == question.compressions.min())
    return fastest_by_itself(question, columns)
