"""A job that moves four times and loses two servers ends with the weights of an undisturbed job."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.conftest import PROJECT, RunningAgent, wait_until
from tests.agent.fake_control_plane import FakeControlPlane, generation
from tests.agent.storage.test_memory_points import Training
from tests.agent.storage.test_peer_memory import Node
from workers.runtime.at_home.local_ports import free_port

#: Smooth, so that another order of sums causes only small differences; slow while the job is moved.
FUNCTION = b"""
import time
import torch
from punctual import TrainingFunction

class Smooth(TrainingFunction):
    def init_model(self):
        return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    def init_dataset(self):
        x = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
        return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True).tanh())
    def init_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    def init_scheduler(self, optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    def train(self, batch, model):
        time.sleep(self.hyperparameters["pace"])
        x, y = batch
        return torch.nn.functional.mse_loss(model(x), y)
"""
DIGEST = hashlib.sha256(FUNCTION).hexdigest()
ITERATIONS = 500
SLOWLY, QUICKLY = 0.5, 0.0
SECRET = "known to the stores of this generation alone"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Node]]:
    nodes: list[Node] = []

    def begin(name: str) -> Node:
        (tmp_path / name).mkdir()
        plane = FakeControlPlane()
        plane.bundles[DIGEST] = FUNCTION
        created = Node(name, RunningAgent(tmp_path / name, plane), plane, free_port())
        created.agent.runtime = PROJECT
        created.agent.settings |= {
            "name": name, "warm_workers": 1, "memory_point_share": 1.0,
            "emulate": {"name": "test", "fixed_seconds": 0.0, "seconds_per_sample": 0.0},
        }  # fmt: skip
        nodes.append(created)
        created.agent.start()
        return created

    yield begin
    for node in nodes:
        print(node.name, node.agent.log)
        node.agent.close()
        node.plane.close()


@dataclass
class Members:
    """A generation: its entry in the desired state, its ranks' servers and ports, the holder of copies."""

    entry: dict[str, Any]
    ranks: list[Node]
    ports: list[int]
    keeper: Node

    @property
    def number(self) -> int:
        return int(self.entry["generation"])

    def part_of(self, node: Node, **changes: Any) -> list[dict[str, Any]]:
        """Return the generation's entry for a server's agent, with ``changes``; empty if no rank is there."""
        workers = [
            {"rank": rank, "gpu_index": 2 * (self.number % 2) + rank, "handover_port": port}
            for rank, (own, port) in enumerate(zip(self.ranks, self.ports, strict=True))
            if own is node
        ]
        return [{**self.entry, **changes, "workers": workers}] if workers else []

    def group_of(self, node: Node) -> dict[str, Any]:
        """Return the generation's group for a server's store. Each rank has one copy on another server."""
        peers = {rank: self._peer(own) for rank, own in enumerate(self.ranks)}
        return {
            "job": "job", "generation": self.number, "secret": SECRET, "fetch": [],
            "send": [
                {"rank": rank, "peers": [{"server": peer.name, "address": "127.0.0.1", "port": peer.port}]}
                for rank, peer in peers.items()
                if peer is not None and self.ranks[rank] is node
            ],
            "keep": [rank for rank, peer in peers.items() if peer is node],
        }  # fmt: skip

    def _peer(self, own: Node) -> Node | None:
        others = [node for node in (self.keeper, *self.ranks) if node is not own]
        return others[0] if others else None

    def first(self) -> int:
        """Wait for the generation's first iteration; return it."""
        plane = self.ranks[0].plane
        events = wait_until(
            lambda: [
                event
                for event in plane.events_of("first_iteration")
                if (event["job"], event["generation"]) == ("job", self.number)
            ],
            f"generation {self.number} trains", 120,
        )  # fmt: skip
        return int(events[0]["iteration"])

    def wait_for_copies(self) -> None:
        """Wait until the keeper has copies of all ranks from this generation's own iterations."""
        began, keeper = self.first(), Training(self.keeper.agent, self.keeper.plane)

        def has_copies() -> bool:
            iterations = keeper.held(self.number)
            return len(iterations) == len(self.ranks) and min(iterations.values()) > began

        wait_until(has_copies, "there are copies", 60)


class Moves:
    """Orders generations one after the other, as the control plane does."""

    def __init__(self, beside: Node, entry: dict[str, Any]) -> None:
        """`entry`: another job's entry, which the server `beside` trains all the time."""
        self._beside, self._entry_beside = beside, entry
        self._made: list[Members] = []

    def begin(self, ranks: list[Node], keeper: Node, start: dict[str, Any], pace: float = SLOWLY) -> Members:
        """Start a generation without a live predecessor."""
        members = self._make(ranks, keeper, pace)
        members.entry |= {"goal": "train", "start": start}
        self._tell(members)
        return members

    def rescale(self, ranks: list[Node], keeper: Node) -> Members:
        """Prepare a successor, then hand the state over to it."""
        old, new = self._made[-1], self._make(ranks, keeper, SLOWLY)
        self._tell(old, new)
        wait_until(
            lambda: all(
                node.plane.phase("job", new.number, rank) == "ready" for rank, node in enumerate(new.ranks)
            ),
            "the successor is ready", 90,
        )  # fmt: skip
        shards = [
            {
                "id": number, "reader": number % len(ranks),
                "holders": [{"tier": "memory", "address": "127.0.0.1", "port": port}],
            }
            for number, port in enumerate(old.ports)
        ]  # fmt: skip
        start = {"from": "handover", "generation": old.number, "shards": shards}
        old.entry["goal"] = "hand_over"
        new.entry |= {"goal": "train", "start": start}
        self._tell(old, new)
        assert new.first() > old.first()
        self._tell(new, also=old.ranks)
        return new

    def lose(self, lost: Node) -> dict[str, Any]:
        """Kill a server; return the start instruction for the state that the keeper has."""
        last = self._made[-1]
        last.wait_for_copies()
        lost.dies()
        holder = {"tier": "memory", "server": last.keeper.name}
        return {
            "from": "memory", "generation": last.number, "world_size": len(last.ranks),
            "shards": [{"id": rank, "reader": 0, "holders": [holder]} for rank in range(len(last.ranks))],
        }  # fmt: skip

    def _make(self, ranks: list[Node], keeper: Node, pace: float) -> Members:
        ports, master_port = [free_port() for _ in ranks], free_port()
        entry = preparing_entry("job", len(self._made) + 1, len(ranks), master_port, pace)
        self._made.append(Members(entry, list(ranks), ports, keeper))
        return self._made[-1]

    def _tell(self, *members: Members, also: Sequence[Node] = ()) -> None:
        """Send each involved server its whole desired state."""
        nodes = [*also, *(node for member in members for node in (member.keeper, *member.ranks))]
        for node in {node.name: node for node in nodes}.values():
            with node.plane.lock:
                node.plane.remembered = ["job"]
                groups = [item.group_of(node) for item in self._made[-2:]]
                node.plane.memory = {"server": node.name, "port": node.port, "groups": groups}
            beside = [self._entry_beside] if node is self._beside else []
            node.plane.want(*beside, *(part for item in members for part in item.part_of(node)))


def preparing_entry(job: str, number: int, world_size: int, master_port: int, pace: float) -> dict[str, Any]:
    """Return an entry for a generation that prepares."""
    return generation(
        job,
        number,
        goal="prepare",
        start=None,
        world_size=world_size,
        master_port=master_port,
        function={"digest": DIGEST, "entry": "smooth:Smooth", "requirements_digest": None},
        hyperparameters={"global_batch_size": 16, "pace": pace},
        termination={"max_iterations": ITERATIONS, "target": None},
        seed=5,
        checkpoint_seconds=600,
    )


@pytest.mark.slow  # seven starts of workers
@pytest.mark.timeout(900)
def test_four_rescales_and_two_losses_change_only_the_order_of_sums(
    start: Callable[[str], Node],
) -> None:
    first, keeper, last = start("first"), start("keeper"), start("last")
    ports = free_port(), free_port()
    undisturbed = preparing_entry("undisturbed", 1, 1, ports[0], QUICKLY) | {
        "goal": "train", "start": {"from": "nothing"},
        "workers": [{"rank": 0, "gpu_index": 3, "handover_port": ports[1]}],
    }  # fmt: skip
    moves = Moves(keeper, undisturbed)
    moves.begin([first, first], keeper, {"from": "nothing"}).first()
    moves.rescale([first], keeper)
    moves.rescale([keeper, first], keeper)
    from_memory = moves.lose(first)
    moves.begin([keeper], last, from_memory).first()
    moves.rescale([keeper, last], keeper)
    moves.rescale([last], keeper)
    from_memory = moves.lose(last)
    ended = moves.begin([keeper], keeper, from_memory, QUICKLY)

    expected, whole = Training(keeper.agent, keeper.plane, "undisturbed").weights()
    weights, completed = Training(keeper.agent, keeper.plane).weights()
    assert (completed["generation"], completed["iteration"]) == (ended.number, ITERATIONS)
    assert completed["sample_order_digest"] == whole["sample_order_digest"], "each sample once, in order"
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5)
    stored = [
        event["reason"] for node in (first, keeper, last) for event in node.plane.events_of("shard_stored")
    ]
    assert set(stored) <= {"handover"}, "no state went through durable storage"
