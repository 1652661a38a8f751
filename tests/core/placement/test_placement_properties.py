"""Placement over random arrivals, departures and rescalings never fails and moves no job needlessly."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from scheduling.core.placement.buddy_blocks import Blocks, blocks_of
from scheduling.core.placement.occupancy import Occupancy, addresses_of, empty_occupancy
from scheduling.core.placement.repacking import _repack
from tests.core.building import servers

JOBS = 24


class Sequence:
    """One random sequence on one random cluster."""

    def __init__(self, rng: Random, *, broken_servers: bool) -> None:
        self.rng = rng
        shape = [rng.choice([4, 8])] * rng.randint(1, 8)
        if broken_servers and rng.random() < 0.3:
            shape = [rng.choice([2, 3, 4, 6, 8]) for _ in shape]
        cluster = servers(*shape)
        if broken_servers:
            cluster = tuple(replace(server, usable=rng.random() < 0.7) for server in cluster)
        self.blocks: Blocks = blocks_of(cluster)
        self.gpus = int(self.blocks.size.sum())
        self.occupancy: Occupancy = empty_occupancy(self.blocks, np.zeros(0, dtype=np.int64), JOBS)
        self.wanted = np.zeros(JOBS, dtype=np.int64)
        self.held: list[tuple[int, ...]] = [()] * JOBS

    def step(self) -> None:
        changed = self.change_sizes()
        # Every decision starts from fresh marks.
        self.occupancy.settled[:] = 0
        failed = _repack(
            self.blocks, self.occupancy, np.arange(JOBS), self.wanted,
            np.zeros(JOBS, dtype=np.bool_), np.arange(JOBS),
        )  # fmt: skip
        assert failed.size == 0
        before, self.held = (
            self.held,
            [tuple(addresses_of(self.blocks, self.occupancy, job).tolist()) for job in range(JOBS)],
        )
        self.check_places()
        self.check_moves(before, changed)

    def change_sizes(self) -> set[int]:
        changed = set()
        for _ in range(self.rng.randint(1, 4)):
            job = self.rng.randrange(JOBS)
            free = self.gpus - int(self.wanted.sum()) + int(self.wanted[job])
            sizes = [0, *(2**power for power in range(6) if 2**power <= free)]
            size = self.rng.choice(sizes)
            if size != self.wanted[job]:
                self.wanted[job] = size
                changed.add(job)
        return changed

    def check_places(self) -> None:
        taken: set[int] = set()
        for job in range(JOBS):
            addresses = self.held[job]
            assert len(addresses) == self.wanted[job]
            assert not taken & set(addresses)
            taken |= set(addresses)
            assert all(self.blocks.block_of[address] >= 0 for address in addresses)
            if not addresses:
                continue
            block = self.blocks.block_of[addresses[0]]
            if len(addresses) <= self.blocks.size[block]:
                assert addresses[-1] - addresses[0] == len(addresses) - 1
                assert (addresses[0] - self.blocks.base[block]) % len(addresses) == 0
            else:
                used = np.bincount(self.blocks.block_of[list(addresses)], minlength=self.blocks.size.size)
                assert np.all((used == 0) | (used == self.blocks.size)), "whole blocks only"
        counted = np.bincount(self.blocks.block_of[list(taken)], minlength=self.blocks.size.size)
        assert np.array_equal(counted, self.occupancy.taken)
        assert not (self.occupancy.former >= 0).any()
        assert not (self.occupancy.mine >= 0).any()

    def check_moves(self, before: list[tuple[int, ...]], changed: set[int]) -> None:
        """Check that a job of unchanged size moved only if another job now has some of its old GPUs."""
        for job in range(JOBS):
            if job in changed or not before[job] or before[job] == self.held[job]:
                continue
            others = {a for other in range(JOBS) if other != job for a in self.held[other]}
            assert set(before[job]) & others


def run_sequences(count: int, first_seed: int, *, broken_servers: bool) -> None:
    for seed in range(first_seed, first_seed + count):
        sequence = Sequence(Random(seed), broken_servers=broken_servers)
        if sequence.gpus:
            for _ in range(6):
                sequence.step()


def test_repack_never_fails_on_whole_clusters():
    run_sequences(250, 0, broken_servers=False)


def test_repack_never_fails_with_broken_servers_of_any_size():
    run_sequences(250, 10_000, broken_servers=True)


@pytest.mark.slow
def test_repack_never_fails_in_twenty_thousand_sequences():
    run_sequences(10_000, 20_000, broken_servers=False)
    run_sequences(10_000, 40_000, broken_servers=True)
