"""What a selection is asked with: a model, what everything costs where it trains, and the options."""

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
    """Which option for each tensor makes an iteration shortest?

    Attributes:
        model, costs: of the job where it trains.
        options: among which tensors choose. Those without compression come first where several are as good.
        exact: whether options that another one dominates are tried as well.
    """

    model: ModelProfile
    costs: CostModel
    options: tuple[Option, ...]
    exact: bool = False

    @cached_property
    def table(self) -> OptionTable:
        """What each option costs for each size."""
        return option_table(self.model, self.costs, self.options)

    @cached_property
    def engine(self) -> TimelineEngine:
        """The timeline of this question's strategies."""
        return TimelineEngine.of(self.model, self.table)

    @cached_property
    def compressions(self) -> Integers:
        """Of each column, how often the gradient is compressed."""
        return np.array([compressions(option) for option in self.options], dtype=np.int64)

    @cached_property
    def on_cpu(self) -> Integers:
        """Of each column that compresses on GPUs alone, the column with the same on the CPU; else -1."""
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
        """What the algorithms see of it."""
        return Choices(self.engine, self.model.elements, self.table.size_of, self.compressions, self.on_cpu)

    def columns_on(self, *devices: Device, uncompressed: bool = True) -> Integers:
        """Columns that compress on these devices alone, and if wanted those that do not compress."""
        return np.array(
            [
                column
                for column, option in enumerate(self.options)
                if devices_of(option) <= set(devices) and (uncompressed or devices_of(option))
            ],
            dtype=np.int64,
        )

    def candidates(self, columns: Integers) -> tuple[Integers, ...]:
        """For each size the columns to try, in the order in which they win ties."""
        asked = columns.tobytes()
        if asked not in self._candidates:
            rows = range(len(self.table.elements))
            self._candidates[asked] = tuple(self._in_order(row, columns) for row in rows)
        return self._candidates[asked]

    @cached_property
    def _candidates(self) -> dict[bytes, tuple[Integers, ...]]:
        """What was asked before, by the columns."""
        return {}

    def _in_order(self, row: int, columns: Integers) -> Integers:
        table = self.table
        found = tie_order(columns, self.compressions, table.between_bytes[row], table.within_bytes[row])
        return found if self.exact else undominated(table.chains.totals[row], found)

    def everywhere(self, option: Option) -> Integers:
        """The strategy that treats all tensors alike. Raises ValueError for an option of no column."""
        if option not in self.table.columns:
            raise ValueError("this option is not among those of the question")
        return np.full(len(self.model), self.table.columns[option], dtype=np.int64)

    def under(self, costs: CostModel) -> Question:
        """The same where everything costs something else."""
        return replace(self, costs=costs)

    def among(self, allowed: Callable[[Option], bool]) -> Question:
        """The same with some of the options alone. Raises ValueError where none is left."""
        return question_of(
            self.model, self.costs, [one for one in self.options if allowed(one)], exact=self.exact
        )


def single_device_options(devices: Sequence[Device]) -> tuple[Option, ...]:
    """The options that compress on one device, for each of these: no option has both."""
    found = [option for option in gpu_options() if not devices_of(option)]
    for device in devices:
        found += [on_device(option, device) for option in gpu_options() if devices_of(option)]
    return tuple(found)


def question_of(
    model: ModelProfile, costs: CostModel, options: Sequence[Option] | None = None, *, exact: bool = False
) -> Question:
    """The question with given options, or with all that compress on one of the devices that have a codec.

    Raises ValueError, as `option_table` does.
    """
    among = single_device_options(costs.devices) if options is None else tuple(options)
    question = Question(model, costs, among, exact)
    # Wrong input is told here rather than where an array is first needed.
    assert question.table is not None
    return question
