"""Two agents measure the network between their servers and report the results."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from emulated_links.client import LinkClient
from emulated_links.rates import DEFAULT_LINKS, NETWORK, NETWORK_IN, STATE, ServerLinks
from emulated_links.server import LinkServer
from recovery.store import peer_wire
from recovery.store.callers import Callers
from recovery.store.peer_wire import Channel, Peer, PeerError
from tests.agent.conftest import wait_until
from workers.agent.machine import clock
from workers.agent.machine.main_loop import MainLoop
from workers.agent.orders.desired_state import DesiredStateError, LinkProbe, parse_desired_state
from workers.agent.talking.link_measuring import Pace, Paces, answer, measure
from workers.agent.talking.link_probes import LinkProbes
from workers.runtime.at_home.local_ports import free_port

SECRET = "known to the two agents of this measurement alone"
RATE = 2e7
LATENCY = 0.01
LINKS = ServerLinks.from_message(
    {**DEFAULT_LINKS, NETWORK: {"bytes_per_second": RATE, "latency_seconds": LATENCY}}
)
UNPACED = Paces(lambda: Pace(None, ()), lambda: Pace(None, ()))
ORDER = {
    "link": 7, "number": 3, "role": "call", "here": "a", "server": "b", "address": "127.0.0.1",
    "port": 21000, "same_rack": True, "secret": SECRET,
}  # fmt: skip


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[Channel], Any]], Callable[[], Channel]]]:
    """Yield a function that serves callers with `answers` on a free port and returns a way to call it."""
    listeners: list[Callers] = []

    def begin(answers: Callable[[Channel], Any]) -> Callable[[], Channel]:
        port = free_port()

        def greet(connection: socket.socket) -> tuple[Channel, str, int]:
            return peer_wire.answer(connection, "b", lambda _name, _number: SECRET, lambda: None)

        listeners.append(Callers("127.0.0.1", port, greet, lambda channel, *_: answers(channel)))
        return partial(peer_wire.call, Peer("b", "127.0.0.1", port), "link 7", 3, SECRET, lambda: None)

    yield begin
    for callers in listeners:
        callers.close()


@pytest.fixture
def paced(tmp_path: Path) -> Iterator[Callable[[str], tuple[LinkServer, Paces]]]:
    """Yield a function that returns a server's emulated links and an agent's paces on them."""
    servers: list[LinkServer] = []
    clients: list[LinkClient] = []

    def begin(name: str) -> tuple[LinkServer, Paces]:
        (tmp_path / name).mkdir()
        server = LinkServer(LINKS)
        server.start()
        servers.append(server)
        server.listen("agent", tmp_path / name)
        client = LinkClient(LINKS, tmp_path / name)
        clients.append(client)
        return server, Paces(lambda: Pace(client, (NETWORK,)), lambda: Pace(client, (NETWORK_IN,)))

    yield begin
    for client in clients:
        client.close()
    for server in servers:
        server.stop()


@pytest.mark.live
def test_measurement_finds_the_emulated_rates(serve: Any, paced: Any) -> None:
    mine, my_paces = paced("a")
    theirs, their_paces = paced("b")
    measured = measure(serve(lambda channel: answer(channel, their_paces)), my_paces)
    assert measured.bytes_per_second <= RATE * 1.01
    # A busy machine measures less and reports by how much.
    assert measured.bytes_per_second >= RATE * (0.9 - measured.overrun)
    assert LATENCY <= measured.latency_seconds < LATENCY + 0.05
    for server in (mine, theirs):
        carried = server.carried()
        assert carried[NETWORK][STATE] == pytest.approx(carried[NETWORK_IN][STATE], rel=0.5)


@pytest.fixture
def short_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.agent.talking.link_measuring.BURST_SECONDS", 0.05)
    monkeypatch.setattr("workers.agent.talking.link_measuring.LONGEST_BURST_SECONDS", 0.2)


@pytest.mark.usefixtures("short_bursts")
def test_the_slower_direction_counts(serve: Any, paced: Any) -> None:
    _, paces = paced("a")
    slow_back = Paces(UNPACED.out, paces.into)
    measured = measure(serve(lambda channel: answer(channel, UNPACED)), slow_back)
    assert measured.bytes_per_second <= RATE * 1.05


@pytest.mark.usefixtures("short_bursts")
def test_overrun_is_the_machines_lag_behind_its_emulated_links(
    serve: Any, paced: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, paces = paced("a")
    send = Channel.send_bytes

    def slowly(self: Channel, content: Any) -> None:
        time.sleep(0.05 if len(content) > 1 else 0)
        send(self, content)

    monkeypatch.setattr(Channel, "send_bytes", slowly)
    measured = measure(serve(lambda channel: answer(channel, UNPACED)), Paces(paces.out, paces.into))
    assert measured.overrun > 0.3


@pytest.mark.usefixtures("short_bursts")
def test_without_emulation_nothing_waits_and_nothing_overruns(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_until(at: float) -> None:
        raise AssertionError(f"waits until {at}")

    monkeypatch.setattr("workers.agent.talking.link_measuring.wait_until", wait_until)
    measured = measure(serve(lambda channel: answer(channel, UNPACED)), UNPACED)
    assert measured.overrun == 0.0
    assert measured.bytes_per_second > 0
    assert measured.latency_seconds > 0


@pytest.mark.parametrize(
    "body",
    [
        {"pings": 10**9},
        {"take": 1e9, "piece": 1},
        {"take": 0.1, "piece": 1 << 30},
        {"take": 0.1, "piece": "many"},
        {"give": float("inf"), "piece": 1},
        {"give": True, "piece": 1},
        {},
    ],
)
def test_a_probe_that_requests_too_much_is_disconnected(serve: Any, body: dict[str, Any]) -> None:
    refused = threading.Event()

    def answers(channel: Channel) -> None:
        try:
            answer(channel, UNPACED)
        except PeerError:
            refused.set()
            raise

    with serve(answers)() as channel:
        channel.send(body)
        assert refused.wait(60)
        with pytest.raises(OSError):
            channel.receive()


def _probes(loop: MainLoop) -> LinkProbes:
    return LinkProbes(loop, "127.0.0.1", None, lambda: None)


def _pair(**changes: Any) -> tuple[LinkProbe, LinkProbe]:
    """Return the orders of the two agents."""
    port = free_port()
    order = {**ORDER, "port": port, **changes}
    sides = ({**order, "here": "a", "server": "b"}, {**order, "role": "answer", "here": "b", "server": "a"})
    bodies = [parse_desired_state(_desired(side)).link_probe for side in sides]
    first, second = bodies
    assert first is not None
    assert second is not None
    return first, second


def _desired(probe: dict[str, Any] | None) -> dict[str, Any]:
    return {"epoch": 1, "desired_version": 1, "generations": [], "link_probe": probe}


@pytest.mark.usefixtures("short_bursts")
def test_two_agents_measure_once_and_report_until_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = MainLoop()
    lease = clock.boot_time_seconds() + 60
    calls, answers = _pair()
    with closing(_probes(loop)) as first, closing(_probes(loop)) as second:
        first.update(calls, lease)
        second.update(answers, lease)

        def pending() -> Any:
            loop.run_for(0.05)
            return first.pending_result()

        report = wait_until(pending, "the link was measured")
        assert (report["link"], report["number"]) == (7, 3)
        assert report["bytes_per_second"] > 0
        assert "problem" not in report
        # A second call would fail soon, since the port no longer answers.
        monkeypatch.setattr("workers.agent.talking.link_probes.CALLING_SECONDS", 0.1)
        first.update(calls, lease)
        assert first.pending_result() is report
        first.forget(report)
        for _ in range(20):
            loop.run_for(0.05)
        assert first.pending_result() is None, "the link is not measured again"
        # The answering agent no longer listens.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", answers.port), timeout=60).close()


@pytest.mark.parametrize("amiss", ["secret", "lease"])
def test_measuring_needs_the_secret_and_a_lease(amiss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.agent.talking.link_probes.CALLING_SECONDS", 0.5)
    loop = MainLoop()
    now = clock.boot_time_seconds()
    calls, answers = _pair()
    if amiss == "secret":
        calls = (
            parse_desired_state(_desired({**ORDER, "port": calls.port, "secret": "another" * 8})).link_probe
            or calls
        )
    with closing(_probes(loop)) as first, closing(_probes(loop)) as second:
        second.update(answers, now - 1 if amiss == "lease" else now + 60)
        first.update(calls, now + 60)

        def pending() -> Any:
            loop.run_for(0.05)
            return first.pending_result()

        assert "problem" in wait_until(pending, "it was given up")


@pytest.mark.parametrize(
    "change", [{"secret": "short"}, {"role": "watch"}, {"port": "80"}, {"address": None}, {"here": 5}]
)
def test_a_malformed_probe_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(DesiredStateError):
        parse_desired_state(_desired({**ORDER, **change}))
