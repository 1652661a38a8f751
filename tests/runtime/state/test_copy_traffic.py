"""The runtime follows its plan: it lets its store send only in idle spans, and measures the cost."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.costs.frequency import points_every
from recovery.store.client import Copied
from recovery.traffic.idle_spans import WARM_UP_ITERATIONS
from recovery.traffic.modes import TrafficMode
from tests.runtime.conftest import regression
from workers.runtime.assignment import Assignment
from workers.runtime.at_home.local_agent import assignment_defaults
from workers.runtime.state.copy_traffic import (
    MOST_ATTEMPTS,
    POINTS_BETWEEN_REVIEWS,
    PROFILED_ITERATIONS,
    CopyTraffic,
)

MB = 1_000_000
RATE = 10 * MB
STARTUP_SECONDS = 0.001


class Training:
    """A job with a simulated clock, and a store whose copies use an otherwise idle link.

    An iteration: `forward` seconds, a vote, then collectives of these lengths with pauses between them.
    """

    def __init__(
        self, *, forward: float, collectives: list[tuple[float, float]], size: int = MB,
        failures_per_second: float = 2 * 0.015 / 86_400, most_every: int | None = None,
    ) -> None:  # fmt: skip
        self.forward, self.collectives, self.size = forward, collectives, size
        self.at = 100.0
        self.told: list[dict[str, Any]] = []
        #: The allowances: time, bytes, within. Then the times at which training used the network.
        self.allowed: list[tuple[float, int, float | None]] = []
        self.used: list[tuple[float, float]] = []
        self.points: list[int] = []
        self.iteration = 0
        self.written_at = 0.0
        #: By how much copies lengthen an iteration in which they are in flight.
        self.interference = 0.0
        #: The object that writes points, and how long it waits after one.
        self.pause_seconds = 0.0
        self._left = 0
        self._last: Copied | None = None
        self.traffic = CopyTraffic(
            self, mode=TrafficMode.GEMINI, share=0.02, failures_per_second=failures_per_second,
            durable_seconds=60.0, most_every=most_every, now=lambda: self.at, tell=self.told.append,
        )  # fmt: skip

    # The store

    def idle(self) -> bool:
        return self._left <= 0

    def allow(self, size: int, within_seconds: float | None, takes_seconds: float) -> None:
        self.allowed.append((self.at, size, within_seconds))
        if within_seconds is not None:
            assert size / RATE <= within_seconds, "no more than the link carries in that time"
        self._send(size)

    def copied(self) -> Copied | None:
        return self._last

    def _send(self, size: int) -> None:
        if self._left > 0:
            self._left -= size
            if self._left <= 0:
                seconds = self.size / RATE
                self._last = Copied(
                    self.points[-1], 1, self.size, seconds, STARTUP_SECONDS, self.at + seconds
                )

    # Training

    def run(self, iterations: int) -> None:
        for _ in range(iterations):
            self._iterate()

    def _iterate(self) -> None:
        self.iteration += 1
        busy = not self.idle()
        self.traffic.begins()
        self.at += self.forward
        ready = self.idle()
        self.traffic.votes()
        paused = bool(self.points) and self.at - self.written_at < self.pause_seconds
        ready = ready and self.traffic.due() and (not paused or self.traffic.overdue())
        for pause, length in self.collectives:
            self.at += pause
            began = self.at
            self.at += length
            self.used.append((began, self.at))
            self.traffic.collective(began, self.at)
        self.at += 0.005 + (self.interference if busy else 0.0)
        self.traffic.ends()
        if ready:
            self.points.append(self.iteration)
            self._left = self.size
            planned = self.traffic.sending().pause_seconds > 0
            self.traffic.written(self.size, 0.001)
            self.written_at = self.at
            if not planned:
                self._send(self.size)

    @property
    def plan(self) -> dict[str, Any]:
        return self.told[-1]

    def every(self, last: int = 8) -> set[int]:
        """Return the intervals between the last points, in iterations."""
        late = self.points[-last:]
        return {after - before for before, after in zip(late, late[1:], strict=False)}


def idle_enough(**changes: Any) -> Training:
    """Return training whose iterations leave 0.3 s before the vote; a copy takes 0.1 s."""
    return Training(**{"forward": 0.3, "collectives": [(0.1, 0.1), (0.2, 0.1)], **changes})


def test_copies_are_sent_in_idle_spans_once_these_are_known() -> None:
    training = idle_enough()
    training.run(WARM_UP_ITERATIONS + PROFILED_ITERATIONS)
    assert not training.told, "it stamps iterations without copies first"
    assert len(training.points) >= 5, "and points go on being made"
    while not training.told and training.iteration < 120:
        training.run(1)
    assert training.plan["every"] == 1
    assert training.plan["idle_seconds"] == pytest.approx(0.605, abs=0.01)
    assert training.plan["copy_seconds"] == pytest.approx(0.1, rel=0.1)
    training.allowed.clear()
    training.run(POINTS_BETWEEN_REVIEWS - 2)
    assert training.every() == {1}, "each iteration has a point"
    assert training.allowed
    for began, _size, within in training.allowed:
        assert within is not None
        assert not any(
            start < began + within - 1e-6 and began < end - 1e-6 for start, end in training.used
        ), "an idle span, in which training does not use the network"


def test_a_copy_too_large_for_one_iteration_is_spread_over_several() -> None:
    training = idle_enough(size=5 * MB)
    training.run(160)
    # Half a second on the network; 0.24 s of the first span may be used, 0.48 s of a whole iteration.
    assert training.plan["iterations"] == 2
    assert training.plan["extension_seconds"] == 0.0
    assert training.every() == {2}


def test_without_idle_time_points_are_rare_and_follow_the_collectives() -> None:
    training = Training(forward=0.0, collectives=[(0.0, 0.4), (0.0, 0.4)])
    training.run(100)
    assert training.plan["extension_seconds"] > 0.0
    # At least as frequent as durable points, which are 60 s apart.
    assert training.plan["every"] == int(60.0 / 0.805)
    training.allowed.clear()
    training.run(2 * training.plan["every"])
    assert {within for _at, _size, within in training.allowed} == {None}
    assert training.every(2) == {training.plan["every"]}


def test_points_are_as_frequent_as_servers_fail() -> None:
    """The best interval falls with the root of the failure rate."""

    def every(failures_a_day: float) -> int:
        training = Training(
            forward=0.0, collectives=[(0.0, 0.4), (0.0, 0.4)], failures_per_second=failures_a_day / 86_400
        )
        training.run(100)
        planned = training.plan
        rate = failures_a_day / 86_400
        if rate:
            best = points_every(planned["extension_seconds"], planned["iteration_seconds"], rate)
            assert planned["every"] == min(best, int(60.0 / planned["iteration_seconds"]))
        return int(planned["every"])

    assert every(400.0) < every(100.0) < every(0.03) == every(0.0)


@pytest.mark.parametrize("most_every", [1, 5])
def test_points_are_at_least_as_frequent_as_their_owner_asks(most_every: int) -> None:
    training = Training(forward=0.0, collectives=[(0.0, 0.4), (0.0, 0.4)], most_every=most_every)
    training.run(100)
    assert training.plan["every"] == max(most_every, 2)
    training.run(2 * POINTS_BETWEEN_REVIEWS * most_every)
    assert max(training.every(40)) <= max(most_every, 2), "or the one after, while the last is on its way"


def test_the_reported_interval_is_that_of_the_points() -> None:
    """Promises rely on it (decision 0028), and writing takes its share of the time whatever the plan is."""
    training = idle_enough()
    training.pause_seconds = 5.0
    training.run(250)
    assert training.every(4) == {7}, "5 s of iterations of 0.805 s"
    assert training.plan["every"] == 7


@pytest.mark.parametrize(("sent", "a_day"), [({}, 0.015), ({"failures_per_server_day": 48.0}, 48.0)])
def test_workers_weigh_points_by_the_operators_rate(sent: dict[str, Any], a_day: float) -> None:
    places = {"servers": [0, 0, 1], "racks": [0, 0, 0]}
    message = {**assignment_defaults(), **regression(), "rank": 0, "world_size": 3, "master_port": 1}
    read = Assignment.from_message({**message, "places": places, **sent})
    assert read.failures_per_second == pytest.approx(2 * a_day / 86_400), "of two servers"


def test_an_invalid_failure_rate_is_refused() -> None:
    message = {**assignment_defaults(), **regression(), "rank": 0, "world_size": 1, "master_port": 1}
    with pytest.raises(ValueError, match="failures_per_server_day"):
        Assignment.from_message({**message, "failures_per_server_day": -1})


def test_points_become_rarer_if_copies_cost_more_than_planned() -> None:
    training = idle_enough()
    training.interference = 0.1
    training.run(250)
    assert training.plan["with_seconds"] - training.plan["without_seconds"] == pytest.approx(0.1)
    # 0.1 s for a point, which may take 2 % of the time.
    every = training.plan["every"]
    assert 0.1 / (every * training.plan["iteration_seconds"]) <= 0.02
    assert training.every(3) == {every}
    training.interference = 0.0
    training.run(every * 150)
    assert training.every(4) == {1}, "and more frequent again once it is gone"


def test_irregular_iterations_get_no_plan_and_keep_their_points() -> None:
    training = idle_enough()
    for number in range(60 * (MOST_ATTEMPTS + 2)):
        training.collectives = [(0.1, 0.1)] * (1 + number % 3)
        training.run(1)
    assert not training.told
    late = len(training.points)
    training.run(10)
    assert len(training.points) - late >= 9


def test_a_job_without_peers_for_copies_gets_no_plan() -> None:
    training = idle_enough()
    training.copied = lambda: None  # type: ignore[method-assign]
    training.run(2 * PROFILED_ITERATIONS)
    assert len(training.points) == 2 * PROFILED_ITERATIONS
    assert not training.allowed


def test_copies_do_not_wait_for_idle_time_once_training_stops() -> None:
    training = idle_enough(size=5 * MB)
    training.run(160)
    while training.idle():
        training.run(1)
    training.traffic.stops()
    assert training.idle()
