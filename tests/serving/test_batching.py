"""The queue of a serving worker, by a simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from workers.serving.batching import Batcher, Outcome, Request
from workers.serving.errors import LateError, NotServingError, QueueFullError
from workers.serving.limits import ServingLimits


@dataclass
class _Timer:
    at: float
    callback: Callable[[], object]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class SimulatedTimers:
    """An event loop's clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[_Timer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], object]) -> _Timer:
        self.timers.append(_Timer(self.now + delay, callback))
        return self.timers[-1]

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer.at <= self.now]
        self.timers = [timer for timer in self.timers if timer.at > self.now]
        for timer in due:
            if not timer.is_cancelled:
                timer.callback()


class Queue:
    """A batcher whose batches end on command."""

    def __init__(self, **limits: Any) -> None:
        self.timers = SimulatedTimers()
        self.batches: list[Sequence[Request]] = []
        self.outcomes: dict[Any, Outcome] = {}
        self.batcher = Batcher(self.batches.append, ServingLimits(**limits), self.timers)

    def submit(self, *inputs: Any) -> None:
        def settle(outcome: Outcome) -> None:
            assert inputs not in self.outcomes
            self.outcomes[inputs] = outcome

        self.batcher.submit(Request(inputs, self.timers.now, settle))

    def end(self) -> None:
        self.batcher.ended([b"%d" % len(request.inputs) for request in self.batches[-1]])

    @property
    def inputs(self) -> list[list[Any]]:
        return [[value for request in batch for value in request.inputs] for batch in self.batches]


def test_first_request_of_a_batch_waits_a_bounded_time_for_others() -> None:
    queue = Queue(most_inputs=4, longest_wait_seconds=0.01)
    queue.submit(1)
    queue.timers.advance(0.009)
    queue.submit(2)
    assert queue.batches == []
    queue.timers.advance(0.001)
    assert queue.inputs == [[1, 2]]


def test_full_batch_begins_at_once() -> None:
    queue = Queue(most_inputs=2)
    queue.submit(1)
    queue.submit(2)
    assert queue.inputs == [[1, 2]]
    assert not [timer for timer in queue.timers.timers if not timer.is_cancelled]


def test_batch_has_whole_requests_in_their_order() -> None:
    queue = Queue(most_inputs=4)
    queue.submit(0, 0, 0, 0)
    for inputs in ((1, 2), (3,), (4, 5), (6,)):
        queue.submit(*inputs)
    queue.end()
    queue.timers.advance(1.0)
    queue.end()
    assert queue.inputs == [[0] * 4, [1, 2, 3], [4, 5, 6]]
    assert queue.outcomes[1, 2] == b"2"


def test_request_larger_than_a_batch_is_computed_alone() -> None:
    queue = Queue(most_inputs=2, most_waiting=2)
    queue.submit(1, 2, 3)
    assert queue.inputs == [[1, 2, 3]]


def test_one_batch_is_computed_at_a_time() -> None:
    queue = Queue(most_inputs=1)
    queue.submit(1)
    queue.submit(2)
    assert queue.inputs == [[1]]
    queue.end()
    assert queue.inputs == [[1], [2]]


def test_full_queue_refuses_and_has_room_again() -> None:
    queue = Queue(most_inputs=1, most_waiting=2)
    queue.submit(0)
    queue.submit(1, 2)
    with pytest.raises(QueueFullError, match="2 inputs wait; the limit is 2"):
        queue.submit(3)
    queue.end()
    queue.submit(4, 5)
    assert queue.batcher.waiting == 1


def test_late_requests_are_settled_wherever_they_are() -> None:
    queue = Queue(most_inputs=1, answer_seconds=30.0)
    queue.submit(1)
    queue.submit(2)
    queue.timers.advance(20.0)
    queue.submit(3)
    queue.timers.advance(10.0)
    queue.batcher.expire()
    assert isinstance(queue.outcomes[1,], LateError)
    assert isinstance(queue.outcomes[2,], LateError)
    assert (3,) not in queue.outcomes
    queue.end()
    assert queue.inputs == [[1], [3]], "what is late is not computed"


def test_closed_queue_computes_what_waits_at_once() -> None:
    queue = Queue(most_inputs=4, longest_wait_seconds=1.0)
    queue.submit(1)
    queue.batcher.close()
    assert queue.inputs == [[1]]
    with pytest.raises(NotServingError):
        queue.submit(2)
    assert not queue.batcher.is_idle
    queue.end()
    assert queue.batcher.is_idle


def test_an_abandoned_request_is_settled_once() -> None:
    queue = Queue(most_inputs=1)
    queue.submit(1)
    queue.submit(2)
    queue.batcher.give_up(LateError("stuck"))
    assert isinstance(queue.outcomes[1,], LateError)
    assert isinstance(queue.outcomes[2,], NotServingError)
    queue.end()
    assert queue.inputs == [[1]]


@pytest.mark.parametrize("wrong", [{"most_inputs": 0}, {"most_waiting": 0}, {"longest_wait_seconds": -1.0}])
def test_limits_name_the_value_that_is_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ServingLimits(**wrong)
