"""The time of an emulated accelerator, and the host machine's lag behind it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from emulated_links.client import wait_until
from workers.runtime.emulation.emulated_schedule import DeviceSchedule

#: Shorter waits are merged, as each wait costs the host machine computing time.
GRAIN_SECONDS = 0.004


@dataclass(eq=False)
class Asked:
    """A started collective.

    Attributes:
        began_at, ended_at: emulated begin and end; None until it has ended.
        in_course: whether an exchange with its own emulated time continues after it; otherwise the thread
            that started it does.
    """

    began_at: float | None = None
    ended_at: float | None = None
    in_course: bool = False


class EmulatedClock:
    """The time of one emulated accelerator, on the scale of the monotonic clock.

    It is never ahead of that clock for long: a thread that spends emulated time waits until it is over. It
    lags while the host machine is busy, and catches up if the lag is less than an iteration. A short stall of
    the host thus changes no measurement, but a host that is too slow shows.

    Threads may be at other times than the device, as exchanges run beside the backward pass. Each thread has
    its own time, which is the device's until it is set.

    Attributes:
        at: the emulated time.
        lost_seconds: total lag that was too long to catch up.
        coded_seconds: total time by which encoding and decoding delayed the passes.
    """

    def __init__(self) -> None:
        self.at = time.monotonic()
        self.lost_seconds = 0.0
        self._patience_seconds = 0.0
        self._began_at = self.at
        self._schedule = DeviceSchedule(self.at)
        self.coded_seconds = 0.0
        self._in_iteration = False
        self._lost_until = self.at
        self._lock = threading.Lock()
        self._own = threading.local()

    @property
    def coded_until(self) -> float:
        """End of all submitted encoding and decoding."""
        return self._schedule.coded_until

    def passes(self, seconds: float) -> None:
        """Advance emulated time by real work of `seconds`. The host's earlier lag is unchanged."""
        self.at += seconds
        self._be_at(self.at)

    def begin(self, patience_seconds: float) -> None:
        """Begin an iteration; count lag of more than `patience_seconds` as lost."""
        self._patience_seconds = patience_seconds
        lag = time.monotonic() - self.at
        if lag > patience_seconds:
            self.lose(lag)
            self.at += lag
        self._began_at = self.at
        self._in_iteration = True
        with self._lock:
            self._schedule.begin()
        # This thread runs the passes.
        self._own.asked_by_passes = []
        self._be_at(self.at)

    def lose(self, seconds: float) -> None:
        """Count lag of the host that cannot be caught up."""
        with self._lock:
            self.lost_seconds += seconds

    def now(self) -> float:
        """Return the begin of work that this thread submits now: in emulated time during an iteration, else
        the current time. Lag beyond the patience is lost, as work submitted this late ends later."""
        if getattr(self._own, "in_course", False):
            return self.thread_at
        now = time.monotonic()
        at = self.thread_at
        if at < self._began_at:
            # The device's time is the end of its current layer, which other threads have not reached yet.
            at = self.at if self._has_passes else min(self.at, max(now, self._began_at))
        if now - at <= self._patience_seconds:
            return at
        if self._in_iteration:
            self._lose_until(now, at)
        return now

    def _lose_until(self, now: float, at: float) -> None:
        """Count lost lag once for all threads, without the time that this thread waited for collectives."""
        waited_until = getattr(self._own, "waited_until", float("-inf"))
        with self._lock:
            self.lost_seconds += max(0.0, now - max(at, self._lost_until, waited_until))
            self._lost_until = max(now, self._lost_until)

    @property
    def thread_at(self) -> float:
        """This thread's emulated time, in this iteration or an earlier one; -inf if not set."""
        return float(getattr(self._own, "at", float("-inf")))

    def be_at(self, at: float) -> None:
        """Set this thread's emulated time within an exchange: later work begins at `at`, even on a late
        host."""
        self._be_at(at, in_course=True)

    def _be_at(self, at: float, *, in_course: bool = False) -> None:
        self._own.at, self._own.in_course = at, in_course

    def asks(self) -> Asked:
        """Note that this thread starts a collective."""
        self._own.asked = asked = Asked()
        if self._has_passes:
            self._own.asked_by_passes.append(asked)
        return asked

    def waited(self, asked: Asked, *, holds_passes: bool = False) -> None:
        """Note that this thread has waited for a collective.

        Args:
            holds_passes: whether the passes depend on its result and continue no earlier.
        """
        if asked.ended_at is None:
            return
        self._own.waited_until = max(getattr(self._own, "waited_until", asked.ended_at), asked.ended_at)
        if holds_passes and self._has_passes and self._in_iteration:
            with self._lock:
                self.at = max(self.at, asked.ended_at)
            self._be_at(self.at)

    def backward_done(self) -> None:
        """End the passes, no earlier than the collectives that they started, as DDP waits for these.
        Exchanges with their own emulated time are not waited for."""
        ends = [
            asked.ended_at
            for asked in getattr(self._own, "asked_by_passes", ())
            if not asked.in_course and asked.ended_at is not None
        ]
        self.be_at(max(self.at, *ends) if ends else self.at)

    @property
    def _has_passes(self) -> bool:
        """Whether this thread runs the device's passes, so that its collectives follow on them."""
        return hasattr(self._own, "asked_by_passes")

    @property
    def asked(self) -> Asked | None:
        """The collective that this thread started last."""
        return getattr(self._own, "asked", None)

    def spend(self, seconds: float) -> None:
        """Advance emulated time by a layer of `seconds`, and wait for it to within GRAIN_SECONDS."""
        with self._lock:
            self.at, coded_seconds = self._schedule.layer(self.at, seconds)
            self.coded_seconds += coded_seconds
            at = self.at
        self._be_at(at)
        _wait(at)

    def code(self, seconds: float, ready_at: float) -> float:
        """Encode or decode for `seconds` on the device, after `ready_at` and earlier codec operations. Wait
        for the end and return it.

        An operation of a thread other than the passes' counts as submitted at `ready_at`, even if the passes
        are further because the host was late.
        """
        with self._lock:
            if self._has_passes:
                asked_at = free_at = max(self.at, ready_at)
            else:
                asked_at, free_at = ready_at, self._schedule.layer_end(ready_at)
            # A thread submits its operations in order.
            self._own.coding_asked_at = max(asked_at, getattr(self._own, "coding_asked_at", asked_at))
            began = self._schedule.code(seconds, self._own.coding_asked_at, free_at)
            # It delays the layers that run beside it, not earlier ones.
            if began <= self.at:
                self.at += seconds
                self.coded_seconds += seconds
            else:
                self._schedule.owe(began, seconds)
        self.be_at(began + seconds)
        _wait(began + seconds)
        return began + seconds

    def reach(self, at: float) -> None:
        """End the iteration at `at` or at the end of encoding and decoding, and wait for that time."""
        self.at = max(self.at, at, self.coded_until)
        self._be_at(self.at)
        self._in_iteration = False
        wait_until(self.at)

    @property
    def lag_seconds(self) -> float:
        """The host's current lag in seconds."""
        return max(0.0, time.monotonic() - self.at)


def _wait(at: float) -> None:
    if at - time.monotonic() > GRAIN_SECONDS:
        wait_until(at)


class Overrun:
    """Duration of a stretch of iterations, and its overrun: how much longer than emulated it took because the
    host was too slow.

    It is measured in emulated time, which is equal on all ranks at the end of an iteration. By the host's
    clock, a rank that is late would begin in the middle of the others' next iteration.
    """

    def __init__(self, clock: EmulatedClock) -> None:
        """Begin the stretch at an iteration's end. Earlier lag does not count."""
        self._clock = clock
        self._started = clock.at
        self._lost_seconds = clock.lost_seconds
        self._lag_seconds = clock.lag_seconds

    def leave_out(self, seconds: float) -> None:
        """Exclude `seconds` of work other than iterations."""
        self._started += seconds

    def elapsed_seconds(self) -> float:
        """Return the emulated time since the beginning, plus the increase of the host's lag."""
        return self._clock.at - self._started + self._more_lag_seconds

    def share(self) -> float:
        """Return the overrun: seconds lost since the beginning, per second of emulated time."""
        lost_seconds = self._clock.lost_seconds - self._lost_seconds + self._more_lag_seconds
        emulated_seconds = self.elapsed_seconds() - lost_seconds
        return lost_seconds / emulated_seconds if emulated_seconds > 0 else 0.0

    @property
    def _more_lag_seconds(self) -> float:
        return max(0.0, self._clock.lag_seconds - self._lag_seconds)
