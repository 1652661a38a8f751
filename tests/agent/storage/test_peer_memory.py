"""A server dies with its agent, workers and memory: its job resumes from a peer's copies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.conftest import RunningAgent
from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.storage.test_memory_points import DEVICE_MODEL, ITERATIONS, Training, from_memory
from workers.runtime.at_home.local_ports import free_port

SECRET = "known to the stores of this generation alone"


@dataclass
class Node:
    """A server with its own control plane, which sends what the test sets."""

    name: str
    agent: RunningAgent
    plane: FakeControlPlane
    port: int

    def set_group(self, **group: Any) -> None:
        """Set what its store sends, keeps and fetches of generation 1."""
        entry = {"job": "job", "generation": 1, "secret": SECRET, "send": [], "keep": [], "fetch": []}
        with self.plane.lock:
            self.plane.memory = {"server": self.name, "port": self.port, "groups": [{**entry, **group}]}

    def all_ranks(self) -> list[dict[str, Any]]:
        """Return both ranks, with this server as the holder of their copies."""
        peer = {"server": self.name, "address": "127.0.0.1", "port": self.port}
        return [{"rank": rank, "peers": [peer]} for rank in range(2)]

    def dies(self) -> None:
        """Kill everything on this server."""
        store = self.agent.store_process()
        self.agent.kill()
        for launcher in self.agent.launchers():
            os.kill(launcher["worker_pid"], signal.SIGKILL)
        assert store is not None
        os.kill(store, signal.SIGKILL)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Node]]:
    nodes: list[Node] = []

    def begin(name: str) -> Node:
        (tmp_path / name).mkdir()
        plane = FakeControlPlane()
        created = Node(name, RunningAgent(tmp_path / name, plane), plane, free_port())
        created.agent.settings["name"] = name
        nodes.append(created)
        return created

    yield begin
    for node in nodes:
        if node.agent.process is not None:
            print(node.name, node.agent.log)
        node.agent.close()
        node.plane.close()


# Long enough for two starts of two workers, and a third beside them, on a busy machine.
@pytest.mark.timeout(400)
@pytest.mark.live
def test_a_job_resumed_from_a_peers_memory_ends_with_the_same_bits(start: Callable[[str], Node]) -> None:
    first, peer, other = start("first"), start("peer"), start("other")
    training = Training(first.agent, first.plane)
    # Slow enough that copies arrive during the run even if the first attempt fails: the store asks its peer
    # again after five seconds.
    first.agent.settings["emulate"] = {**DEVICE_MODEL, "fixed_seconds": 0.2}
    undisturbed = Training(other.agent, other.plane, "undisturbed")
    peer.set_group(keep=[0, 1])
    first.set_group(send=peer.all_ranks())
    for node in (first, peer, other):
        node.agent.start()
    first.plane.want(training.wanted(1, ITERATIONS))
    peer.plane.want()
    beside = undisturbed.wanted(1, ITERATIONS)
    other.plane.want(beside)

    copies = Training(peer.agent, peer.plane)
    copies.wait_for_points(1, 20)
    report = first.plane.reports[-1]["memory_store"]
    assert {(entry["copies"], entry["wanted_copies"]) for entry in report["holdings"]} == {(2, 2)}
    assert report["protection"] == "full"
    first.dies()
    copied = min(copies.held(1).values())
    assert copied < ITERATIONS, "the job was still running"
    elsewhere = Training(other.agent, other.plane)
    other.set_group(fetch=peer.all_ranks())
    other.plane.want(beside, elsewhere.wanted(2, ITERATIONS, start=from_memory(1)))
    expected, _ = undisturbed.weights()
    weights, completed = elsewhere.weights()
    (begun,) = [event for event in other.plane.events_of("first_iteration") if event["job"] == "job"]
    assert begun["iteration"] > copied, "the job resumes from the peer's copies"
    assert (completed["generation"], completed["iteration"]) == (2, ITERATIONS)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    digests = {event["sample_order_digest"] for event in other.plane.events_of("completed")}
    assert len(digests) == 1, "no sample was trained twice or left out"
    assert not any(node.plane.events_of("shard_stored") for node in (first, other)), "nothing went to disk"
