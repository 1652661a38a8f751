"""Exchanges during the backward pass, in an order that is equal on all ranks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

Works = Iterator[dist.Work]


class InOrder:
    """Runs exchanges, in each group in the order in which they are added, equal on all ranks.

    Exchanges of one collective start at once. Longer ones use a different group for each collective. A thread
    for each group takes its exchanges in order, each after it has left its previous group. So an exchange
    between servers overlaps with the next one within them. All ranks of a group see the same exchanges in the
    same order, and none waits for a later one, so there is no deadlock.
    """

    def __init__(self, device: torch.device) -> None:
        """Args: device: of the exchanged data."""
        self._device = device
        self._begun: list[tuple[dist.Work | None, Works]] = []
        self._added: list[_Passing] = []
        self._channels: dict[int, queue.SimpleQueue[tuple[_Passing, int] | None]] = {}
        self._failed: BaseException | None = None

    def begin(self, works: Works) -> None:
        """Start an exchange of at most one collective."""
        self._begun.append((next(works, None), works))

    def add(
        self, works: Works, channels: Sequence[dist.ProcessGroup], *, begins_at_once: bool = False
    ) -> None:
        """Run an exchange once earlier ones have left its groups.

        Args:
            channels: the group of each of its collectives, in order, each at most once.
            begins_at_once: whether its first collective starts here, so that the work before it overlaps with
                earlier exchanges. Its group must be the first one of every exchange that uses it, so that
                ranks start collectives there in the order of adding.
        """
        if not channels:
            self.begin(works)
            return
        passing = _Passing(works, [threading.Event() for _ in channels])
        if begins_at_once:
            passing.begin()
        self._added.append(passing)
        for place, group in enumerate(channels):
            self._channel(group).put((passing, place))

    def wait(self) -> None:
        """Wait until all have ended. Raises the first failure."""
        begun, self._begun = self._begun, []
        for first, works in begun:
            if first is not None:
                first.wait()
            _finish(works)
        added, self._added = self._added, []
        for each in added:
            each.left[-1].wait()
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """Stop the threads after the exchanges added so far."""
        for channel in self._channels.values():
            channel.put(None)

    def _channel(self, group: dist.ProcessGroup) -> queue.SimpleQueue[tuple[_Passing, int] | None]:
        found = self._channels.get(id(group))
        if found is None:
            found = self._channels[id(group)] = queue.SimpleQueue()
            number = len(self._channels)
            threading.Thread(
                target=self._serve, args=(found,), name=f"gradient-exchanges-{number}", daemon=True
            ).start()
        return found

    def _serve(self, channel: queue.SimpleQueue[tuple[_Passing, int] | None]) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        while (told := channel.get()) is not None:
            passing, place = told
            if place:
                passing.left[place - 1].wait()
            try:
                # After a failure ranks are at different places, so nothing more is started.
                if self._failed is None:
                    passing.go_on(last=place == len(passing.left) - 1)
            except BaseException as error:  # noqa: BLE001 - raised in wait()
                self._failed = self._failed or error
            passing.left[place].set()


class _Passing:
    """An exchange in progress. ``left``: set when it has left each group."""

    def __init__(self, works: Works, left: list[threading.Event]) -> None:
        self._works = works
        self._begun: dist.Work | None = None
        self.left = left

    def begin(self) -> None:
        self._begun = next(self._works, None)

    def go_on(self, *, last: bool) -> None:
        work, self._begun = self._begun or next(self._works, None), None
        if work is not None:
            work.wait()
        if last:
            _finish(self._works)


def _finish(works: Works) -> None:
    for work in works:
        work.wait()
