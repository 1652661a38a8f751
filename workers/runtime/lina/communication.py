"""The thread of each rank that launches its micro-operations (Lina 4.2, step T2).

Only that thread uses the scheduler. Before each launch it handles all submitted and ended operations. One
more thread per class of traffic waits for launched operations. All threads end with `close`.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from moe.lina.micro_operations import MicroOperation, Traffic
from moe.lina.scheduler import Mode, PriorityScheduler
from workers.runtime.emulation.emulated_network import EmulatedWork

#: Begins a collective and returns its work.
Begin = Callable[[], "dist.Work | None"]
_STOP = 0


@dataclass(eq=False)
class Pending:
    """A submitted operation.

    Attributes:
        began_at: when earlier operations of its class had ended (monotonic clock); None until it has ended.
        ended_at: when it ended; None until then.
        span: its begin and end, in emulated time on an emulated device; None until it has ended.
    """

    operation: MicroOperation
    begin: Begin
    ready: torch.cuda.Event | None
    launched_at: float | None = None
    began_at: float | None = None
    ended_at: float | None = None
    span: tuple[float, float] | None = None
    error: BaseException | None = None
    work: dist.Work | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> None:
        """Wait until it has ended. Its results can then be read on the current stream.

        Raises:
            RuntimeError: it failed.
        """
        self.done.wait()
        if self.error is not None:
            raise RuntimeError(f"{self.operation.tensor} was not exchanged: {self.error}") from self.error
        # It has ended; this call passes the waiting thread to an emulated group.
        work, self.work = self.work, None
        if work is not None:
            work.wait()

    @property
    def seconds(self) -> float:
        """Duration on the link, without the wait for earlier operations of its class."""
        assert self.began_at is not None
        assert self.ended_at is not None
        return self.ended_at - self.began_at


class ScheduledCommunication:
    """All communication of one rank, in the order of its scheduler.

    All ranks submit the operations of one class and lane in the same order. Each class, and each lane, has
    its own process group.

    Attributes:
        mode: mode of the scheduler.
        on_end: called with each ended operation, in a thread of this object; None: not called.
    """

    def __init__(
        self,
        mode: Mode = Mode.BOUNDED_OVERLAP,
        *,
        control: dist.ProcessGroup | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Start the threads.

        Args:
            control: in mode LEADER, a gloo group of all ranks; its first rank publishes its launches.
            device: where tensors are; the CPU if None.

        Raises:
            ValueError: mode LEADER has no control group.
        """
        if mode is Mode.LEADER and control is None:
            raise ValueError("mode leader needs a control group")
        self.mode = mode
        self.on_end: Callable[[Pending], object] | None = None
        self._device = device or torch.device("cpu")
        self._control = control if mode is Mode.LEADER else None
        self._is_leader = self._control is None or dist.get_rank(self._control) == 0
        self._scheduler = PriorityScheduler(mode, is_leader=self._is_leader)
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._pending: dict[MicroOperation, Pending] = {}
        self._decisions: deque[int] = deque()
        self._publishing: deque[tuple[dist.Work, torch.Tensor]] = deque()
        self._failure: BaseException | None = None
        self._is_empty = threading.Condition()
        self._unfinished = 0
        self._launched: dict[Traffic, queue.SimpleQueue[Pending | None]] = {
            traffic: queue.SimpleQueue() for traffic in Traffic
        }
        self._threads = [self._thread("scheduler", self._run)]
        self._threads += [
            self._thread(traffic.name.lower(), partial(self._wait_for, launched))
            for traffic, launched in self._launched.items()
        ]
        if not self._is_leader:
            self._threads.append(self._thread("control", self._listen))

    @staticmethod
    def _thread(name: str, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"lina-{name}", daemon=True)
        thread.start()
        return thread

    # -- called by the thread that computes

    def submit(self, operations: Iterable[tuple[MicroOperation, Begin]]) -> list[Pending]:
        """Queue operations together. An all-to-all ends the hold.

        Args:
            operations: each with the call that starts it. Their tensors are ready on the current stream.
        """
        ready = None
        if self._device.type == "cuda":
            ready = torch.cuda.Event()
            ready.record(torch.cuda.current_stream(self._device))
        submitted = [Pending(operation, begin, ready) for operation, begin in operations]
        if submitted:
            with self._is_empty:
                self._unfinished += len(submitted)
            self._inbox.put(lambda: self._enqueue(submitted))
        return submitted

    def hold(self) -> None:
        """Launch no all-reduce until an all-to-all is submitted or `flush` is called."""
        self._inbox.put(partial(self._set_hold, True))

    def flush(self) -> None:
        """End the hold; wait until all submitted operations have ended.

        Raises:
            RuntimeError: an operation failed.
        """
        self._inbox.put(partial(self._set_hold, False))
        with self._is_empty:
            self._is_empty.wait_for(lambda: self._unfinished == 0)
        if self._failure is not None:
            raise RuntimeError(f"communication has failed: {self._failure}") from self._failure

    def close(self) -> None:
        """End the threads; no operation may be pending. In mode LEADER all ranks call this together."""
        self._inbox.put(None)
        for launched in self._launched.values():
            launched.put(None)
        if self._failure is None:
            for thread in self._threads:
                thread.join()

    # -- the scheduler's thread

    def _run(self) -> None:
        stream = _new_stream(self._device)
        with _as_current(stream):
            while self._handle_inbox():
                try:
                    self._launch(stream)
                except BaseException as error:  # noqa: BLE001 - raised where operations are waited for
                    self._fail(error)
        if self._control is not None and self._is_leader and self._failure is None:
            self._publish(_STOP)
            while self._publishing:
                self._publishing.popleft()[0].wait()

    def _handle_inbox(self) -> bool:
        """Wait for a message; handle it and all queued ones. Return False after the closing message."""
        message = self._inbox.get()
        while message is not None:
            message()
            if self._inbox.empty():
                return True
            message = self._inbox.get()
        return False

    def _enqueue(self, submitted: Sequence[Pending]) -> None:
        if self._failure is not None:
            for pending in submitted:
                self._finish(pending, self._failure)
            return
        self._pending |= {pending.operation: pending for pending in submitted}
        if any(pending.operation.traffic is Traffic.ALL_TO_ALL for pending in submitted):
            self._scheduler.hold = False
        self._scheduler.submit(pending.operation for pending in submitted)

    def _set_hold(self, hold: bool) -> None:
        self._scheduler.hold = hold

    def _launch(self, stream: torch.cuda.Stream | None) -> None:
        self._follow_known_decisions()
        for operation in self._scheduler.launch():
            pending = self._pending[operation]
            if stream is not None and pending.ready is not None:
                stream.wait_event(pending.ready)
            pending.launched_at = time.monotonic()
            if self._control is not None and self._is_leader:
                self._publish(_number(operation))
            pending.work = pending.begin()
            self._launched[operation.traffic].put(pending)

    def _after_end(self, pending: Pending, error: BaseException | None) -> None:
        self._pending.pop(pending.operation, None)
        if pending.operation in self._scheduler.running:
            self._scheduler.end(pending.operation)
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Launch nothing more; end all pending operations with the error."""
        self._failure = self._failure or error
        left, self._pending = list(self._pending.values()), {}
        self._scheduler = PriorityScheduler(self.mode, is_leader=self._is_leader)
        for pending in left:
            self._finish(pending, error)

    def _finish(self, pending: Pending, error: BaseException | None) -> None:
        with self._is_empty:
            if pending.done.is_set():
                return
            pending.error = error
            self._failure = self._failure or error
            # Release the tensors.
            pending.begin = _begin_nothing
            if error is None and self.on_end is not None:
                self.on_end(pending)
            pending.done.set()
            self._unfinished -= 1
            self._is_empty.notify_all()

    # -- threads that wait

    def _wait_for(self, launched: queue.SimpleQueue[Pending | None]) -> None:
        stream = _new_stream(self._device)
        last_end = 0.0
        with _as_current(stream):
            while (pending := launched.get()) is not None:
                error = _wait_until_done(pending.work, stream)
                assert pending.launched_at is not None
                pending.ended_at = time.monotonic()
                pending.began_at = max(pending.launched_at, last_end)
                last_end = pending.ended_at
                emulated = pending.work.span if isinstance(pending.work, EmulatedWork) else None
                pending.span = emulated or (pending.began_at, pending.ended_at)
                # The scheduler must see this end before an operation that depends on it is submitted.
                self._inbox.put(partial(self._after_end, pending, error))
                self._finish(pending, error)
                del pending

    # -- decisions of the leader

    def _publish(self, number: int) -> None:
        message = torch.tensor([number])
        work = dist.broadcast(message, group_src=0, group=self._control, async_op=True)
        self._publishing.append((work, message))
        while len(self._publishing) > 1 and self._publishing[0][0].is_completed():
            self._publishing.popleft()

    def _listen(self) -> None:
        message = torch.empty(1, dtype=torch.int64)
        while True:
            try:
                dist.broadcast(message, group_src=0, group=self._control)
            except RuntimeError as error:
                self._inbox.put(partial(self._fail, error))
                return
            number = int(message)
            if number == _STOP:
                return
            self._inbox.put(partial(self._decisions.append, number))

    def _follow_known_decisions(self) -> None:
        """Follow the leader's decisions up to the first whose operation is not submitted on this rank yet."""
        if not self._decisions:
            return
        known = {_number(operation): operation for operation in self._pending}
        while self._decisions and self._decisions[0] in known:
            self._scheduler.follow(known[self._decisions.popleft()])


def _begin_nothing() -> None:
    return None


def _wait_until_done(work: dist.Work | None, stream: torch.cuda.Stream | None) -> BaseException | None:
    """Wait for a collective; return its error, or None."""
    try:
        if work is not None:
            work.wait()
        if stream is not None:
            # NCCL's `wait` blocks only the stream, not the host.
            stream.synchronize()
    except BaseException as error:  # noqa: BLE001 - raised where the operation is waited for
        return error
    return None


def _number(operation: MicroOperation) -> int:
    """Return a number for an operation that is the same on all ranks, and never `_STOP`."""
    name = f"{operation.traffic.value}/{operation.piece}/{operation.tensor}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big") + 1


def _new_stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def _as_current(stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
    # With None, `torch.cuda.stream` does nothing.
    return torch.cuda.stream(stream)
