"""Watches the pool of a Celery worker from inside, and ends a worker whose pool no longer works.

A pool may be wedged: a child ended or was killed at a bad moment and is not replaced, or hangs. The parent
still answers Celery's pings, so the failure is invisible from outside while the queue's tasks wait. The
parent therefore checks its children, makes the pool replace ended ones, and sends a probe through the pool.
If the pool stays unhealthy for a while, the parent ends, and its supervisor (`make run`'s or a container
engine) restarts it. No task is lost: messages are acknowledged late, and are only wake-ups.

The parent periodically writes the monotonic clock into the file `WORKER_HEARTBEAT_FILE`, so that a hanging
parent is noticed too.
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
#: Periods of probes, and of repeated probes while none is answered: the child with the probe may be killed.
PROBE_SECONDS = 15.0
PROBE_AGAIN_SECONDS = 5.0
#: Maximum time of a probe through a pool with a free child.
ANSWER_SECONDS = 10.0
#: Maximum time for which a pool may be unhealthy: an ended child is replaced within seconds.
WEDGED_SECONDS = 20.0
#: Maximum time for which the parent's loop may be blocked, such as by an unreachable broker.
BLOCKED_SECONDS = 300.0
#: The parent ends a task at its time limit; a task that runs longer than this beyond it counts as hanging.
LIMIT_MARGIN_SECONDS = 30.0
EXIT_CODE = 70
_STANDS_STILL = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD, psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


class PoolHealth:
    """The health of a pool, from observations. Times are of one monotonic clock, in seconds."""

    def __init__(self, now: float) -> None:
        self.looked_at = now
        self.healthy_at = now
        self._unanswered_since: float | None = None
        self._probed_at = now
        self._began: dict[str, float] = {}
        self._all_at_work = False

    def probe_due(self, now: float) -> bool:
        """Return whether a probe is due.

        No probe is repeated while all children work: the probes would pile up and displace tasks.
        """
        if self._unanswered_since is not None and self._all_at_work:
            return False
        wait = PROBE_SECONDS if self._unanswered_since is None else PROBE_AGAIN_SECONDS
        return now - self._probed_at >= wait

    def probe_sent(self, now: float) -> None:
        """Note that a probe was sent through the pool."""
        self._probed_at = now
        if self._unanswered_since is None:
            self._unanswered_since = now

    def probe_answered(self) -> None:
        """Note that a probe was answered."""
        self._unanswered_since = None

    def look(self, now: float, *, children: int, wanted: int, tasks: Mapping[str, float]) -> None:
        """Take an observation.

        Args:
            children: number of children that live and do not hang.
            wanted: number of children that there should be.
            tasks: time limits in seconds of the running tasks.
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
        """Exclude time in which the loop was blocked: the pool is not at fault that an ended child was not
        replaced, or an answer not read."""
        if seconds > 0:
            self.healthy_at += seconds
            if self._unanswered_since is not None:
                self._unanswered_since += seconds

    def problem(self, now: float) -> str | None:
        """Return why the worker must end; None if it need not."""
        if now - self.looked_at > BLOCKED_SECONDS:
            return f"the worker's loop has stood still for {now - self.looked_at:.0f} s"
        if self.looked_at - self.healthy_at > WEDGED_SECONDS:
            return f"the pool has done no work for {self.looked_at - self.healthy_at:.0f} s"
        return None


def probe() -> bool:
    """Return True; a child of the pool runs this to show that it works."""
    return True


class PoolWatch(bootsteps.StartStopStep):
    """The step of a worker's start that begins to watch its pool."""

    requires = ("celery.worker.components:Pool", "celery.worker.components:Timer")

    def __init__(self, parent: Any, **options: Any) -> None:
        self._health = PoolHealth(time.monotonic())
        self._stopped = threading.Event()
        file = os.environ.get("WORKER_HEARTBEAT_FILE")
        self._heartbeat = Path(file) if file else None
        super().__init__(parent, **options)

    def start(self, parent: Any) -> None:
        """Begin to watch; pools without processes cannot be wedged in this way."""
        if "processes" not in parent.pool.info:
            return
        self._health = PoolHealth(time.monotonic())
        parent.timer.call_repeatedly(LOOK_SECONDS, self._look, (parent,))
        threading.Thread(target=self._guard, args=(parent,), name="pool-watch", daemon=True).start()

    def stop(self, parent: Any) -> None:
        """Stop watching: a worker that stops also ends its pool."""
        self._stopped.set()

    def terminate(self, parent: Any) -> None:
        """Stop watching."""
        self._stopped.set()

    def _look(self, worker: Any) -> None:
        """Check the pool; runs in the worker's loop, where the pool may be used."""
        from celery.worker import state  # here: nothing else that imports the application needs it

        now = time.monotonic()
        pool = worker.pool
        if not pool.active:
            return
        children = sum(_moves(pid) for pid in pool.info["processes"])
        if children < pool.num_processes:
            # A child's sentinel closes before its exit code is available. The pool is notified only once; if
            # that is too early, it checks again after five seconds, in which a pool of one child is idle.
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
        """End a worker with a problem; runs in its own thread, as the loop may be blocked."""
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
    """Return whether a process exists and does not hang."""
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
    """Return 0 while the worker that writes the file is alive, else 1; for a container's health check."""
    try:
        silent = time.monotonic() - float(Path(file).read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"no sign of life: {error}\n")
        return 1
    return 0 if 0 <= silent <= float(longest_seconds) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
