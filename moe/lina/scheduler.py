"""The priority scheduler of one device: all-to-all first, all-reduce in the gaps (Lina 4.2; step T2).

A state machine without clock, thread or network. The owner reports what was submitted and what has ended,
then asks what to launch. It reports everything that happens at one instant before it asks, so an all-to-all
goes first even if an all-reduce was submitted at the same instant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum

from moe.lina.micro_operations import MicroOperation, Traffic


class Mode(Enum):
    """How launches of the two classes relate.

    BOUNDED_OVERLAP: an all-to-all is launched at once, on a process group of its own, even beside the one
        running all-reduce of each lane; new all-reduces wait. Ranks need no coordination: an all-reduce
        does not wait for another lane, whose order may differ between ranks.
    LEADER: one operation at a time, in the order in which rank 0 launches.
    STRICT: one operation at a time, as published. Ranks whose orders differ deadlock, so it is for
        simulators and single processes.
    TWO_STREAMS: each class is a separate FIFO stream, as in systems without Lina. The baseline.
    """

    BOUNDED_OVERLAP = "bounded_overlap"
    LEADER = "leader"
    STRICT = "strict"
    TWO_STREAMS = "two_streams"


class PriorityScheduler:
    """Decides what one device launches next.

    At the end of a step the owner clears `hold` and waits until the scheduler `is_idle`.

    Attributes:
        hold: no all-reduce is launched, since an all-to-all is about to come. Set it when the backward pass
            of a layer's combine starts; clear it when that layer's first all-to-all is submitted.
        running: operations that were launched and have not ended, in the order of launches.
    """

    def __init__(self, mode: Mode = Mode.BOUNDED_OVERLAP, *, is_leader: bool = True) -> None:
        """`is_leader`: in mode LEADER, whether this is rank 0."""
        self.mode = mode
        self.hold = False
        self.running: list[MicroOperation] = []
        self._is_follower = mode is Mode.LEADER and not is_leader
        self._queues: dict[Traffic, deque[MicroOperation]] = {traffic: deque() for traffic in Traffic}
        self._decided: deque[MicroOperation] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self.running and not any(self._queues.values())

    def waiting(self, traffic: Traffic) -> tuple[MicroOperation, ...]:
        """Return the queued operations of a class, oldest first."""
        return tuple(self._queues[traffic])

    def submit(self, operations: Iterable[MicroOperation]) -> None:
        """Queue operations in this order."""
        for operation in operations:
            self._queues[operation.traffic].append(operation)

    def follow(self, operation: MicroOperation) -> None:
        """Record that rank 0 launched an operation. This rank launches in the same order."""
        self._decided.append(operation)

    def end(self, operation: MicroOperation) -> None:
        """Record that a running operation has ended.

        Raises:
            ValueError: it is not running.
        """
        if operation not in self.running:
            raise ValueError(f"piece {operation.piece} of {operation.tensor!r} is not running")
        self.running.remove(operation)

    def launch(self) -> list[MicroOperation]:
        """Return the operations to launch now, in order. They count as running from here on."""
        if self._is_follower:
            launched = self._next_decided()
        elif self.mode is Mode.TWO_STREAMS:
            launched = self._next_of_each_stream()
        elif self.mode is Mode.BOUNDED_OVERLAP:
            launched = self._all_to_alls_or_one_all_reduce()
        else:
            launched = self._next_by_priority()
        self.running += launched
        return launched

    def _next_by_priority(self) -> list[MicroOperation]:
        if self.running:
            return []
        return self._take(Traffic.ALL_TO_ALL) or self._take(Traffic.ALL_REDUCE)

    def _all_to_alls_or_one_all_reduce(self) -> list[MicroOperation]:
        all_to_alls = self.waiting(Traffic.ALL_TO_ALL)
        self._queues[Traffic.ALL_TO_ALL].clear()
        if all_to_alls or any(each.traffic is Traffic.ALL_TO_ALL for each in self.running) or self.hold:
            return list(all_to_alls)
        busy = {operation.lane for operation in self.running}
        queue = self._queues[Traffic.ALL_REDUCE]
        oldest: dict[str, MicroOperation] = {}
        for operation in queue:
            oldest.setdefault(operation.lane, operation)
        launched = [operation for lane, operation in oldest.items() if lane not in busy]
        for operation in launched:
            queue.remove(operation)
        return launched

    def _next_of_each_stream(self) -> list[MicroOperation]:
        busy = {operation.traffic for operation in self.running}
        return [operation for traffic in Traffic if traffic not in busy for operation in self._take(traffic)]

    def _next_decided(self) -> list[MicroOperation]:
        if self.running or not self._decided:
            return []
        operation = self._decided[0]
        queue = self._queues[operation.traffic]
        # Rank 0 may be ahead: its choice is launched once it is submitted here, and nothing else before.
        if operation not in queue:
            return []
        queue.remove(operation)
        self._decided.popleft()
        return [operation]

    def _take(self, traffic: Traffic) -> list[MicroOperation]:
        queue = self._queues[traffic]
        if not queue or (traffic is Traffic.ALL_REDUCE and self.hold):
            return []
        return [queue.popleft()]
