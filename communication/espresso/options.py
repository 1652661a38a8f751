"""Compression options: the processing of one gradient on its way to all ranks, step by step (Espresso 4.2).

An option is a path through the decision tree (`decision_tree.py`). Each of its steps is an action task with
its routine, and its level or device.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from communication.profiles.codec import Device


class Level(StrEnum):
    """The participants of an exchange."""

    FLAT = "flat"
    """All GPUs of the job."""
    INTRA = "intra"
    """The GPUs of one server."""
    INTER = "inter"
    """The GPUs of the same number on all servers."""


class Routine(StrEnum):
    """The routine of a step: a collective, or one half of a codec."""

    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"
    REDUCE = "reduce"
    ALL_GATHER = "all-gather"
    BROADCAST = "broadcast"
    ALL_TO_ALL = "all-to-all"
    GATHER = "gather"
    ENCODE = "encode"
    DECODE = "decode"


class Task(StrEnum):
    """Action tasks of the decision tree. Those that end in ``_c`` exchange compressed gradients.

    ``Comm`` is an indivisible scheme; ``Comm1`` and ``Comm2`` are the steps of a divisible one.
    """

    COMP = "Comp"
    DECOMP = "Decomp"
    COMM = "Comm"
    COMM1 = "Comm1"
    COMM2 = "Comm2"
    COMM_C = "Comm_c"
    COMM1_C = "Comm1_c"
    COMM2_C = "Comm2_c"


FIRST_STEPS = (Task.COMM1, Task.COMM1_C)
SECOND_STEPS = (Task.COMM2, Task.COMM2_C)
CODEC_TASKS = (Task.COMP, Task.DECOMP)

ROUTINES: dict[Task, tuple[Routine, ...]] = {
    Task.COMP: (Routine.ENCODE,),
    Task.DECOMP: (Routine.DECODE,),
    Task.COMM: (Routine.ALL_REDUCE,),
    Task.COMM_C: (Routine.ALL_GATHER,),
    Task.COMM1: (Routine.REDUCE_SCATTER, Routine.REDUCE),
    Task.COMM1_C: (Routine.ALL_TO_ALL, Routine.GATHER),
    Task.COMM2: (Routine.ALL_GATHER, Routine.BROADCAST),
    Task.COMM2_C: (Routine.ALL_GATHER, Routine.BROADCAST),
}
"""The routines available to a task. That of a second step follows from the first: `SECOND_ROUTINE`."""

SECOND_ROUTINE: dict[Routine, Routine] = {
    Routine.REDUCE_SCATTER: Routine.ALL_GATHER,
    Routine.ALL_TO_ALL: Routine.ALL_GATHER,
    Routine.REDUCE: Routine.BROADCAST,
    Routine.GATHER: Routine.BROADCAST,
}
"""The second step of a divisible scheme by its first, regardless of format changes in between."""


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """One action task of an option.

    ``level``: of an exchange, None for a codec's step. ``device``: of a codec's step, None for an exchange.

    Raises ValueError for a routine that the task does not have, a codec's step without a device or with a
    level, an exchange without a level or with a device.
    """

    task: Task
    routine: Routine
    level: Level | None = None
    device: Device | None = None

    def __post_init__(self) -> None:
        if self.routine not in ROUTINES[self.task]:
            raise ValueError(f"{self.task} has no routine {self.routine}")
        if (self.device is not None) != self.is_codec or (self.level is None) != self.is_codec:
            raise ValueError(
                f"{self.task} takes {'a device' if self.is_codec else 'a level'} and nothing else"
            )

    @property
    def is_codec(self) -> bool:
        """Whether a gradient is encoded or decoded."""
        return self.task in CODEC_TASKS

    def __str__(self) -> str:
        return f"{self.task}/{self.routine}/{self.device if self.is_codec else self.level}"


Option: TypeAlias = tuple[Step, ...]
"""A path through the decision tree."""


def compressions(option: Option) -> int:
    """How often the gradient is compressed: the number of ``Comp`` tasks."""
    return sum(step.task is Task.COMP for step in option)


def devices_of(option: Option) -> frozenset[Device]:
    """Return the devices that encode and decode; empty for an option that does not compress."""
    return frozenset(step.device for step in option if step.device is not None)


def is_hierarchical(option: Option) -> bool:
    """Whether the GPUs of one server exchange among themselves first."""
    return option[0].level is not Level.FLAT and any(step.level is Level.INTRA for step in option)


def on_device(option: Option, device: Device) -> Option:
    """Return the option with all its compression on one device."""
    return tuple(Step(step.task, step.routine, None, device) if step.is_codec else step for step in option)


def option_code(option: Option) -> str:
    """Return the code of an option in plans: its steps as ``task/routine/level`` or
    ``task/routine/device``."""
    return " ".join(map(str, option))


_LONGEST_CODE = 1_000


def option_from_code(code: str) -> Option:
    """Parse a code. `decision_tree.belongs` checks whether the decision tree has the option.

    Raises ValueError for anything but a sequence of steps.
    """
    if not isinstance(code, str) or not 0 < len(code) <= _LONGEST_CODE:
        raise ValueError(f"the code of an option must be a text of 1 to {_LONGEST_CODE} characters")
    return tuple(_step_from_code(each) for each in code.split(" "))


def _step_from_code(code: str) -> Step:
    parts = code.split("/")
    if len(parts) != 3:
        raise ValueError(f"a step is {code!r}; it must be task/routine/place")
    task, routine = Task(parts[0]), Routine(parts[1])
    if task in CODEC_TASKS:
        return Step(task, routine, None, Device(parts[2]))
    return Step(task, routine, Level(parts[2]))
