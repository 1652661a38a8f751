"""How time passes on the device while gradients are exchanged. On a real one it passes by itself; an emulated
one is told what was done, and makes it last as long as the declared device takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch.distributed as dist

from communication.hooks.measures import Stage
from communication.profiles.codec import Device


class Course:
    """The way of one exchange, from its creation on. Its thread may change, but one at a time has it."""

    @property
    def at(self) -> float:
        """The time that it has come to, by a clock of its own."""
        return time.perf_counter()

    def goes_on(self) -> None:
        """This thread has it from here on."""

    def coded(self, stage: Stage, codec: str, device: Device, elements: int, payloads: int = 1) -> None:
        """So many elements were encoded, or decoded from each of some payloads."""

    def asked(self) -> None:
        """A collective has been asked for by this thread."""

    def came(self) -> None:
        """That has ended."""


def courses_of(group: dist.ProcessGroup | None) -> Callable[[], Course]:
    """What makes the courses of exchanges in a group; on real devices these do nothing. A group of emulated
    devices has courses of its own."""
    found = dist.group.WORLD if group is None else group
    return getattr(found, "course", Course)
