"""The channel over which a rank of one generation hands its shard to a rank of the next."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import torch

from workers.runtime.at_home.local_ports import LOOPBACK, free_port
from workers.runtime.process_group import listen_on
from workers.runtime.state import handover
from workers.runtime.state.handover import HandoverServer, ReceivedShard, open_handover
from workers.runtime.state.moves import StateMoves
from workers.runtime.state.shards import Shard, own_shard

WEIGHTS = torch.arange(300_000, dtype=torch.float32)
STATE = {"generation": 3, "iteration": 8, "model": {"weight": WEIGHTS}, "optimizer": {"state": {}}}
SHARD: Shard = own_shard(STATE, frozenset({"weight"}), rank=0, world_size=1, copy=False)


def _open(
    port: int,
    *,
    secret: str = "secret",
    predecessor: int = 3,
    generation: int = 4,
    wanted: Callable[[], bool] | None = None,
) -> ReceivedShard | None:
    end = time.monotonic() + 60
    return open_handover(
        LOOPBACK,
        port,
        secret=secret,
        predecessor=predecessor,
        generation=generation,
        still_wanted=wanted or (lambda: time.monotonic() < end),
        pause=time.sleep,
        moves=StateMoves(),
    )


def _receive(port: int, generation: int = 4) -> torch.Tensor:
    opened = _open(port, generation=generation)
    assert opened is not None
    with closing(opened) as shard:
        assert shard.description["iteration"] == 8
        received = torch.empty_like(WEIGHTS)
        shard.read_into(memoryview(received.view(torch.uint8).numpy()))
        shard.finish()
    return received


@pytest.fixture
def server() -> HandoverServer:
    return HandoverServer(LOOPBACK, free_port(), "secret", 3, StateMoves())


def _asked(times: int) -> Callable[[], bool]:
    """Return a `wanted` that holds for some polls: a refused successor asks again each time."""
    left = iter(range(times))
    return lambda: next(left, None) is not None


def test_an_early_successor_gets_the_shard_once_it_exists(server: HandoverServer) -> None:
    received: list[torch.Tensor] = []
    waiting = threading.Thread(target=lambda: received.append(_receive(server.port)))
    waiting.start()
    server.publish(SHARD)
    waiting.join(60)
    assert [torch.equal(weights, WEIGHTS) for weights in received] == [True]


def test_a_second_successor_gets_it_too(server: HandoverServer) -> None:
    server.publish(SHARD)
    assert torch.equal(_receive(server.port, generation=4), WEIGHTS)
    assert torch.equal(_receive(server.port, generation=5), WEIGHTS)


def test_the_sender_detects_when_the_whole_shard_was_taken(server: HandoverServer) -> None:
    server.publish(SHARD)
    assert not server.wait_until_taken(0.05), "nobody came"
    assert _open(server.port, secret="guessed", wanted=_asked(1)) is None
    assert not server.wait_until_taken(0.05), "a stranger took nothing"
    waiting = threading.Thread(target=_receive, args=(server.port,))
    waiting.start()
    assert server.wait_until_taken(60.0)
    waiting.join(60)


def test_without_the_secret_there_is_no_shard(server: HandoverServer) -> None:
    server.publish(SHARD)
    assert _open(server.port, secret="guessed", wanted=_asked(3)) is None


def test_unauthenticated_callers_block_no_handover(
    server: HandoverServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "_AUTHENTICATION_SECONDS", 600.0)
    with contextlib.ExitStack() as open_ones:
        for _ in range(40):
            knocking = open_ones.enter_context(socket.create_connection((LOOPBACK, server.port)))
            knocking.sendall(b"?")
        server.publish(SHARD)
        assert torch.equal(_receive(server.port), WEIGHTS)
    monkeypatch.setattr(handover, "_AUTHENTICATION_SECONDS", 0.2)
    with socket.create_connection((LOOPBACK, server.port)) as slow:
        slow.settimeout(0.05)
        # A byte now and then does not prolong the wait.
        assert any(_is_closed_after_a_byte(slow) for _ in range(60))


def _is_closed_after_a_byte(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"?")
        return not connection.recv(4096)
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("generation", [2, 3])
def test_a_stale_generation_gets_no_shard(server: HandoverServer, generation: int) -> None:
    server.publish(SHARD)
    assert _open(server.port, generation=generation, wanted=_asked(3)) is None


def test_a_shard_of_another_generation_is_not_taken(server: HandoverServer) -> None:
    server.publish(SHARD)
    assert _open(server.port, predecessor=2, wanted=_asked(3)) is None


def test_a_new_order_ends_the_wait(server: HandoverServer) -> None:
    assert _open(server.port, wanted=_asked(3)) is None


@pytest.fixture
def altering_relay(server: HandoverServer) -> Iterator[int]:
    """Forward everything, with one byte changed a megabyte after the beginning; return the port."""
    listener = listen_on(LOOPBACK, free_port())

    def relay() -> None:
        inner, _ = listener.accept()
        with inner, socket.create_connection((LOOPBACK, server.port)) as outer:
            forth = threading.Thread(target=_pass_on, args=(inner, outer, None))
            forth.start()
            _pass_on(outer, inner, 1_000_000)
            forth.join()

    relaying = threading.Thread(target=relay)
    relaying.start()
    yield int(listener.getsockname()[1])
    relaying.join()
    listener.close()


def _pass_on(source: socket.socket, target: socket.socket, altered: int | None) -> None:
    passed = 0
    while received := bytearray(source.recv(65536)):
        if altered is not None and passed <= altered < passed + len(received):
            received[altered - passed] ^= 1
        passed += len(received)
        target.sendall(received)
    target.shutdown(socket.SHUT_WR)


def test_a_shard_that_was_altered_on_its_way_is_refused(server: HandoverServer, altering_relay: int) -> None:
    server.publish(SHARD)
    with pytest.raises(OSError, match="altered on its way"):
        _receive(altering_relay)
