"""One link in emulated time: classes of traffic that overlap on it get shares of it, transfers of one class
go one after the other.

It knows no clock: whoever uses it says what time it is. Between two events each class on the link moves at a
constant rate, so the ends of transfers are exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

#: A transfer that has less than this to go is done: rounding leaves as much.
_NOTHING_SECONDS = 1e-6
#: So many of the last times in which a link was idle are remembered, for transfers that are asked for late.
_IDLE_TIMES_KEPT = 1024


@dataclass(eq=False)
class Transfer:
    """Bytes on a link. `ended_at` is emulated time, None while they are on their way."""

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
        #: From when to when nothing was on it before `at`, in order.
        self._idle: deque[tuple[float, float]] = deque(maxlen=_IDLE_TIMES_KEPT)
        self._queues: dict[str, deque[Transfer]] = {traffic: deque() for traffic in shares}

    @property
    def busy(self) -> bool:
        """Whether anything is on its way."""
        return any(self._queues.values())

    def add(self, traffic: str, size: int, at: float) -> Transfer:
        """Begin a transfer at `at`. Where the link's past is settled beyond that, it has what was left idle
        of the past, and its rest begins at once: whoever asks late gets no less than the link had to give,
        and what others were told stays.

        A link that is busy is to be advanced to `at` before.
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
        """Carry what fits of a transfer into idle times after `at`, the first of them first."""
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
        """Let time go on until `to`; returns the transfers that end until then, in order of their ends."""
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
        """When the next transfer ends if none is added before; None on an idle link."""
        if not self.busy:
            return None
        rates = self._rates()
        return self.at + min(
            queue[0].left / rates[traffic] for traffic, queue in self._queues.items() if queue
        )

    def _rates(self) -> dict[str, float]:
        """Bytes per second of each class that is on the link now."""
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
