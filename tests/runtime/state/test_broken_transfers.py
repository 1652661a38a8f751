"""A hand-over that breaks midway: the job resumes from the last complete recovery point."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.runtime.state_pause import PeakGrowth
from tests.runtime.conftest import emulated
from workers.runtime.at_home.local_agent import LocalAgent
from workers.runtime.at_home.local_ports import LOOPBACK
from workers.runtime.at_home.local_worker import Message
from workers.runtime.process_group import listen_on

LARGE_STATE = Path(__file__).parents[3] / "benchmarks" / "functions" / "large_state.py"
STATE_BYTES = 16 << 20
#: Well inside a shard, of which there are two.
BROKEN_AFTER_BYTES = 2 << 20


def large_state(
    generation: int, iterations: int = 10**6, *, state_bytes: int = STATE_BYTES, **changes: Any
) -> dict[str, Any]:
    """Return an assignment whose state is large compared to its computation."""
    return {
        "function": {"entry": "large_state:LargeState"},
        "hyperparameters": {"global_batch_size": 8, "state_bytes": state_bytes},
        "termination": {"max_iterations": iterations, "target": None},
        "generation": generation,
        **changes,
    }


class BreakingRelay:
    """Relays a worker's port until `BROKEN_AFTER_BYTES` bytes have passed; then calls `broken`, and closes
    the connection when that returns."""

    def __init__(self, port: int, broken: Callable[[], None]) -> None:
        self._target = port
        self._broken = broken
        self._listener = listen_on(LOOPBACK, 0)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        inner, _ = self._listener.accept()
        self._listener.close()
        with inner, socket.create_connection((LOOPBACK, self._target)) as outer:
            threading.Thread(target=self._pass_back, args=(inner, outer), daemon=True).start()
            passed = 0
            while passed < BROKEN_AFTER_BYTES and (received := outer.recv(1 << 16)):
                inner.sendall(received)
                passed += len(received)
            self._broken()
            # Closing alone would wait for the other thread, which is still reading.
            inner.shutdown(socket.SHUT_RDWR)

    def _pass_back(self, inner: socket.socket, outer: socket.socket) -> None:
        try:
            while received := inner.recv(1 << 16):
                outer.sendall(received)
        except OSError:
            return


def through(start: Message, rank: int, port: int) -> Message:
    """Return the same order with another port for one shard."""
    shards = [dict(shard) for shard in start["shards"]]
    shards[rank]["holders"] = [{**shards[rank]["holders"][0], "port": port}]
    return {**start, "shards": shards}


@pytest.mark.parametrize(
    ("sender", "end"),
    [
        (1, "killed"),
        *(
            pytest.param(*case, marks=pytest.mark.live)
            for case in [(0, "killed"), (0, "silent"), (1, "silent")]
        ),
    ],
)
def test_a_sender_that_is_lost_midway_leaves_the_last_complete_point(
    agent: LocalAgent, sender: int, end: str
) -> None:
    """A killed sender's connection breaks. A sender without power goes silent, and the next order ends the
    wait."""
    old = agent.start_generation(
        LARGE_STATE, large_state(1, device=emulated(), checkpoint_seconds=0.1), 2
    ).wait_until_ready()
    old.train_from_nothing()
    point = old.checkpoint_files()
    last = point.iteration + 10
    new = agent.start_generation(LARGE_STATE, large_state(2, last), 2).wait_until_ready()

    broken, over = threading.Event(), threading.Event()

    def lose_it() -> None:
        broken.set()
        if end == "killed":
            old.workers[sender].kill()
        else:
            over.wait()

    relay = BreakingRelay(old.handover_ports[sender], lose_it)
    new.goal("train", through(old.handover_start(2), sender, relay.port))
    old.goal("hand_over")
    reader = new.workers[sender]
    assert broken.wait(60)
    if end == "killed":
        reader.wait_for(lambda _message: f"reading shard {sender} was broken off" in reader.log(), 60)
    assert not any(worker.of_kind("event") for worker in new.workers), "all wait for another order"

    new.train_from_checkpoint(point)
    assert new.leader.wait_for_event("first_iteration")["iteration"] == point.iteration + 1
    report = new.report()
    unscaled = agent.start_generation(LARGE_STATE, large_state(1, last), 1).wait_until_ready()
    undisturbed = unscaled.train_from_nothing().report()
    assert report["sample_order_digest"] == undisturbed["sample_order_digest"]
    assert report["final"] == pytest.approx(undisturbed["final"], rel=1e-5)
    over.set()
    old.stop()


def test_a_sender_that_comes_back_is_asked_again(agent: LocalAgent) -> None:
    """The connection breaks but no process dies: the whole state is transferred again."""
    old = agent.start_generation(LARGE_STATE, large_state(1, device=emulated()), 2)
    old.wait_until_ready().train_from_nothing().wait_for_iteration(2)
    new = agent.start_generation(LARGE_STATE, large_state(2), 2).wait_until_ready()
    listening = threading.Event()

    def come_back() -> None:
        threading.Thread(target=forward_for_ever, args=(relay.port, old.handover_ports[1])).start()
        listening.set()

    relay = BreakingRelay(old.handover_ports[1], come_back)
    new.goal("train", through(old.handover_start(2), 1, relay.port))
    old.goal("hand_over")
    reader = new.workers[1]
    reader.wait_for(lambda _message: "reading shard 1 was broken off" in reader.log(), 60)
    event = new.leader.wait_for_event("first_iteration")
    stopped = old.leader.wait_for_phase("handed_over")["iteration"]
    assert event["iteration"] == stopped + 1
    old.stop()


def forward_for_ever(port: int, target: int) -> None:
    """Listen on the relay's port and forward one connection to its end."""
    with listen_on(LOOPBACK, port) as listener:
        inner, _ = listener.accept()
    with inner, socket.create_connection((LOOPBACK, target)) as outer:
        back = threading.Thread(target=_pump, args=(inner, outer), daemon=True)
        back.start()
        _pump(outer, inner)


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while received := source.recv(1 << 16):
            target.sendall(received)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="reads /proc")
@pytest.mark.parametrize("way", ["hand-over", "suspend and resume"])
@pytest.mark.live
def test_no_rank_holds_the_whole_state_as_bytes(agent: LocalAgent, way: str) -> None:
    """Beside its model a rank never holds another copy of the state."""
    ranks, size = 4, 64 << 20
    slow = large_state(1, state_bytes=size, device=emulated(fixed_seconds=0.25))
    old = agent.start_generation(LARGE_STATE, slow, ranks)
    old.wait_until_ready().train_from_nothing().wait_for_iteration(2)
    new = agent.start_generation(LARGE_STATE, large_state(2, state_bytes=size), ranks).wait_until_ready()
    pids = [worker.process.pid for worker in (*old.workers, *new.workers)]
    growth = PeakGrowth(pids)
    if way == "hand-over":
        new.train_from(old)
    else:
        old.goal("suspend")
        new.train_from_checkpoint(old.checkpoint_files())
    new.leader.wait_for_event("first_iteration")
    for worker in old.workers:
        worker.wait_for_phase("handed_over" if way == "hand-over" else "suspended")
    grown = {}
    for generation, name in ((old, "old"), (new, "new")):
        alive = [worker.process.pid for worker in generation.workers if worker.process.poll() is None]
        grown[name] = [round(peak / size, 2) for peak in growth.bytes_of(alive)]
    assert max(grown["new"]) < 0.5, grown
    assert max(grown["old"], default=0) < 0.5, grown
    old.stop()
