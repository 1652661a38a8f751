"""Espresso's selection: the published algorithms, several starts, and passes that improve on them (4.4).

One greedy pass can end above a simple rule where two huge tensors help only together. So passes start from
nothing compressed and from the rule by isolated times, and from a baseline that is still better.
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
    """A strategy, F(S), and how it was found. ``evaluations``: timelines that were asked for."""

    strategy: Integers
    seconds: float
    found_by: str
    evaluations: int


def select_as_published(question: Question) -> Selection:
    """One pass of Algorithm 4.1 from nothing compressed, and then Algorithm 4.2."""
    before = question.engine.evaluations
    candidates = question.candidates(question.columns_on(Device.GPU, uncompressed=False))
    strategy, _ = decide(question.choices, _start(question), candidates)
    strategy, seconds = offload(question.choices, strategy)
    return Selection(strategy, seconds, "one pass", question.engine.evaluations - before)


def select(question: Question) -> Selection:
    """The best strategy that passes from several starts find; never worse than a baseline."""
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
    """Passes on the GPU, then offloading with its swaps."""
    strategy, seconds = passes(question.choices, start, question.candidates(question.columns_on(Device.GPU)))
    groups = offload_groups(question.choices, strategy)
    if not groups:
        return strategy, seconds
    return swap(question.choices, offload(question.choices, strategy)[0], groups)


def _over_all_devices(question: Question, strategy: Integers) -> tuple[Integers, float]:
    """Passes in which each tensor may choose its device, too, and none is left out for a bubble: on several
    resources bubbles are no proof."""
    every = question.candidates(question.columns_on(*Device))
    return passes(question.choices, strategy, every, removes=False)


def _starts(question: Question) -> dict[str, Integers]:
    """Nothing compressed, the rule by isolated times, and what a pass makes of it with all compressed."""
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
    """What passes choose where each tensor is compressed by one scheme, or not at all. The first tensors that
    are decided otherwise take what leaves too little to those behind them."""
    found = {}
    for name, make in SCHEMES.items():
        options = (FP32, make(Device.GPU))
        if all(option in question.table.columns for option in options):
            columns = np.array([question.table.columns[option] for option in options])
            start = question.everywhere(FP32)
            found[name] = passes(question.choices, start, question.candidates(columns))[0]
    return found


def _start(question: Question) -> Integers:
    """Nothing compressed: through the hierarchy where that is an option, else as it takes least."""
    if FP32 in question.table.columns:
        return question.everywhere(FP32)
    columns = np.flatnonzero(question.compressions == question.compressions.min())
    return fastest_by_itself(question, columns)
