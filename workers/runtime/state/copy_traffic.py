"""When this rank's copies are sent: it measures when its job leaves the network idle, plans, allows its store
to send a number of bytes in each idle span, and measures the cost of copies.

The plan is `recovery.traffic.plan`'s; this module measures iterations for it and follows it (docs/decisions,
"The runtime plans its copies"). Until there is a plan, copies are sent at once, and seldom enough that
iterations without copies can be measured.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from statistics import median, median_high
from typing import Any, Protocol

from recovery.store.allowances import SUB_BUFFER_BYTES, SUB_BUFFERS, Sending
from recovery.store.client import Copied
from recovery.traffic.idle_spans import (
    WARM_UP_ITERATIONS,
    IdleProfile,
    StampedIteration,
    idle_profile,
    threshold_seconds,
)
from recovery.traffic.link import Link, SubBuffers
from recovery.traffic.modes import TrafficMode
from recovery.traffic.partition import USABLE_SHARE
from recovery.traffic.plan import CopyPlan, CopyTask, PlannedSpan, plan_copies

_log = logging.getLogger(__name__)

PROFILED_ITERATIONS = 20
#: Profiling ends after this time with fewer iterations, if there are at least LEAST_PROFILED.
PROFILE_SECONDS = 60.0
LEAST_PROFILED = 4
#: Iterations that differ in their collectives give no profile; after MOST_ATTEMPTS there is no plan.
MOST_ATTEMPTS = 3
#: Minimum time between points while iterations without copies are measured.
PROFILING_PAUSE_SECONDS = 1.0
#: Points between two reviews of their cost.
POINTS_BETWEEN_REVIEWS = 16
#: After this many points, one iteration has none, so that iterations of both kinds are measured. The loss of
#: a server just then costs one more iteration.
POINTS_BETWEEN_RESTS = 64
LEAST_MEASURED = 6
MEASURED_KEPT = 64
#: Excess costs below this share of an iteration count as noise.
NOTICED_SHARE = 0.02
#: Allowed beyond the planned bytes, as versions differ a little in size.
_SPARE_BYTES = 16 << 10
_PAUSE_ITERATIONS = 3.0
_PATIENCE = 4.0
REPORT_PAUSE_SECONDS = 30.0


class Sends(Protocol):
    """The part of a store's client that this module needs."""

    def idle(self) -> bool: ...

    def allow(self, size: int, within_seconds: float | None, takes_seconds: float) -> None: ...

    def copied(self) -> Copied | None: ...


class CopyTraffic:
    """One rank's copies. Iterations are stamped from the thread that trains, collectives from any."""

    def __init__(
        self,
        store: Sends,
        *,
        mode: TrafficMode,
        share: float,
        failures_per_second: float,
        durable_seconds: float,
        most_every: int | None = None,
        now: Callable[[], float],
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        """Begin without a plan.

        Args:
            share: maximum share of the time that copies may take.
            failures_per_second: failure rate of all servers on which the job trains, together.
            durable_seconds: time between two durable points; points in memory are rarer only if `share`
                requires it.
            most_every: maximum number of iterations between points, at any cost; None: no maximum.
            now: the clock of iterations and collectives, in seconds.
            tell: reports a plan and its cost.
        """
        self.mode = mode
        self._store = store
        self._share = share
        self._failures_per_second = failures_per_second
        self._durable_seconds = durable_seconds
        self._most_every = most_every
        self._now = now
        self._tell = tell
        self._lock = threading.Lock()
        self._plan: CopyPlan | None = None
        self._spans: dict[int, PlannedSpan] = {}
        #: Whether the bytes that fit no span are being sent.
        self._overflowing = False
        self._profile: IdleProfile | None = None
        self._stamped: list[StampedIteration] = []
        self._stamping_since: float | None = None
        self._attempts = 0
        self._vote_place = 0
        # The iteration under way.
        self._began: float | None = None
        self._transfers: list[tuple[float, float]] = []
        self._busy = False
        # Points.
        self._since_point = 0
        #: Actual numbers of iterations between points under a plan.
        self._apart: deque[int] = deque(maxlen=POINTS_BETWEEN_REVIEWS)
        self._written_at = float("-inf")
        self._bytes = 0
        self._points = 0
        self._write_seconds = 0.0
        self._heard: int | None = None
        self._rates: deque[float] = deque(maxlen=8)
        self._startup_seconds = 0.0
        self._delay_seconds = float("inf")
        self._peers = 0
        # Cost: seconds of iterations with and without copies.
        self._with: deque[float] = deque(maxlen=MEASURED_KEPT)
        self._without: deque[float] = deque(maxlen=MEASURED_KEPT)
        self._cost_seconds = 0.0
        self._told_at = float("-inf")
        self._told_measured = False

    # -- an iteration

    def begins(self) -> None:
        """Note that an iteration begins, with its first idle span."""
        self._listen()
        with self._lock:
            self._began = self._now()
            self._transfers = []
            self._since_point += 1
        self._busy = not self._store.idle()
        self._gap(0)

    def votes(self) -> None:
        """Note that the ranks now vote on the next point."""
        now = self._now()
        with self._lock:
            self._vote_place = len(self._transfers)
        self.collective(now, now)

    def collective(self, began: float, ended: float) -> None:
        """Note that training used the network in this time. May be called from any thread."""
        with self._lock:
            if self._began is None:
                return
            self._transfers.append((max(began, self._began), max(ended, self._began)))
            place = len(self._transfers)
        self._gap(place)

    def ends(self) -> None:
        """Note that the iteration is over."""
        now = self._now()
        with self._lock:
            began, self._began = self._began, None
            transfers = tuple((min(one, now), min(other, now)) for one, other in self._transfers)
        if began is None:
            return
        quiet = not self._busy and self._store.idle()
        if self._plan is not None:
            (self._without if quiet else self._with).append(now - began)
        elif quiet and self._peers and self._attempts < MOST_ATTEMPTS:
            self._stamp(StampedIteration(began, now, transfers))

    def stops(self) -> None:
        """Note that training stops, and allow all pending copies at once."""
        self._store.allow(self._bytes * max(1, self._peers), None, 0.0)

    def _gap(self, place: int) -> None:
        """Allow a pending copy to use the idle span that begins."""
        plan, span = self._plan, self._spans.get(place)
        if plan is None or span is None or not self._busy or self._overflowing:
            return
        if plan.overflows and span is plan.spans[-1]:
            # Bytes that fit no span are sent after the last collective, however long that takes.
            self._overflowing = True
            self._store.allow(self._bytes * self._peers, None, 0.0)
        elif span.bytes:
            self._store.allow(span.bytes, span.seconds, USABLE_SHARE * span.seconds)

    # -- points

    def due(self) -> bool:
        """Return whether a point is due after the current iteration."""
        if self.mode is TrafficMode.BLOCKING or not self._peers:
            return True
        if self._plan is None:
            if self._attempts >= MOST_ATTEMPTS:
                return True
            return self._since_point >= 2 and (self.overdue() or self._pause() >= PROFILING_PAUSE_SECONDS)
        may_rest = self._plan.every == 1 != self._most_every
        rests = may_rest and self._points and self._points % POINTS_BETWEEN_RESTS == 0
        return self._since_point >= (2 if rests else self._plan.every)

    def overdue(self) -> bool:
        """Return whether the owner's `most_every` requires a point now, at any cost."""
        return self._most_every is not None and self._since_point >= self._most_every

    def sending(self) -> Sending:
        """Return how the next point's copies are sent."""
        buffers = 1 if self.mode is TrafficMode.WITHOUT_PIPELINE else SUB_BUFFERS
        if self._plan is None or self._profile is None:
            return Sending(buffers=buffers)
        iteration_seconds = self._profile.iteration_seconds
        pause_seconds = max(1.0, _PAUSE_ITERATIONS * iteration_seconds)
        return Sending.bounded(pause_seconds, _PATIENCE * self._plan.iterations * iteration_seconds, buffers)

    def written(self, size: int, seconds: float) -> None:
        """Note that a point of `size` bytes was written to the store in `seconds`."""
        if self._plan is not None:
            self._apart.append(self._since_point)
        self._since_point = 0
        self._overflowing = False
        self._written_at = self._now()
        self._bytes, self._write_seconds = size, seconds
        if self._plan is not None:
            self._points += 1
            if self._points == LEAST_MEASURED + 1 or self._points % POINTS_BETWEEN_REVIEWS == 0:
                self._review()

    def _pause(self) -> float:
        return self._now() - self._written_at

    def _listen(self) -> None:
        """Read the measurements of the last copies from the store."""
        copied = self._store.copied()
        if copied is None or copied.iteration == self._heard:
            return
        self._heard = copied.iteration
        self._peers = copied.peers
        if copied.seconds > 0.0 and copied.bytes:
            self._rates.append(copied.bytes / copied.seconds)
        self._startup_seconds = copied.startup_seconds
        if self._plan is None:
            delay_seconds = max(0.0, copied.at - self._written_at - copied.seconds)
            self._delay_seconds = min(self._delay_seconds, delay_seconds)

    # -- profile and plan

    def _stamp(self, iteration: StampedIteration) -> None:
        self._stamped.append(iteration)
        if self._stamping_since is None:
            self._stamping_since = iteration.began
        late = iteration.ended - self._stamping_since >= PROFILE_SECONDS
        enough = WARM_UP_ITERATIONS + PROFILED_ITERATIONS
        if len(self._stamped) < enough and not (late and len(self._stamped) > LEAST_PROFILED):
            return
        warm_up = WARM_UP_ITERATIONS if len(self._stamped) >= enough else 1
        try:
            self._profile = idle_profile(
                self._stamped, threshold_seconds(self._startup_seconds), warm_up=warm_up
            )
            self._make_plan()
            self._without.extend(one.ended - one.began for one in self._stamped[warm_up:])
        except ValueError as error:
            self._attempts += 1
            _log.info("no plan for copies yet: %s", error)
        self._stamped, self._stamping_since = [], None

    def _make_plan(self) -> None:
        """Compute and report a plan. Raise ValueError if there is none."""
        profile = self._profile
        if profile is None or not self._rates or self.mode is TrafficMode.BLOCKING:
            return
        link = Link(max(self._rates) if self._plan is None else median(self._rates), self._startup_seconds)
        task = CopyTask(
            self._bytes + _SPARE_BYTES,
            1 + self._peers,
            link,
            SubBuffers(SUB_BUFFERS * SUB_BUFFER_BYTES, SUB_BUFFERS),
            min(self._delay_seconds, profile.iteration_seconds),
            sum(span.place <= self._vote_place for span in profile.spans),
        )
        plan = plan_copies(
            profile,
            task,
            self._failures_per_second,
            cost_seconds=self._cost_seconds,
            most_share=self._share,
            worth_every=max(1, int(self._durable_seconds / max(profile.iteration_seconds, 1e-3))),
            most_every=self._most_every,
        )
        self._plan, self._spans = plan, {span.place: span for span in plan.spans}
        self._report()

    def _review(self) -> None:
        """Compare the planned cost of copies with the measured one, and plan again."""
        self._weigh()
        try:
            self._make_plan()
        except ValueError as error:
            _log.warning("the plan for copies stays: %s", error)

    def _weigh(self) -> None:
        """Store the excess of points' measured over planned cost, from the medians of iterations with and
        without copies."""
        if self._plan is None or self._profile is None:
            return
        if min(len(self._with), len(self._without)) < LEAST_MEASURED:
            return
        measured = (median(self._with) - median(self._without)) * self._plan.iterations
        excess = measured - self._plan.extension_seconds
        noticed = NOTICED_SHARE * self._profile.iteration_seconds
        self._cost_seconds = excess if excess > noticed else 0.0

    def _report(self) -> None:
        plan, profile = self._plan, self._profile
        now = self._now()
        if plan is None or profile is None:
            return
        measured = len(self._with) >= LEAST_MEASURED
        if now - self._told_at < REPORT_PAUSE_SECONDS and measured == self._told_measured:
            return
        self._told_at, self._told_measured = now, measured
        self._tell(
            {
                # The actual period may be longer: writing takes time too, and copies may be late.
                "every": max(plan.every, median_high(self._apart or [1])),
                "iterations": plan.iterations,
                "spans": len(plan.spans),
                "bytes": self._bytes * self._peers,
                "iteration_seconds": profile.iteration_seconds,
                "idle_seconds": plan.idle_seconds,
                "copy_seconds": plan.copy_seconds,
                "extension_seconds": plan.extension_seconds,
                "write_seconds": self._write_seconds,
                "with_seconds": _median(self._with),
                "without_seconds": _median(self._without),
            }
        )


def _median(seconds: deque[float]) -> float | None:
    return median(seconds) if len(seconds) >= LEAST_MEASURED else None
