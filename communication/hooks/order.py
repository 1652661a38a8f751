"""Exchanges one after the other, beside the backward pass."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import torch
import torch.distributed as dist

Works = Iterator[dist.Work]


class InOrder:
    """Carries exchanges out in the order in which they are added, the same on all ranks.

    Exchanges of one collective are begun at once. Of several collectives the later ones wait for the earlier
    ones, each rank for its own: exchanges of such are carried out one after the other, in a thread. Otherwise
    two ranks would begin collectives of two exchanges in different orders, and wait for each other.
    """

    def __init__(self, device: torch.device) -> None:
        """``device``: of what is exchanged."""
        self._device = device
        self._begun: list[tuple[dist.Work | None, Works]] = []
        self._waiting: queue.SimpleQueue[Works | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._added = 0
        self._thread: threading.Thread | None = None

    def begin(self, works: Works) -> None:
        """Begin an exchange of at most one collective."""
        self._begun.append((next(works, None), works))

    def add(self, works: Works) -> None:
        """Carry an exchange out when those before it have ended."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._carry_out, name="gradient-exchanges", daemon=True)
            self._thread.start()
        self._added += 1
        self._waiting.put(works)

    def wait(self) -> None:
        """Until all have ended. Raises what the first that failed has raised."""
        begun, self._begun = self._begun, []
        for first, works in begun:
            if first is not None:
                first.wait()
            _finish(works)
        added, self._added = self._added, 0
        failed = [each for each in [self._ended.get() for _ in range(added)] if each is not None]
        if failed:
            raise failed[0]

    def close(self) -> None:
        """Take no more."""
        self._waiting.put(None)

    def _carry_out(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        failed: BaseException | None = None
        while (works := self._waiting.get()) is not None:
            try:
                # After a failure ranks are at different places: nothing more is begun.
                if failed is None:
                    _finish(works)
            except BaseException as error:  # noqa: BLE001 - raised by whoever waits
                failed = error
            self._ended.put(failed)


def _finish(works: Works) -> None:
    for work in works:
        work.wait()
