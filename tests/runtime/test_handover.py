"""The channel over which a generation hands its state to the next one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from workers.runtime.local_agent import LOOPBACK, free_port
from workers.runtime.state.handover import HandoverServer, receive_state

STATE = bytes(range(256)) * 5000


def _receive(
    port: int,
    *,
    secret: str = "secret",
    predecessor: int = 3,
    generation: int = 4,
    wanted: Callable[[], bool] | None = None,
) -> bytes | None:
    end = time.monotonic() + 20
    return receive_state(
        LOOPBACK,
        port,
        secret=secret,
        predecessor=predecessor,
        generation=generation,
        still_wanted=wanted or (lambda: time.monotonic() < end),
        pause=time.sleep,
    )


@pytest.fixture
def server() -> HandoverServer:
    return HandoverServer(LOOPBACK, free_port(), "secret", 3)


def _asked(times: int) -> Callable[[], bool]:
    """Wanted for so many looks: a refused successor asks again each time."""
    left = iter(range(times))
    return lambda: next(left, None) is not None


def test_a_successor_that_came_early_gets_the_state_when_it_is_there(server: HandoverServer) -> None:
    received: list[bytes | None] = []
    waiting = threading.Thread(target=lambda: received.append(_receive(server.port)))
    waiting.start()
    server.publish(STATE)
    waiting.join(20)
    assert received == [STATE]


def test_a_second_successor_gets_it_too(server: HandoverServer) -> None:
    server.publish(STATE)
    assert _receive(server.port, generation=4) == STATE
    assert _receive(server.port, generation=5) == STATE


def test_without_the_secret_there_is_no_state(server: HandoverServer) -> None:
    server.publish(STATE)
    assert _receive(server.port, secret="guessed", wanted=_asked(3)) is None


@pytest.mark.parametrize("generation", [2, 3])
def test_a_stale_generation_gets_no_state(server: HandoverServer, generation: int) -> None:
    server.publish(STATE)
    assert _receive(server.port, generation=generation, wanted=_asked(3)) is None


def test_a_state_of_another_generation_is_not_taken(server: HandoverServer) -> None:
    server.publish(STATE)
    assert _receive(server.port, predecessor=2, wanted=_asked(3)) is None


def test_a_new_order_ends_the_waiting(server: HandoverServer) -> None:
    assert _receive(server.port, wanted=_asked(3)) is None
