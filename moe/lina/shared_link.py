"""A link that all-to-all and all-reduce share, in simulated time (SIM-T; contracts: emulated links)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count

from moe.lina.micro_operations import MicroOperation, Traffic
from moe.lina.scheduler import Mode, PriorityScheduler

#: Shorter times are rounding errors.
_NEGLIGIBLE = 1e-9


@dataclass(eq=False)
class Transfer:
    """One operation on the link.

    Attributes:
        work: duration alone on the link.
        left: work that remains.
        submitted_at: time of submission.
        began_at: time of launch; infinite before.
        ended_at: time of the end; infinite before.
    """

    work: float
    left: float
    submitted_at: float
    began_at: float = math.inf
    ended_at: float = math.inf


@dataclass(frozen=True)
class Rates:
    """Share of the link that each class gets while both are active. Half each is fair sharing; a sum below 1
    is interference: overlap wastes part of the link."""

    all_to_all: float = 0.5
    all_reduce: float = 0.5

    def __post_init__(self) -> None:
        if not (0 < self.all_to_all <= 1 and 0 < self.all_reduce <= 1):
            raise ValueError(
                f"rates are {self.all_to_all:g} and {self.all_reduce:g}; both must be above 0, at most 1"
            )

    def while_both(self, traffic: Traffic) -> float:
        """Return the rate of a class while the other one is active too."""
        return self.all_to_all if traffic is Traffic.ALL_TO_ALL else self.all_reduce


class SimulatedLink:
    """A link whose operations a `PriorityScheduler` launches, in simulated time.

    The running operations of a class take turns in the order of launches; a class that is alone has rate 1.

    Attributes:
        now: simulated time.
        scheduler: decides what is launched. Callers set its `hold`.
    """

    def __init__(self, rates: Rates, mode: Mode) -> None:
        self.now = 0.0
        self.scheduler = PriorityScheduler(mode)
        self._rates = rates
        self._transfers: dict[MicroOperation, Transfer] = {}
        self._numbers = count()

    def submit(self, traffic: Traffic, work: float) -> Transfer:
        """Submit an operation now. It is launched once time advances, after all submissions of now."""
        transfer = Transfer(work, work, self.now)
        operation = MicroOperation(traffic, str(next(self._numbers)))
        self._transfers[operation] = transfer
        self.scheduler.submit([operation])
        return transfer

    def advance(self, until: float) -> None:
        """Advance time. Operations that end at `until` end; their successors are launched later."""
        while self.now < until - _NEGLIGIBLE:
            self._launch()
            self._progress(min([until - self.now, *self._times_to_end()]))
        self.now = until

    def wait(self, transfer: Transfer) -> float:
        """Advance time until an operation ends; return that time."""
        while transfer.ended_at == math.inf:
            self._launch()
            self._progress(min(self._times_to_end()))
        return transfer.ended_at

    def _launch(self) -> None:
        for operation in self.scheduler.launch():
            self._transfers[operation].began_at = self.now

    def _active(self) -> list[tuple[MicroOperation, float]]:
        """The oldest running operation of each class, and its rate."""
        oldest: dict[Traffic, MicroOperation] = {}
        for operation in self.scheduler.running:
            oldest.setdefault(operation.traffic, operation)
        is_shared = len(oldest) > 1
        return [
            (operation, self._rates.while_both(traffic) if is_shared else 1.0)
            for traffic, operation in oldest.items()
        ]

    def _times_to_end(self) -> list[float]:
        return [self._transfers[operation].left / rate for operation, rate in self._active()]

    def _progress(self, duration: float) -> None:
        self.now += duration
        for operation, rate in self._active():
            transfer = self._transfers[operation]
            transfer.left -= duration * rate
            if transfer.left <= _NEGLIGIBLE:
                transfer.ended_at = self.now
                self.scheduler.end(operation)
                del self._transfers[operation]
