"""Device time during exchanges of gradients. On a real device it passes without this module. An emulated
device receives reports of the work, and makes it last as long as on the declared device."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch.distributed as dist

from communication.hooks.measures import Stage
from communication.profiles.codec import Device


class Course:
    """The progress of one exchange. Its thread may change, but only one at a time has it."""

    @property
    def at(self) -> float:
        """The current time of the exchange, by its own clock."""
        return time.perf_counter()

    def goes_on(self) -> None:
        """Continue in this thread."""

    def coded(self, stage: Stage, codec: str, device: Device, elements: int, payloads: int = 1) -> None:
        """Report that elements were encoded, or decoded from each of some payloads."""

    def asked(self) -> None:
        """Report that this thread has started a collective."""

    def came(self) -> None:
        """Report that the collective has ended."""


def courses_of(group: dist.ProcessGroup | None) -> Callable[[], Course]:
    """Return the factory of a group's courses. On real devices these do nothing; a group of emulated devices
    provides its own."""
    found = dist.group.WORLD if group is None else group
    return getattr(found, "course", Course)
