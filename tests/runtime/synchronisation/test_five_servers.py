"""Five servers, two copies of each rank's state, real stores and trainers: which servers may be lost at once.

Servers 0 and 1 keep each other's state; 2, 3 and 4 form a ring. A killed server loses its trainer and all
that its store held; a standby with an empty store takes its rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from recovery.placement.strategies import place
from tests.recovery import test_store
from tests.recovery.test_lost_standby import HoldingUp
from tests.recovery.test_peers import SECRET, Server
from tests.recovery.test_store import SECONDS, WORKER_BYTES, wait_until
from tests.runtime.conftest import REGRESSION, regression
from workers.runtime.at_home.local_agent import CheckpointFiles, Generation, LocalAgent

pytestmark = [pytest.mark.live, pytest.mark.timeout(1500)]

SERVERS = 5
#: The server with the copy of each server's state.
HOLDERS = place(SERVERS, 2).holders
#: Pairs that hold all copies of a rank's state.
FATAL = {(0, 1), (2, 3), (3, 4), (2, 4)}
ENDLESS = 10**6
NOT_WHOLE = "no recovery point in memory is whole on all ranks"


class Job:
    """A job's generations one after the other, as the control plane orders them."""

    def __init__(self, agent: LocalAgent, folder: Path) -> None:
        self._agent, self._folder, self._made = agent, folder, 0
        self.servers = [self._standby(rank) for rank in range(SERVERS)]
        self.number = 0
        self.generation: Generation | None = None
        #: The generation that trained last.
        self.trained = 0

    def _standby(self, rank: int) -> Server:
        self._made += 1
        return Server(self._folder / f"server-{self._made}", f"server-{rank}")

    def _group(self, number: int, **changes: Any) -> dict[str, Any]:
        return {
            "job": "job", "generation": number, "secret": SECRET, "send": [], "keep": [], "fetch": [],
            **changes,
        }  # fmt: skip

    def begin(
        self, iterations: int = ENDLESS, ways: dict[int, int] | None = None, **changes: Any
    ) -> Generation:
        """Start five trainers; `ways`: ports to call instead of a server's own, by its rank."""
        self.number += 1
        workers = self._agent.warm_workers(SERVERS)
        peers = [{**server.as_peer, "port": (ways or {}).get(rank, server.port)}
                 for rank, server in enumerate(self.servers)]  # fmt: skip
        for rank, (server, worker) in enumerate(zip(self.servers, workers, strict=True)):
            server.served = {
                "worker": {
                    "key": f"worker-{self.number}", "box": str(worker.box), "user_id": None, "job": "job",
                    "generation": self.number, "rank": rank, "world_size": SERVERS,
                    "limit_bytes": WORKER_BYTES,
                }
            }  # fmt: skip
            others = [peers[holder] for holder in HOLDERS[rank][1:]]
            keep = [owner for owner in range(SERVERS) if rank in HOLDERS[owner][1:]]
            send = [{"rank": rank, "peers": others}]
            fetch = [{"rank": rank, "peers": others}]
            groups = [self._group(self.number, send=send, keep=keep)]
            if self.trained:
                groups.append(self._group(self.trained, fetch=fetch))
            server.peers = {**server.as_peer, "groups": groups}
            server.tell()
        assignment = regression(
            iterations, 20, hyperparameters={"dropout": True}, job="job", generation=self.number,
            memory_points={"share": 1.0}, **changes,
        )  # fmt: skip
        self.generation = self._agent.begin(workers, REGRESSION, assignment).wait_until_ready()
        return self.generation

    def from_memory(self) -> None:
        """Order all ranks to resume from the memory of the generation that trained last."""
        assert self.generation is not None
        shards = [
            {"id": rank, "reader": rank, "holders": [{"tier": "memory", "server": f"server-{rank}"}]}
            for rank in range(SERVERS)
        ]
        start = {"from": "memory", "generation": self.trained, "world_size": SERVERS, "shards": shards}
        self.generation.goal("train", start)

    def trains(self) -> int:
        """Wait until this generation trains; return the iteration from which it resumed."""
        assert self.generation is not None
        self.trained = self.number
        return int(self.generation.leader.wait_for_event("first_iteration")["iteration"]) - 1

    def kept(self, iteration: int) -> int:
        """Wait until both servers of every rank hold at least that iteration; return the newest one that they
        hold."""

        def newest() -> int:
            of_servers = [
                {rank: at for _job, number, rank, at in server.held() if number == self.number}
                for server in self.servers
            ]
            common = min(
                of_servers[holder].get(rank, -1) for rank in range(SERVERS) for holder in HOLDERS[rank]
            )
            return max(common, 0) if common >= iteration else 0

        return int(wait_until(newest, "every shard is on two servers"))

    def lose(self, *lost: int) -> None:
        """Kill these servers, then the remaining trainers, and let standbys take the ranks."""
        assert self.generation is not None
        for rank in lost:
            self.generation.workers[rank].kill()
            self.servers[rank].end()
            self.servers[rank] = self._standby(rank)
        self.generation.stop()

    def falls_back(self) -> None:
        """Check that no rank resumes from memory: each reports the reason and ends."""
        assert self.generation is not None
        for worker in self.generation.workers:
            assert NOT_WHOLE in worker.wait_for_event("failed")["message"]
            assert not any(event["kind"] == "first_iteration" for event in worker.of_kind("event"))
        self.generation.stop()

    def result(self) -> tuple[dict[str, torch.Tensor], str]:
        """Return the final weights, and the order of the samples."""
        assert self.generation is not None
        digest = self.generation.report()["sample_order_digest"]
        return torch.load(self.generation.leader.box / "out/final/weights.pt", weights_only=True), digest


@pytest.fixture
def job(agent: LocalAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(test_store, "LIMIT_BYTES", 64 << 20)
    made = Job(agent, tmp_path)
    yield made
    for server in made.servers:
        server.end()


def durable_point(job: Job) -> CheckpointFiles:
    """Train from the beginning until all ranks have written a durable state."""
    generation = job.begin(checkpoint_seconds=1)
    generation.train_from_nothing()
    job.trains()
    return generation.checkpoint_files()


def test_six_of_ten_pairs_and_each_single_server_recover(job: Job) -> None:
    """All losses happen to the same job, which ends with the weights of an undisturbed one."""
    point = durable_point(job)
    reached = point.iteration
    fell_back = []
    for lost in [*((server,) for server in range(SERVERS)), *combinations(range(SERVERS), 2)]:
        reached = job.kept(reached + 2)
        job.lose(*lost)
        job.begin()
        job.from_memory()
        if lost in FATAL:
            job.falls_back()
            fell_back.append(lost)
            job.begin().train_from_checkpoint(point)
            assert job.trains() == point.iteration, "all ranks, those with newer copies too"
            reached = point.iteration
        else:
            assert job.trains() >= reached, f"from memory after {lost}"
    assert set(fell_back) == FATAL
    ended_at = job.kept(reached + 2) + 200
    job.lose()
    job.begin(ended_at)
    job.from_memory()
    job.trains()
    weights, samples = job.result()
    undisturbed = job.begin(ended_at)
    undisturbed.train_from_nothing()
    expected, all_samples = job.result()
    assert samples == all_samples
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_a_standby_killed_while_it_fetches_is_replaced(job: Job) -> None:
    """The interrupted generation has written nothing, and the next one reads the same state."""
    durable_point(job)
    reached = job.kept(1)
    job.lose(0)
    with HoldingUp(job.servers[1].port, 3000) as way:
        job.begin(ways={1: way.server_address[1]})
        job.from_memory()
        assert way.full.wait(SECONDS), "the standby fetches"
        job.lose(0)
    job.begin()
    job.from_memory()
    assert job.trains() >= reached
    job.kept(reached + 2)
