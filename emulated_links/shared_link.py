"""One link in emulated time: overlapping traffic classes share it, transfers of one class run in sequence.

It has no clock: the caller passes the time. Between two events each class on the link moves at a constant
rate, so the ends of transfers are exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

#: A transfer with less than this left is finished: a rounding error.
_NOTHING_SECONDS = 1e-6
#: Number of recent idle times that are kept for late requests.
_IDLE_TIMES_KEPT = 1024


@dataclass(eq=False)
class Transfer:
    """Bytes on a link. `ended_at` is emulated time, None while in progress."""

    traffic: str
    left: float
    ended_at: float | None = None


class SharedLink:
    """A link with a rate.

    Attributes:
        at: the emulated time up to which its past is settled.
        carried: bytes carried so far, by class of traffic.
    """

    def __init__(self, bytes_per_second: float, shares: Mapping[str, float]) -> None:
        self.bytes_per_second = bytes_per_second
        self.at = float("-inf")
        self.carried = dict.fromkeys(shares, 0.0)
        self._shares = shares
        #: Begin and end of idle times before `at`, in order.
        self._idle: deque[tuple[float, float]] = deque(maxlen=_IDLE_TIMES_KEPT)
        self._queues: dict[str, deque[Transfer]] = {traffic: deque() for traffic in shares}

    @property
    def busy(self) -> bool:
        """Whether a transfer is in progress."""
        return any(self._queues.values())

    def add(self, traffic: str, size: int, at: float) -> Transfer:
        """Start a transfer at `at`. If the link's past is settled beyond that, the transfer first uses idle
        times of the past, and the rest begins now: a late request gets the capacity that was unused, and
        earlier answers stay valid.

        A busy link must be advanced to `at` first.
        """
        if not self.busy and at > self.at:
            self._idle.append((self.at, at))
            self.at = at
        transfer = Transfer(traffic, float(size))
        self._carry_in_idle_past(transfer, at)
        if transfer.ended_at is None:
            self._queues[traffic].append(transfer)
        return transfer

    def _carry_in_idle_past(self, transfer: Transfer, at: float) -> None:
        """Carry as much as fits of a transfer in idle times after `at`, the earliest first."""
        later: list[tuple[float, float]] = []
        while self._idle and self._idle[-1][1] > at:
            later.append(self._idle.pop())
        while later:
            idle_from, idle_to = later.pop()
            if transfer.ended_at is not None:
                self._idle.append((idle_from, idle_to))
                continue
            began = max(idle_from, at)
            ended = min(idle_to, began + transfer.left / self.bytes_per_second)
            moved = min(transfer.left, (ended - began) * self.bytes_per_second)
            transfer.left -= moved
            self.carried[transfer.traffic] += moved
            if transfer.left <= self.bytes_per_second * _NOTHING_SECONDS:
                transfer.ended_at = ended
            self._idle.extend(each for each in ((idle_from, began), (ended, idle_to)) if each[0] < each[1])

    def advance(self, to: float) -> list[Transfer]:
        """Advance to the time `to`; return the transfers that end until then, in order."""
        ended: list[Transfer] = []
        while self.busy:
            rates = self._rates()
            first = min(queue[0].left / rates[traffic] for traffic, queue in self._queues.items() if queue)
            seconds = min(first, to - self.at)
            if seconds < 0:
                break
            self._move(seconds, rates, ended)
            if first > seconds + _NOTHING_SECONDS:
                break
        return ended

    def next_end(self) -> float | None:
        """Return when the next transfer ends if none is added; None on an idle link."""
        if not self.busy:
            return None
        rates = self._rates()
        return self.at + min(
            queue[0].left / rates[traffic] for traffic, queue in self._queues.items() if queue
        )

    def _rates(self) -> dict[str, float]:
        """Return the bytes per second of each class that is on the link now."""
        active = [traffic for traffic, queue in self._queues.items() if queue]
        if len(active) == 1:
            return {active[0]: self.bytes_per_second}
        total = max(1.0, sum(self._shares[traffic] for traffic in active))
        return {traffic: self.bytes_per_second * self._shares[traffic] / total for traffic in active}

    def _move(self, seconds: float, rates: Mapping[str, float], ended: list[Transfer]) -> None:
        self.at += seconds
        for traffic, rate in rates.items():
            queue = self._queues[traffic]
            moved = min(queue[0].left, rate * seconds)
            queue[0].left -= moved
            self.carried[traffic] += moved
            if queue[0].left <= rate * _NOTHING_SECONDS:
                transfer = queue.popleft()
                transfer.ended_at = self.at
                ended.append(transfer)
