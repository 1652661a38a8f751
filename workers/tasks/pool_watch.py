"""Watches the pool of a Celery worker from inside, and ends a worker whose pool does no work any more.

A pool may be wedged: a child ended or was killed at a bad moment and is not replaced, or stands still. Its
parent lives on and answers Celery's own pings, so nobody outside notices while the queue's tasks wait. So the
parent looks at its children, has the pool replace those that ended, and sends a probe through the pool
itself. When both were wrong for a while, it ends, and whoever keeps it running (the supervisor of `make run`,
a container engine) starts it again. No task is lost: messages are acknowledged late, and are wake-ups alone.

While it lives it writes the monotonic clock into the file `WORKER_HEARTBEAT_FILE`, so that a parent that
stands still itself is noticed too.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import structlog
from celery import bootsteps

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0
#: How often a probe is sent, and sent again while none is answered: the one that had it may have been killed.
PROBE_SECONDS = 15.0
PROBE_AGAIN_SECONDS = 5.0
#: How long a probe may take through a pool that has a free child.
ANSWER_SECONDS = 10.0
#: How long a pool may be wrong: a child that ended is replaced within seconds.
WEDGED_SECONDS = 20.0
#: How long the parent's loop may stand still: it does while it waits for a broker that is away.
BLOCKED_SECONDS = 300.0
#: A task beyond its time limit is ended by the parent; one that is not by then explains nothing.
LIMIT_MARGIN_SECONDS = 30.0
EXIT_CODE = 70
_STANDS_STILL = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD, psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


class PoolHealth:
    """Whether a pool does its work, by what is seen of it. Times are of one monotonic clock, in seconds."""

    def __init__(self, now: float) -> None:
        self.looked_at = now
        self.healthy_at = now
        self._unanswered_since: float | None = None
        self._probed_at = now
        self._began: dict[str, float] = {}
        self._all_at_work = False

    def probe_due(self, now: float) -> bool:
        """Whether a probe should be sent.

        One that waits for a child that works is not sent again: each would take the place of a task in the
        end.
        """
        if self._unanswered_since is not None and self._all_at_work:
            return False
        wait = PROBE_SECONDS if self._unanswered_since is None else PROBE_AGAIN_SECONDS
        return now - self._probed_at >= wait

    def probe_sent(self, now: float) -> None:
        """A probe was put into the pool."""
        self._probed_at = now
        if self._unanswered_since is None:
            self._unanswered_since = now

    def probe_answered(self) -> None:
        """One came back."""
        self._unanswered_since = None

    def look(self, now: float, *, children: int, wanted: int, tasks: Mapping[str, float]) -> None:
        """Note what is seen.

        Args:
            children: that live and do not stand still.
            wanted: how many there should be.
            tasks: those under way, with their time limits in seconds.
        """
        self._leave_out(now - self.looked_at - LOOK_SECONDS)
        self.looked_at = now
        self._began = {task: self._began.get(task, now) for task in tasks}
        busy = sum(now - self._began[task] <= limit + LIMIT_MARGIN_SECONDS for task, limit in tasks.items())
        self._all_at_work = busy >= wanted
        answers = self._unanswered_since is None or now - self._unanswered_since <= ANSWER_SECONDS
        if children >= wanted and (answers or self._all_at_work):
            self.healthy_at = now

    def _leave_out(self, seconds: float) -> None:
        """Nobody could look after the pool for so long, as the loop stood still: a child that ended was not
        replaced, and an answer not heard. That is no fault of the pool's."""
        if seconds > 0:
            self.healthy_at += seconds
            if self._unanswered_since is not None:
                self._unanswered_since += seconds

    def problem(self, now: float) -> str | None:
        """Why the worker must end; None while it need not."""
        if now - self.looked_at > BLOCKED_SECONDS:
            return f"the worker's loop has stood still for {now - self.looked_at:.0f} s"
        if self.looked_at - self.healthy_at > WEDGED_SECONDS:
            return f"the pool has done no work for {self.looked_at - self.healthy_at:.0f} s"
        return None


def probe() -> bool:
    """What a child of the pool runs to show that it can."""
    return True


class PoolWatch(bootsteps.StartStopStep):
    """The part of a worker's start that begins to watch its pool."""

    requires = ("celery.worker.components:Pool", "celery.worker.components:Timer")

    def __init__(self, parent: Any, **options: Any) -> None:
        self._health = PoolHealth(time.monotonic())
        self._stopped = threading.Event()
        file = os.environ.get("WORKER_HEARTBEAT_FILE")
        self._heartbeat = Path(file) if file else None
        super().__init__(parent, **options)

    def start(self, parent: Any) -> None:
        """Begin to watch; pools without processes of their own cannot be wedged in this way."""
        if "processes" not in parent.pool.info:
            return
        self._health = PoolHealth(time.monotonic())
        parent.timer.call_repeatedly(LOOK_SECONDS, self._look, (parent,))
        threading.Thread(target=self._guard, args=(parent,), name="pool-watch", daemon=True).start()

    def stop(self, parent: Any) -> None:
        """A worker that stops ends its pool by itself."""
        self._stopped.set()

    def terminate(self, parent: Any) -> None:
        """The same."""
        self._stopped.set()

    def _look(self, worker: Any) -> None:
        """In the worker's loop, where the pool may be used."""
        from celery.worker import state  # here: nothing else that imports the application needs it

        now = time.monotonic()
        pool = worker.pool
        if not pool.active:
            return
        children = sum(_moves(pid) for pid in pool.info["processes"])
        if children < pool.num_processes:
            # A child's sentinel closes before its exit code is there. The pool hears of its end only once,
            # and where that comes too early it looks again after five seconds; a pool of one child does
            # nothing until then.
            pool.maintain_pool()
        self._health.look(
            now,
            children=children,
            wanted=pool.num_processes,
            tasks={request.id: _time_limit(request) for request in list(state.active_requests)},
        )
        if self._health.probe_due(now):
            self._health.probe_sent(now)
            pool.apply_async(probe, callback=self._answered)

    def _answered(self, *_: Any) -> None:
        self._health.probe_answered()

    def _guard(self, worker: Any) -> None:
        """In a thread of its own, as the loop may be what stands still."""
        while not self._stopped.wait(LOOK_SECONDS):
            problem = self._health.problem(time.monotonic())
            if problem is not None:
                log.error("worker ends itself to be started again", reason=problem)
                end_with_children()
            if self._heartbeat is not None:
                with suppress(OSError):
                    _write(self._heartbeat, repr(time.monotonic()))


def end_with_children(leave: Callable[[int], Any] = os._exit) -> None:
    """Kill the pool's processes, then leave: what is wedged ends in no other way."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.send_signal(signal.SIGKILL)
    sys.stderr.flush()
    leave(EXIT_CODE)


def _moves(pid: int | None) -> bool:
    """Whether a process lives and does not stand still."""
    try:
        return pid is not None and psutil.Process(pid).status() not in _STANDS_STILL
    except psutil.NoSuchProcess:
        return False


def _time_limit(request: Any) -> float:
    return float(request.task.time_limit or request.app.conf.task_time_limit or 0.0)


def _write(file: Path, text: str) -> None:
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(text, encoding="ascii")
    partial.replace(file)


def main(file: str, longest_seconds: str = "60") -> int:
    """For a container's health check: 0 while the worker that writes the file gives signs of life."""
    try:
        silent = time.monotonic() - float(Path(file).read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"no sign of life: {error}\n")
        return 1
    return 0 if 0 <= silent <= float(longest_seconds) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
