"""The time of an emulated accelerator, and how far the host machine fell behind it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from workers.links.client import wait_until
from workers.runtime.emulation.emulated_schedule import DeviceSchedule

#: Waits shorter than this are put together: each one costs the host machine computing time.
GRAIN_SECONDS = 0.004


@dataclass(eq=False)
class Asked:
    """A collective that was asked for.

    Attributes:
        began_at, ended_at: in emulated time, None while it is on its way.
        in_course: whether an exchange with a course of its own goes on when it has ended; else this is up to
            the thread that has asked.
    """

    began_at: float | None = None
    ended_at: float | None = None
    in_course: bool = False


class EmulatedClock:
    """The time of one emulated accelerator, on the monotonic clock.

    It is never ahead of that clock for long: whoever spends emulated time waits until it is over. It lags
    while the host machine is busy, and what lags is made up for, as long as it is less than an iteration. So
    a hiccup of the host changes no measurement, but a host that is too slow altogether shows.

    Threads may be at other times than the device: exchanges go on beside the backward pass. Each has a time
    of its own, which is that of the device until something says otherwise.

    Attributes:
        at: the emulated time.
        lost_seconds: lag that was too long to be made up for, all in all.
        coded_seconds: that encoding and decoding took of its passes' time, all in all.
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
        """When the device has encoded and decoded what it was given."""
        return self._schedule.coded_until

    def passes(self, seconds: float) -> None:
        """Something that is not emulated took so long: it takes emulated time too. What the host was behind
        before, it is still: that is no cost of what came between."""
        self.at += seconds
        self._be_at(self.at)

    def begin(self, patience_seconds: float) -> None:
        """An iteration begins; lag of more than `patience_seconds` is lost."""
        self._patience_seconds = patience_seconds
        lag = time.monotonic() - self.at
        if lag > patience_seconds:
            self.lose(lag)
            self.at += lag
        self._began_at = self.at
        self._in_iteration = True
        with self._lock:
            self._schedule.begin()
        # The passes are this thread's.
        self._own.asked_by_passes = []
        self._be_at(self.at)

    def lose(self, seconds: float) -> None:
        """The host was too slow by so much, and nothing will make up for it."""
        with self._lock:
            self.lost_seconds += seconds

    def now(self) -> float:
        """When something begins that this thread asks for now: in emulated time during an iteration, else at
        once. Lag of more than the patience is lost here too: what is asked for only now ends later."""
        if getattr(self._own, "in_course", False):
            return self.thread_at
        now = time.monotonic()
        at = self.thread_at
        if at < self._began_at:
            # The device's time is the end of the layer that it computes now. Another thread is not there yet.
            at = self.at if self._has_passes else min(self.at, max(now, self._began_at))
        if now - at <= self._patience_seconds:
            return at
        if self._in_iteration:
            self._lose_until(now, at)
        return now

    def _lose_until(self, now: float, at: float) -> None:
        """What other threads said of the same lag counts once, and no time that this one waited for what it
        asked for before."""
        waited_until = getattr(self._own, "waited_until", float("-inf"))
        with self._lock:
            self.lost_seconds += max(0.0, now - max(at, self._lost_until, waited_until))
            self._lost_until = max(now, self._lost_until)

    @property
    def thread_at(self) -> float:
        """To when this thread has come, in this iteration or an earlier one."""
        return float(getattr(self._own, "at", float("-inf")))

    def be_at(self, at: float) -> None:
        """This thread is at `at` now, in the course of something: what follows begins then, however late this
        host is."""
        self._be_at(at, in_course=True)

    def _be_at(self, at: float, *, in_course: bool = False) -> None:
        self._own.at, self._own.in_course = at, in_course

    def asks(self) -> Asked:
        """This thread asks for a collective."""
        self._own.asked = asked = Asked()
        if self._has_passes:
            self._own.asked_by_passes.append(asked)
        return asked

    def waited(self, asked: Asked, *, holds_passes: bool = False) -> None:
        """Note that this thread has waited until that ended.

        Args:
            holds_passes: whether the device computes next with what it brought, so that passes go on no
                earlier.
        """
        if asked.ended_at is None:
            return
        self._own.waited_until = max(getattr(self._own, "waited_until", asked.ended_at), asked.ended_at)
        if holds_passes and self._has_passes and self._in_iteration:
            with self._lock:
                self.at = max(self.at, asked.ended_at)
            self._be_at(self.at)

    def backward_done(self) -> None:
        """The passes are done, and what they have asked for has ended: that of DDP, which waits for it. They
        wait for no exchange that has a course of its own, whether or not that is over on this host."""
        ends = [
            asked.ended_at
            for asked in getattr(self._own, "asked_by_passes", ())
            if not asked.in_course and asked.ended_at is not None
        ]
        self.be_at(max(self.at, *ends) if ends else self.at)

    @property
    def _has_passes(self) -> bool:
        """Whether this thread's is what the device computes, so that what it asks for follows on that."""
        return hasattr(self._own, "asked_by_passes")

    @property
    def asked(self) -> Asked | None:
        """What this thread asked for last."""
        return getattr(self._own, "asked", None)

    def spend(self, seconds: float) -> None:
        """Let emulated time pass, and wait until it has, to within GRAIN_SECONDS."""
        with self._lock:
            self.at, coded_seconds = self._schedule.layer(self.at, seconds)
            self.coded_seconds += coded_seconds
            at = self.at
        self._be_at(at)
        _wait(at)

    def code(self, seconds: float, ready_at: float) -> float:
        """The device encodes or decodes, which takes so long of what it computes with: from `ready_at` on,
        when it has done what it was given before. Waits until it has; returns when that is.

        What another thread than that of the passes asks for was asked for at `ready_at`, however much further
        those have come meanwhile because this host was late.
        """
        with self._lock:
            if self._has_passes:
                asked_at = free_at = max(self.at, ready_at)
            else:
                asked_at, free_at = ready_at, self._schedule.layer_end(ready_at)
            # A thread asks for one thing after the other.
            self._own.coding_asked_at = max(asked_at, getattr(self._own, "coding_asked_at", asked_at))
            began = self._schedule.code(seconds, self._own.coding_asked_at, free_at)
            # What is computed beside it takes so much longer; not what is computed before.
            if began <= self.at:
                self.at += seconds
                self.coded_seconds += seconds
            else:
                self._schedule.owe(began, seconds)
        self.be_at(began + seconds)
        _wait(began + seconds)
        return began + seconds

    def reach(self, at: float) -> None:
        """Wait for something that ends at `at`, and for what is coded."""
        self.at = max(self.at, at, self.coded_until)
        self._be_at(self.at)
        self._in_iteration = False
        wait_until(self.at)

    @property
    def lag_seconds(self) -> float:
        """By how much the host is behind now."""
        return max(0.0, time.monotonic() - self.at)


def _wait(at: float) -> None:
    if at - time.monotonic() > GRAIN_SECONDS:
        wait_until(at)


class Overrun:
    """What a stretch of iterations took, and how much longer than emulated, because the host was too slow for
    them.

    It goes by emulated time, which all ranks have alike where an iteration ends. By the host's own clock, a
    rank that hears of that end later than the others would begin in the middle of their next iteration.
    """

    def __init__(self, clock: EmulatedClock) -> None:
        """The stretch begins at an iteration's end. Lag of before is neither charged nor a gain."""
        self._clock = clock
        self._started = clock.at
        self._lost_seconds = clock.lost_seconds
        self._lag_seconds = clock.lag_seconds

    def leave_out(self, seconds: float) -> None:
        """Something that is no iteration took so long meanwhile."""
        self._started += seconds

    def elapsed_seconds(self) -> float:
        """Emulated time since the beginning, and what the host is behind more than it was then."""
        return self._clock.at - self._started + self._more_lag_seconds

    def share(self) -> float:
        """Seconds lost since the beginning, for each second of emulated time."""
        lost_seconds = self._clock.lost_seconds - self._lost_seconds + self._more_lag_seconds
        emulated_seconds = self.elapsed_seconds() - lost_seconds
        return lost_seconds / emulated_seconds if emulated_seconds > 0 else 0.0

    @property
    def _more_lag_seconds(self) -> float:
        return max(0.0, self._clock.lag_seconds - self._lag_seconds)
