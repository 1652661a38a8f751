"""The timeline of an iteration under a strategy, and its end F(S) (Espresso 4.3).

A strategy is an array with the column of each tensor's option.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from communication.espresso import timeline_kernel as kernel
from communication.espresso.chains import Chains, OptionTable
from communication.espresso.operations import Resource
from communication.profiles.arrays import Floats, Integers
from communication.profiles.model import ModelProfile

EQUAL_SECONDS = kernel.EQUAL_SECONDS


@dataclass(frozen=True, slots=True)
class Span:
    """One operation on the timeline. ``number``: its place in its tensor's chain; None for the tensor's
    backward operation."""

    resource: Resource
    tensor: int
    number: int | None
    start: float
    end: float


class TimelineEngine:
    """Serves chains of operations on GPU, processors and links, in order of ready time, one at a time.

    Not thread-safe: every run reuses its arrays.

    Args:
        chains: of each option for each size. size_of: the row of each tensor's size.
        gap_seconds: backward time of each tensor.
        other_seconds: time of an iteration outside the timeline.
        cpu_servers: operations that the processors serve concurrently.
    """

    def __init__(
        self,
        chains: Chains,
        size_of: Integers,
        gap_seconds: Floats,
        other_seconds: float = 0.0,
        cpu_servers: int = 1,
    ) -> None:
        self.chains = chains
        self.other_seconds = other_seconds
        self.tables = kernel.Tables(
            np.ascontiguousarray(chains.lengths),
            np.ascontiguousarray(chains.first_exchange),
            np.ascontiguousarray(chains.resources),
            np.ascontiguousarray(chains.seconds),
            np.ascontiguousarray(chains.totals),
            np.array(size_of, dtype=np.int64),
            np.array(gap_seconds, dtype=np.float64),
        )
        self._states = (self._empty_state(cpu_servers), self._empty_state(cpu_servers))
        self._quiet = kernel.Record(np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(1, dtype=np.int64))
        self.evaluations = 0

    @classmethod
    def of(cls, model: ModelProfile, table: OptionTable) -> TimelineEngine:
        """Return the engine for a model's tensors and the options of a table."""
        return cls(
            table.chains, table.size_of, model.gap_seconds, model.other_seconds, table.costs.cpu_servers
        )

    def __len__(self) -> int:
        """Number of tensors."""
        return len(self.tables.gaps)

    def seconds(self, strategy: Integers) -> float:
        """F(S): return the seconds of an iteration, from start to start."""
        return self.other_seconds + self._end(strategy, self._quiet)

    def last_bubble(self, strategy: Integers) -> int:
        """Return the last tensor before which there is a bubble: its first exchange starts when it is ready,
        with all links idle. 0 without a bubble."""
        self._quiet.bubble[0] = 0
        self._end(strategy, self._quiet)
        return int(self._quiet.bubble[0])

    def spans(self, strategy: Integers) -> tuple[Span, ...]:
        """Return the whole timeline in order of start, including backward operations."""
        shape = (len(self) + 1, max(len(self), self.chains.resources.shape[1]))
        record = kernel.Record(np.zeros(shape), np.zeros(shape), np.zeros(1, dtype=np.int64))
        self._end(strategy, record)
        found = [
            Span(Resource.GPU, tensor, None, float(record.starts[-1, tensor]), float(record.ends[-1, tensor]))
            for tensor in range(len(self))
        ]
        for tensor, option in enumerate(strategy):
            for number in range(int(self.chains.lengths[option])):
                start, end = float(record.starts[tensor, number]), float(record.ends[tensor, number])
                resource = Resource(int(self.chains.resources[option, number]))
                found.append(Span(resource, tensor, number, start, end))
        return tuple(sorted(found, key=lambda span: (span.start, span.end, span.resource, span.tensor)))

    def best_candidate(
        self, strategy: Integers, tensor: int, candidates: Integers, seconds: float
    ) -> tuple[int, float]:
        """Return the option of one tensor that minimises an iteration, and that iteration's seconds.

        Args:
            candidates: columns in tie-breaking order; the current option wins all ties.
            seconds: of the current iteration.
        """
        self.evaluations += len(candidates)
        column, end = kernel.best_candidate(
            self.tables,
            strategy,
            self._states,
            tensor,
            candidates,
            seconds - self.other_seconds,
            self._quiet,
        )
        return int(column), self.other_seconds + float(end)

    def best_vector(
        self, strategy: Integers, groups: tuple[Integers, Integers, Integers], most: Integers, seconds: float
    ) -> tuple[Integers, float]:
        """Return the best numbers of offloaded tensors per group, over all vectors, and the iteration.

        Args:
            groups: tensors by group; begin of each group; column of each tensor on the CPU.
            most: largest number to offload of each group.
            seconds: of the iteration without offloading.
        """
        vector, end, tried = kernel.best_vector(
            self.tables,
            strategy,
            self._states[0],
            groups,
            most,
            seconds - self.other_seconds,
            self._quiet,
        )
        self.evaluations += tried
        return vector, self.other_seconds + float(end)

    def _end(self, strategy: Integers, record: kernel.Record) -> float:
        self.evaluations += 1
        return float(kernel.whole_run(self.tables, strategy, self._states[0], np.inf, record))

    def _empty_state(self, cpu_servers: int) -> kernel.State:
        waiting = len(self.tables.gaps) + 2
        return kernel.State(
            np.zeros(waiting),
            np.zeros(waiting, dtype=np.int64),
            np.zeros(waiting, dtype=np.int64),
            np.zeros(len(Resource)),
            np.zeros(cpu_servers),
            np.zeros(len(Resource)),
        )
