"""A job's training as often as a measurement needs it.

A job may have fewer iterations than a measurement takes. A schedule such as OneCycleLR raises when it is
stepped more often than its job has iterations, and a function may count its calls. So training begins anew,
with another model and another copy of the function, wherever the job would have ended.
"""

from __future__ import annotations

import copy
import gc
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import MethodType
from typing import Any

import numpy as np
from torch import Tensor

from punctual.function import TrainingFunction
from workers.runtime.iteration import Control, IterationResult, IterationRunner

_CONTAINERS = (dict, list, set, deque, Counter, OrderedDict, defaultdict)
#: A function's tensors up to this size are counters and averages, and copied. Larger ones are data.
_COPIED_BYTES = 1 << 20


class Lives:
    """Training at one level, begun anew after as many calls of `train()` as the job has iterations."""

    def __init__(self, begin: Callable[[], IterationRunner], length: int | None) -> None:
        """Begin the first life.

        Args:
            begin: makes what trains. All ranks of the level call it together.
            length: the job's iterations; None: without end.
        """
        self._begin = begin
        self._length = length
        self.runner = begin()
        #: Seconds that beginning anew took.
        self.between_seconds = 0.0
        self._calls = self._iteration = 0

    def rehearse(self, *, workers: int | None = None) -> None:
        """An iteration on this rank alone, as `IterationRunner.rehearse` has it."""
        self.go_on_for(1)
        self.runner.rehearse(self._iteration, workers=workers)
        self._calls += 1

    def iterate(self, control: Control = Control.GO_ON) -> IterationResult:
        """The next iteration, of this life or of a new one."""
        self.go_on_for(1)
        result = self.runner.run(self._iteration, control)
        self._calls += 1
        self._iteration += 1
        return result

    def go_on_for(self, iterations: int) -> int:
        """Begin anew where fewer iterations are left; returns how many follow in one life, at most
        `iterations`."""
        if self._length is None:
            return iterations
        wanted = min(iterations, self._length)
        if self._calls + wanted > self._length:
            self._begin_anew()
        return wanted

    def _begin_anew(self) -> None:
        begun = time.monotonic()
        times = self.runner.times
        watching = times is not None and times.watching
        rows, watching_rows = self.runner.rows.take(), self.runner.rows.watching
        self.close()
        # What trained before is in cycles, and has the accelerator's memory.
        del self.runner
        gc.collect()
        self.runner = self._begin()
        if times is not None and self.runner.times is not None:
            self.runner.times.iterations, self.runner.times.watching = times.iterations, watching
        self.runner.rows.continue_from(rows, watching=watching_rows)
        self._calls = self._iteration = 0
        seconds = time.monotonic() - begun
        self.between_seconds += seconds
        if self.runner.pace is not None:
            self.runner.pace.passes(seconds)

    def close(self) -> None:
        """Take groups and hooks down. All ranks of the level call it together."""
        self.runner.synchronisation.close()
        if self.runner.times is not None:
            self.runner.times.close()


def copies_of(function: TrainingFunction, dataset: Any) -> tuple[TrainingFunction, Any]:
    """Another function and data set as these are now: what training changes of the copies, counters and lists
    above all, these keep. They share the data itself."""
    other_dataset = _copy_of(dataset)
    other = copy.copy(function)
    same = {id(dataset): other_dataset, id(function): other}
    for name, value in vars(function).items():
        setattr(other, name, _own(value, same))
    return other, other_dataset


def _copy_of(dataset: Any) -> Any:
    try:
        return copy.copy(dataset)
    except Exception:  # noqa: BLE001 - whatever the person's class raises, it is used as it is
        return dataset


def _own(value: Any, same: dict[int, Any]) -> Any:
    """A copy of counters, containers and their contents; other objects as they are."""
    if id(value) in same:
        return same[id(value)]
    if isinstance(value, Tensor | np.ndarray):
        return copy.deepcopy(value) if value.nbytes <= _COPIED_BYTES and _is_leaf(value) else value
    if isinstance(value, MethodType) and id(value.__self__) in same:
        return MethodType(value.__func__, same[id(value.__self__)])
    if type(value) not in _CONTAINERS:
        return value
    same[id(value)] = found = copy.copy(value)
    if isinstance(found, dict):
        for key, each in found.items():
            found[key] = _own(each, same)
    elif isinstance(found, list | deque):
        for place, each in enumerate(found):
            found[place] = _own(each, same)
    return found


def _is_leaf(value: Any) -> bool:
    return not isinstance(value, Tensor) or value.is_leaf
