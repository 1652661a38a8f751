"""Training repeated as often as a measurement needs.

A job may have fewer iterations than a measurement takes. A schedule such as OneCycleLR raises if it is
stepped more often than the job has iterations, and a function may count its calls. Training therefore starts
again, with a new model and a new copy of the function, whenever the job would have ended.
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
from workers.runtime.iterating.iteration import Control, IterationResult, IterationRunner

_CONTAINERS = (dict, list, set, deque, Counter, OrderedDict, defaultdict)
#: A function's tensors up to this size are taken for counters and averages and copied; larger ones are data.
_COPIED_BYTES = 1 << 20


class Lives:
    """Training at one level, restarted after as many calls of `train()` as the job has iterations."""

    def __init__(self, begin: Callable[[], IterationRunner], length: int | None) -> None:
        """Begin the first life.

        Args:
            begin: builds a runner. All ranks of the level call it together.
            length: the job's iterations; None: unlimited.
        """
        self._begin = begin
        self._length = length
        self.runner = begin()
        #: Seconds spent on restarts.
        self.between_seconds = 0.0
        self._calls = self._iteration = 0

    def rehearse(self, *, workers: int | None = None) -> None:
        """Run `IterationRunner.rehearse`, in a new life if this one is over."""
        self.go_on_for(1)
        self.runner.rehearse(self._iteration, workers=workers)
        self._calls += 1

    def iterate(self, control: Control = Control.GO_ON) -> IterationResult:
        """Run the next iteration, of this life or of a new one."""
        self.go_on_for(1)
        result = self.runner.run(self._iteration, control)
        self._calls += 1
        self._iteration += 1
        return result

    def go_on_for(self, iterations: int) -> int:
        """Start a new life if fewer than `iterations` are left; return how many one life allows, at most
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
        # The old runner is in reference cycles and holds accelerator memory.
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
        """Close groups and remove hooks. All ranks of the level call this together."""
        self.runner.synchronisation.close()
        if self.runner.times is not None:
            self.runner.times.close()


def copies_of(function: TrainingFunction, dataset: Any) -> tuple[TrainingFunction, Any]:
    """Return copies of a function and data set, so that training on them does not change the originals'
    counters and lists. The data itself is shared."""
    other_dataset = _copy_of(dataset)
    other = copy.copy(function)
    same = {id(dataset): other_dataset, id(function): other}
    for name, value in vars(function).items():
        setattr(other, name, _own(value, same))
    return other, other_dataset


def _copy_of(dataset: Any) -> Any:
    try:
        return copy.copy(dataset)
    except Exception:  # noqa: BLE001 - the function's class may raise anything; use the original
        return dataset


def _own(value: Any, same: dict[int, Any]) -> Any:
    """Return a copy of counters, containers and their contents; other objects unchanged."""
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
