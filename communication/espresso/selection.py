"""Espresso's selection: the published algorithms, several starts, and improvement passes (4.4).

One greedy pass can end above a simple rule if two huge tensors help only together. So passes start from no
compression, from the isolated-times rule, and from a baseline that is still better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

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
    """A strategy, and F(S). ``evaluations``: timelines computed."""

    strategy: Integers
    seconds: float
    evaluations: int


def select_as_published(question: Question) -> Selection:
    """Run one pass of Algorithm 4.1 from no compression, then Algorithm 4.2."""
    before = question.engine.evaluations
    candidates = question.candidates(question.columns_on(Device.GPU, uncompressed=False))
    strategy, _ = decide(question.choices, _start(question), candidates)
    strategy, seconds = offload(question.choices, strategy)
    return Selection(strategy, seconds, question.engine.evaluations - before)


def select(question: Question) -> Selection:
    """Return the best strategy found by passes from several starts; never worse than a baseline."""
    engine = question.engine
    before = engine.evaluations
    starts = [*_starts(question), *_by_scheme(question)]
    found = [_decided_and_offloaded(question, start) for start in starts]
    strategy, seconds = _over_all_devices(question, min(found, key=itemgetter(1))[0])
    for baseline in BASELINES:
        if baseline.available(question):
            start = baseline.choose(question)
            if engine.seconds(start) < seconds - EQUAL_SECONDS:
                strategy, seconds = _over_all_devices(question, _decided_and_offloaded(question, start)[0])
    return Selection(strategy, seconds, engine.evaluations - before)


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


def _starts(question: Question) -> list[Integers]:
    """Return the starts: no compression, the isolated-times rule, and a pass from all compressed."""
    every = np.arange(len(question.options))
    starts = [_start(question), fastest_by_itself(question, every)]
    compressing = np.flatnonzero(question.compressions > 0)
    if compressing.size:
        all_compressed = fastest_by_itself(question, compressing)
        starts.append(passes(question.choices, all_compressed, question.candidates(compressing), most=1)[0])
    return starts


def _by_scheme(question: Question) -> Iterator[Integers]:
    """Yield starts in which each tensor uses one scheme or no compression. With free choice the first
    tensors decided can leave too little to later ones."""
    for make in SCHEMES.values():
        options = (FP32, make(Device.GPU))
        if all(option in question.table.columns for option in options):
            columns = np.array([question.table.columns[option] for option in options])
            start = question.everywhere(FP32)
            yield passes(question.choices, start, question.candidates(columns))[0]


def _start(question: Question) -> Integers:
    """Return no compression: hierarchical if that is an option, else the fastest."""
    if FP32 in question.table.columns:
        return question.everywhere(FP32)
    columns = np.flatnonzero(question.compressions == question.compressions.min())
    return fastest_by_itself(question, columns)
