"""The timeline of an iteration under a strategy, and its end F(S) (Espresso 4.3).

A strategy is an array: for each tensor the column of its option.
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
    """One operation on the timeline. ``number``: its place in its tensor's chain; None of the tensor's
    backward operation."""

    resource: Resource
    tensor: int
    number: int | None
    start: float
    end: float


class TimelineEngine:
    """Serves chains of operations on GPU, processors and links; in order of ready time, one at a time.

    Not for several threads at once: its arrays are used again by every run.

    Args:
        chains: of each option for each size. size_of: of each tensor, the row of its size.
        gap_seconds: backward time of each tensor.
        other_seconds: of an iteration beside what is on the timeline.
        cpu_servers: so many operations at once that the processors serve.
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
        """The engine for a model's tensors and the options of a table."""
        return cls(
            table.chains, table.size_of, model.gap_seconds, model.other_seconds, table.costs.cpu_servers
        )

    def __len__(self) -> int:
        """Tensors."""
        return len(self.tables.gaps)

    def seconds(self, strategy: Integers) -> float:
        """F(S): an iteration from start to start."""
        return self.other_seconds + self._end(strategy, self._quiet)

    def last_bubble(self, strategy: Integers) -> int:
        """The last tensor before which there is a bubble: its first exchange starts as soon as it is ready,
        and no link is busy then with what began before. 0 where there is none."""
        self._quiet.bubble[0] = 0
        self._end(strategy, self._quiet)
        return int(self._quiet.bubble[0])

    def spans(self, strategy: Integers) -> tuple[Span, ...]:
        """The whole timeline in order of start, backward operations included."""
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
        """The option of one tensor with which an iteration is shortest, and what it takes then.

        Args:
            candidates: columns in the order in which they win ties; what is chosen already wins all of them.
            seconds: of the iteration as it is.
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
        """How many tensors of each group are best offloaded, of all vectors, and the iteration then.

        Args:
            groups: tensors by group; where each group begins; of each tensor, its column on the CPU.
            most: that may be offloaded of each group.
            seconds: of the iteration with none offloaded.
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
