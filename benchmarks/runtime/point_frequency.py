"""Recovery points in memory by size of state and link: their frequency, their cost, and a lost server's loss.

    python -m benchmarks.runtime.point_frequency [--share 0.02] [--servers 4] [--compute-seconds 1.0]

Time is simulated, so the figures are the same on every machine. The runtime's own rules (`MemoryPoints`,
`CopyTraffic`) run on the clock of one rank of a job with one rank on each server. State is FP32 with Adam: a
gradient is a third of it. Its all-reduce begins after the forward pass, a third of the computing. A write
stops training (`WRITE_BYTES_PER_SECOND`), checksums precede the copy (`CHECKSUM_BYTES_PER_SECOND`). The part
of a copy that overlaps an all-reduce lengthens that by as much. A server may be lost at any moment; the
newest point whose copy has arrived counts. Durable states, once a minute, are left out: if points are rarer
than that, a job loses as much as without points.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from recovery.costs.failures import PUBLISHED_FAILURES_A_DAY
from recovery.store.allowances import Sending
from recovery.store.client import Copied, Standing
from recovery.traffic.modes import TrafficMode
from workers.agent.machine.configuration import Configuration
from workers.runtime.state.copy_traffic import CopyTraffic
from workers.runtime.state.memory_points import MemoryPoints, Vote, Votes
from workers.runtime.state.shards import STATE_FORMAT, Shard

STATES_BYTES = (100e6, 1e9, 10e9)
LINKS_BYTES_PER_SECOND = (0.125e9, 1.25e9, 12.5e9)
WRITE_BYTES_PER_SECOND = 2e9
CHECKSUM_BYTES_PER_SECOND = 1e9
#: Fixed time to find tensors and ask the store.
WRITE_SECONDS = 0.002
STARTUP_SECONDS = 0.0005
DURABLE_SECONDS = 60.0
OPTIMIZER_SHARE = 0.05
POINTS = 40
WITHOUT_END = float("inf")


@dataclass(frozen=True)
class Figures:
    """Figures of one job. ``longer``: share by which its time is longer than without points."""

    iteration_seconds: float
    every: float
    longer: float
    mean_lost_seconds: float
    most_lost_seconds: float


class SimulatedJob:
    """One rank's training, its store and its link, on one clock."""

    def __init__(self, state_bytes: float, link: float, servers: int, compute: float, share: float) -> None:
        self.shard_bytes = round(state_bytes / servers)
        self._link = link
        self._forward, self._backward = compute / 3, compute * 2 / 3
        self._optimizer = OPTIMIZER_SHARE * compute
        self._reduce = 2 * (servers - 1) / servers * state_bytes / 3 / link
        self.iteration_seconds = self._forward + max(self._backward, self._reduce) + self._optimizer
        self.at = 1000.0
        self.iteration = 0
        self.plans: list[dict[str, Any]] = []
        #: Time of each point's state, and of its copy's arrival.
        self.points: list[tuple[float, float]] = []
        self._written: tuple[int, float] | None = None
        self._held: set[int] = set()
        self._left = self._budget = 0.0
        self._ends = self._sends_from = 0.0
        self._last: Copied | None = None
        self._traffic = CopyTraffic(
            self, mode=TrafficMode.GEMINI, share=share,
            failures_per_second=servers * PUBLISHED_FAILURES_A_DAY / 86_400, durable_seconds=DURABLE_SECONDS,
            now=lambda: self.at, tell=self.plans.append,
        )  # fmt: skip
        self._memory_points = MemoryPoints(self, share, self._traffic, lambda: self.at)

    def train(self) -> None:
        """Run one iteration, with its point if it has one."""
        self.iteration += 1
        self._traffic.begins()
        self._idle(self._forward)
        began = self.at
        self.at += self._reduce
        self.at += self._send(self._reduce, began)
        self._traffic.collective(began, self.at)
        self._idle(max(0.0, began + self._backward - self.at))
        vote = self._memory_points.vote()
        self._idle(self._optimizer)
        self._traffic.ends()
        self._memory_points.keep(_heard(vote), self._shard)

    def _shard(self) -> Shard:
        self._written = (self.iteration, self.at)
        self.at += WRITE_SECONDS + self.shard_bytes / WRITE_BYTES_PER_SECOND
        description = {
            "format": STATE_FORMAT, "generation": 1, "iteration": self.iteration, "shard": 0, "world_size": 1,
            "layout_digest": "", "slices": [], "own": [],
        }  # fmt: skip
        return Shard(description, [torch.zeros(1)])

    # The link

    def _idle(self, seconds: float) -> None:
        began = self.at
        self.at += seconds
        self._send(seconds, began)

    def _send(self, seconds: float, began: float) -> float:
        """Send what may be sent within ``seconds``; return the seconds that it took."""
        within = min(began + seconds, self._ends) - max(began, self._sends_from)
        size = min(self._left, self._budget, max(0.0, within) * self._link)
        if size <= 0.0 or self._written is None:
            return 0.0
        self._left -= size
        self._budget -= size
        if self._left <= 1.0:
            iteration, written_at = self._written
            arrived_at = max(began, self._sends_from) + size / self._link
            self._held, self._written, self._left = {*list(self._held)[-1:], iteration}, None, 0.0
            self.points.append((written_at, arrived_at))
            took = self.shard_bytes / self._link + STARTUP_SECONDS
            self._last = Copied(iteration, 1, self.shard_bytes, took, STARTUP_SECONDS, arrived_at)
        return size / self._link

    # The store, as the runtime sees it

    def idle(self) -> bool:
        """Return whether the last version is complete."""
        return self._written is None

    def fits(self, size: int, committed: int | None) -> bool:
        """Return True: there is always room."""
        return True

    def holds(self, iteration: int) -> bool:
        """Return whether a version is complete."""
        return iteration in self._held

    def wait(self, condition: object, seconds: float) -> bool:
        """Return at once: nothing waits here."""
        return False

    def standing(self, iteration: int) -> Standing:
        """Return the state of a version."""
        return Standing.SAFE if self.holds(iteration) else Standing.WAITED_FOR

    def ask_for_room(self, size: int, committed: int | None) -> None:
        """Do nothing: there is always room."""

    def write(
        self,
        iteration: int,
        buffers: Iterable[memoryview | bytes],
        *,
        size: int,
        description_bytes: int,
        committed: int | None,
        sending: Sending | None = None,
    ) -> bool:
        """Store a version; its copy is sent at once unless there is a plan."""
        self._left = float(self.shard_bytes)
        self._sends_from = self.at + self.shard_bytes / CHECKSUM_BYTES_PER_SECOND
        is_planned = sending is not None and sending.pause_seconds > 0.0
        self._budget, self._ends = (0.0, 0.0) if is_planned else (WITHOUT_END, WITHOUT_END)
        return True

    def copied(self) -> Copied | None:
        """Return what the last copy took."""
        return self._last

    def allow(self, size: int, within_seconds: float | None, takes_seconds: float) -> None:
        """Allow ``size`` bytes to be sent now."""
        self._budget = float(size)
        self._ends = WITHOUT_END if within_seconds is None else self.at + within_seconds


def _heard(vote: Vote) -> Votes:
    return Votes(vote.ready, vote.spoiled, vote.safe, vote.lacking, vote.busy)


def measure(state_bytes: float, link: float, servers: int, compute: float, share: float) -> Figures:
    """Train until a plan was made and reviewed, and then for a fixed number of points."""
    job = SimulatedJob(state_bytes, link, servers, compute, share)
    while len(job.points) < POINTS:
        job.train()
    first, began, skipped = job.iteration, job.at, len(job.points)
    while len(job.points) < skipped + POINTS:
        job.train()
    iterations, seconds = job.iteration - first, job.at - began
    lost = most = 0.0
    known = job.points[skipped - 1 :]
    for (state_at, whole_at), (_, next_whole_at) in zip(known, known[1:], strict=False):
        young, old = whole_at - state_at, next_whole_at - state_at
        lost += (old**2 - young**2) / 2
        most = max(most, old)
    return Figures(
        job.iteration_seconds,
        iterations / POINTS,
        seconds / (iterations * job.iteration_seconds) - 1.0,
        lost / (known[-1][1] - known[0][1]),
        most,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--share", type=float, default=Configuration.memory_point_share)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--compute-seconds", type=float, default=1.0)
    chosen = parser.parse_args()
    print("state GB | link Gbit/s | iteration s | a point every | longer | lost s: mean, most")
    for state_bytes in STATES_BYTES:
        for link in LINKS_BYTES_PER_SECOND:
            found = measure(state_bytes, link, chosen.servers, chosen.compute_seconds, chosen.share)
            print(
                f"{state_bytes / 1e9:8.1f} | {link / 0.125e9:4.0f} | {found.iteration_seconds:6.2f} | "
                f"{found.every:6.1f} iterations, {found.every * found.iteration_seconds:6.1f} s | "
                f"{found.longer:+.2%} | {found.mean_lost_seconds:6.1f}, {found.most_lost_seconds:6.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
