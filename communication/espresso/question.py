"""The input of a selection: a model, all costs on its placement, and the options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from communication.espresso.chains import OptionTable, option_table
from communication.espresso.choices import Choices
from communication.espresso.costs import CostModel
from communication.espresso.decision_tree import gpu_options
from communication.espresso.dominated import tie_order, undominated
from communication.espresso.options import Option, compressions, devices_of, on_device
from communication.espresso.timeline import TimelineEngine
from communication.profiles.arrays import Integers
from communication.profiles.codec import Device
from communication.profiles.model import ModelProfile


@dataclass(frozen=True, eq=False)
class Question:
    """The question which option of each tensor minimises an iteration.

    Attributes:
        model, costs: of the job on its placement.
        options: among which tensors choose. Of equally good ones those without compression come first.
        exact: whether dominated options are tried as well.
    """

    model: ModelProfile
    costs: CostModel
    options: tuple[Option, ...]
    exact: bool = False

    @cached_property
    def table(self) -> OptionTable:
        """Costs of each option for each size."""
        return option_table(self.model, self.costs, self.options)

    @cached_property
    def engine(self) -> TimelineEngine:
        """The timeline of this question's strategies."""
        return TimelineEngine.of(self.model, self.table)

    @cached_property
    def compressions(self) -> Integers:
        """How often each column compresses the gradient."""
        return np.array([compressions(option) for option in self.options], dtype=np.int64)

    @cached_property
    def on_cpu(self) -> Integers:
        """For each column that compresses on GPUs only, the same option's column on the CPU; else -1."""
        columns = self.table.columns
        return np.array(
            [
                columns.get(on_device(option, Device.CPU), -1)
                if devices_of(option) == frozenset((Device.GPU,))
                else -1
                for option in self.options
            ],
            dtype=np.int64,
        )

    @cached_property
    def choices(self) -> Choices:
        """The algorithms' view of the question."""
        return Choices(self.engine, self.model.elements, self.table.size_of, self.compressions, self.on_cpu)

    def columns_on(self, *devices: Device, uncompressed: bool = True) -> Integers:
        """Return the columns that compress only on these devices, optionally with uncompressed ones."""
        return np.array(
            [
                column
                for column, option in enumerate(self.options)
                if devices_of(option) <= set(devices) and (uncompressed or devices_of(option))
            ],
            dtype=np.int64,
        )

    def candidates(self, columns: Integers) -> tuple[Integers, ...]:
        """Return the columns to try for each size, in tie-breaking order."""
        asked = columns.tobytes()
        if asked not in self._candidates:
            rows = range(len(self.table.elements))
            self._candidates[asked] = tuple(self._in_order(row, columns) for row in rows)
        return self._candidates[asked]

    @cached_property
    def _candidates(self) -> dict[bytes, tuple[Integers, ...]]:
        """Cache of `candidates`, by columns."""
        return {}

    def _in_order(self, row: int, columns: Integers) -> Integers:
        table = self.table
        found = tie_order(columns, self.compressions, table.between_bytes[row], table.within_bytes[row])
        return found if self.exact else undominated(table.chains.totals[row], found)

    def everywhere(self, option: Option) -> Integers:
        """Return the strategy that uses one option for all tensors. Raises ValueError if it has no column."""
        if option not in self.table.columns:
            raise ValueError("this option is not among those of the question")
        return np.full(len(self.model), self.table.columns[option], dtype=np.int64)

    def under(self, costs: CostModel) -> Question:
        """Return the question under other costs."""
        return replace(self, costs=costs)

    def among(self, allowed: Callable[[Option], bool]) -> Question:
        """Return the question with some of the options only. Raises ValueError if none is left."""
        return question_of(
            self.model, self.costs, [one for one in self.options if allowed(one)], exact=self.exact
        )


def single_device_options(devices: Sequence[Device]) -> tuple[Option, ...]:
    """Return the options whose compression is all on one of these devices, for each of them."""
    found = [option for option in gpu_options() if not devices_of(option)]
    for device in devices:
        found += [on_device(option, device) for option in gpu_options() if devices_of(option)]
    return tuple(found)


def question_of(
    model: ModelProfile, costs: CostModel, options: Sequence[Option] | None = None, *, exact: bool = False
) -> Question:
    """Return the question with given options, or with all that compress on one device that has a codec.

    Raises ValueError as `option_table` does.
    """
    among = single_device_options(costs.devices) if options is None else tuple(options)
    question = Question(model, costs, among, exact)
    # Report wrong input here rather than where an array is first needed.
    assert question.table is not None
    return question
