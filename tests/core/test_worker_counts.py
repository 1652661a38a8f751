"""Jobs on three, six or twelve workers: GPUs held, blocks for measuring, and placement."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.placement.measuring import FREE, TAKEN, levels_to_come, measuring_blocks
from scheduling.core.question.curves import curve_from_measurements
from scheduling.core.question.snapshot import ServerSnapshot
from scheduling.core.question.worker_counts import gpus_held, measurable_levels, workers_by_gpus
from tests.core.executing import Cluster
from tests.core.workloads import random_workload


def test_a_job_holds_the_smallest_block_with_room_for_its_workers():
    assert [gpus_held(workers) for workers in (1, 2, 3, 4, 5, 6, 8, 12, 16, 24)] == [
        1, 2, 4, 4, 8, 8, 8, 16, 16, 32,
    ]  # fmt: skip


def test_of_numbers_that_hold_the_same_the_largest_counts():
    assert workers_by_gpus([3, 4, 6, 12], 24) == {4: 4, 8: 6, 16: 12}
    assert workers_by_gpus([3, 4, 6, 12], 18) == {4: 3, 8: 6}


@pytest.mark.parametrize(
    ("batch", "gpus", "declared", "levels"),
    [
        (64, 8, (), [1, 2, 4, 8]),
        (12, 16, (), [1, 2, 4]),
        (36, 16, (3, 6, 12), [3, 6, 12]),
        (36, 12, (3, 6, 12), [3, 6]),
        (9, 16, (3, 6, 12), [3]),
        (8, 16, (3, 6, 12), []),
    ],
)
def test_levels_divide_the_batch_and_find_room(batch: int, gpus: int, declared, levels: list[int]):
    assert measurable_levels(batch, gpus, declared) == levels


@pytest.mark.parametrize(
    ("servers", "sizes"),
    [
        ((8, 8), [16, 8, 4]),
        ((6,), [4]),
        ((6, 6), [8, 4]),
        ((6, 6, 6), [16, 8, 4]),
        ((12,), [8, 4]),
        ((12, 12), [16, 8, 4]),
        ((4, 4, 4, 4), [16, 8, 4]),
    ],
)
def test_they_are_measured_on_blocks_with_room_for_them(servers: tuple[int, ...], sizes: list[int]):
    standing = np.full(sum(servers), FREE, dtype=np.int8)
    blocks = list(measuring_blocks(servers, standing, [3, 6, 12]))
    assert [len(block) for block in blocks] == sizes
    usable = np.ones(sum(servers), dtype=np.bool_)
    to_come = levels_to_come(36, servers, usable, 0, (3, 6, 12))
    assert to_come == [level for level in (3, 6, 12) if gpus_held(level) in sizes]


def test_six_workers_on_servers_of_six_are_measured_on_parts_of_both() -> None:
    """Four on one server and two on the other, and not all on one."""
    (block,) = measuring_blocks((6, 6), np.full(12, FREE, dtype=np.int8), [6])
    assert block == (0, 1, 2, 3, 6, 7, 8, 9)
    (block,) = measuring_blocks((12, 12), np.full(24, FREE, dtype=np.int8), [12])
    assert block == (*range(8), *range(12, 20))


@given(
    servers=st.lists(st.integers(1, 16), min_size=1, max_size=5),
    levels=st.sets(st.integers(1, 40), min_size=1, max_size=5),
    seed=st.integers(0, 2**32 - 1),
)
def test_measuring_block_has_the_asked_size_and_takes_only_free_gpus(
    servers: list[int], levels: set[int], seed: int
) -> None:
    rng = Random(seed)
    standing = np.array([rng.choice([TAKEN, FREE, FREE, FREE]) for _ in range(sum(servers))], dtype=np.int8)
    for block in measuring_blocks(servers, standing, sorted(levels)):
        assert len(block) in {gpus_held(level) for level in levels}
        assert list(block) == sorted(set(block))
        assert (standing[list(block)] != TAKEN).all()


@given(seed=st.integers(min_value=0, max_value=2**32 - 1), gpus=st.sampled_from([6, 8, 12]))
def test_all_find_a_place_with_any_ascending_numbers_of_workers(seed: int, gpus: int) -> None:
    """On servers of 6, 8 or 12 GPUs; numbers of workers drawn at random, some of which hold the same GPUs."""
    rng = Random(seed)
    workload = random_workload(seed, most_jobs=12)
    servers = tuple(ServerSnapshot(f"server{number}", gpus) for number in range(rng.randint(1, 3)))
    jobs = []
    for job in workload.jobs:
        counts = sorted(rng.sample(range(1, 2 * gpus), rng.randint(1, 5)))
        rate, by_workers = float(job.curve.throughput[0]), {}
        for count in counts:
            by_workers[count] = rate
            rate *= rng.uniform(1.05, 1.9)
        held = {gpus_held(count): by_workers[count] for count in counts}
        pauses = dict.fromkeys(held, float(job.curve.pause_seconds.max(initial=0.0)))
        curve = curve_from_measurements(
            held, cluster_gpus=gpus * len(servers), pause_seconds=pauses.__getitem__
        )
        jobs.append(replace(job, curve=curve) if curve.levels.size else job)
    cluster = Cluster(servers, workload.settings)
    cluster.run(jobs)
    assert cluster.late() == {}


@given(seed=st.integers(min_value=0, max_value=2**32 - 1))
def test_no_promise_breaks_on_servers_of_four_six_and_eight_gpus(seed: int):
    """Some jobs run on 3, 6 or 12 workers, the others on powers of two."""
    rng = Random(seed)
    workload = random_workload(seed, most_jobs=12)
    shape = rng.choice([(4, 4, 4, 4), (6, 6, 6), (8, 8), (6, 8, 4)])
    servers = tuple(ServerSnapshot(f"server{number}", gpus) for number, gpus in enumerate(shape))
    jobs = []
    for job in workload.jobs:
        if rng.random() < 0.5:
            rate, rates = float(job.curve.throughput[0]), {}
            for workers in (3, 6, 12):
                rates[gpus_held(workers)] = rate
                rate *= rng.uniform(1.1, 1.9)
            pause = float(job.curve.pause_seconds.max(initial=0.0))
            pauses = dict.fromkeys(rates, pause)
            job = replace(job, curve=curve_from_measurements(rates, pause_seconds=pauses.__getitem__))
        jobs.append(job)
    cluster = Cluster(servers, workload.settings)
    cluster.run(jobs)
    assert cluster.late() == {}
    assert cluster.at_risk == set()
