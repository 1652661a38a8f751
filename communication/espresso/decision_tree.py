"""The decision tree of compression options, as a grammar (Espresso 4.2).

With two devices and two routines for each first step it derives 4,341 options. Of the 174 options on GPUs
only, 9 compress nothing, so |C_gpu| is 165.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import cache
from itertools import product

from communication.espresso.options import (
    FIRST_STEPS,
    ROUTINES,
    SECOND_ROUTINE,
    SECOND_STEPS,
    Level,
    Option,
    Routine,
    Step,
    Task,
    on_device,
)
from communication.profiles.codec import Device

GRAMMAR: dict[str, tuple[str, ...]] = {
    # The second exchange within servers, or of a flat scheme, of an uncompressed or a compressed gradient.
    "T1": ("Comm2", "Comp Comm2_c Decomp"),
    "T2": ("Comm2_c Decomp", "Decomp T1"),
    # The exchange between servers of an uncompressed or a compressed gradient, and its second half.
    "T3": ("Comm T1", "Comm1 T5"),
    "T4": ("Comm_c T2", "Comm1_c Comm2_c T2", "Comm1_c Decomp T5"),
    "T5": ("Comm2 T1", "Comp Comm2_c T2"),
    "flat": ("Comm", "Comm1 T1", "Comp Comm_c Decomp", "Comp Comm1_c T2"),
    "hierarchical": (
        "Comm1 T3",
        "Comm1 Comp T4",
        "Comp Comm1_c T4",
        "Comp Comm1_c Decomp T3",
        "Comp Comm1_c Decomp Comp T4",
    ),
}
"""Productions of each symbol; other names are tasks."""

_LEVEL_OF = {"T1": Level.INTRA, "T2": Level.INTRA, "hierarchical": Level.INTRA}
"""Level of a rule's exchanges in a hierarchical scheme; otherwise between servers."""

_Derived = tuple[tuple[Task, Level], ...]


def options(devices: Sequence[Device] = (Device.GPU, Device.CPU)) -> tuple[Option, ...]:
    """Return all options on these devices, in the grammar's lexicographic order."""
    return _options(tuple(devices))


def gpu_options() -> tuple[Option, ...]:
    """Return the options that encode and decode on GPUs only: 165 that compress, and 9 that do not."""
    return _options((Device.GPU,))


def belongs(option: Option) -> bool:
    """Whether the decision tree has this option, checked by its counterpart on GPUs only."""
    return on_device(option, Device.GPU) in _gpu_option_set()


@cache
def _options(devices: tuple[Device, ...]) -> tuple[Option, ...]:
    return tuple(
        option
        for derived in (*_derivations("flat", flat=True), *_derivations("hierarchical", flat=False))
        for option in _with_choices(derived, devices)
    )


@cache
def _gpu_option_set() -> frozenset[Option]:
    return frozenset(gpu_options())


def _derivations(symbol: str, *, flat: bool) -> Iterator[_Derived]:
    """Yield all sequences of tasks, with their levels, that a symbol derives."""
    level = Level.FLAT if flat else _LEVEL_OF.get(symbol, Level.INTER)
    for rule in GRAMMAR[symbol]:
        choices: list[list[_Derived]] = [
            list(_derivations(name, flat=flat)) if name in GRAMMAR else [((Task(name), level),)]
            for name in rule.split()
        ]
        for parts in product(*choices):
            yield tuple(item for part in parts for item in part)


def _with_choices(derived: _Derived, devices: tuple[Device, ...]) -> Iterator[Option]:
    """Yield each choice of routines for first steps, and of devices for compression."""
    open_choices: list[tuple[StrEnum, ...]] = [
        ROUTINES[task] if task in FIRST_STEPS else devices
        for task, _ in derived
        if task in FIRST_STEPS or task in (Task.COMP, Task.DECOMP)
    ]
    for choice in product(*open_choices):
        yield _chosen(derived, iter(choice))


def _chosen(derived: _Derived, choice: Iterator[StrEnum]) -> Option:
    steps = []
    first: dict[Level, Routine] = {}
    for task, level in derived:
        if task in (Task.COMP, Task.DECOMP):
            steps.append(Step(task, ROUTINES[task][0], None, Device(next(choice))))
        elif task in FIRST_STEPS:
            first[level] = Routine(next(choice))
            steps.append(Step(task, first[level], level))
        elif task in SECOND_STEPS:
            steps.append(Step(task, SECOND_ROUTINE[first[level]], level))
        else:
            steps.append(Step(task, ROUTINES[task][0], level))
    return tuple(steps)
