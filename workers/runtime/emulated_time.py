"""The time of an emulated accelerator, and how far the host machine fell behind it."""

from __future__ import annotations

import time

from workers.links.client import wait_until

#: Waits shorter than this are put together: each one costs the host machine computing time.
GRAIN_SECONDS = 0.004


class EmulatedClock:
    """The time of one emulated accelerator, on the monotonic clock.

    It is never ahead of that clock for long: whoever spends emulated time waits until it is over. It lags
    while the host machine is busy, and what lags is made up for, as long as it is less than an iteration. So
    a hiccup of the host changes no measurement, but a host that is too slow altogether shows.

    Attributes:
        at: the emulated time.
        lost_seconds: lag that was too long to be made up for, all in all.
    """

    def __init__(self) -> None:
        self.at = time.monotonic()
        self.lost_seconds = 0.0
        self._patience_seconds = 0.0

    def passes(self, seconds: float) -> None:
        """Something that is not emulated took so long: it takes emulated time too. What the host was behind
        before, it is still: that is no cost of what came between."""
        self.at += seconds

    def begin(self, patience_seconds: float) -> None:
        """An iteration begins; lag of more than `patience_seconds` is lost."""
        self._patience_seconds = patience_seconds
        lag = time.monotonic() - self.at
        if lag > patience_seconds:
            self.lost_seconds += lag
            self.at += lag

    def now(self) -> float:
        """When something begins that is asked for now: in emulated time during an iteration, else at once."""
        now = time.monotonic()
        return self.at if now - self.at <= self._patience_seconds else now

    def spend(self, seconds: float) -> None:
        """Let emulated time pass, and wait until it has, to within GRAIN_SECONDS."""
        self.at += seconds
        if self.at - time.monotonic() > GRAIN_SECONDS:
            wait_until(self.at)

    def reach(self, at: float) -> None:
        """Wait for something that ends at `at`."""
        self.at = max(self.at, at)
        wait_until(self.at)

    @property
    def lag_seconds(self) -> float:
        """By how much the host is behind now."""
        return max(0.0, time.monotonic() - self.at)


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
