"""Jobs on three, six or twelve workers: what they hold, where they are measured, that all find a place."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.core.placement.measuring import FREE, levels_to_come, measuring_blocks
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
    ("servers", "sizes"), [((8, 8), [16, 8, 4]), ((6, 6), [4]), ((4, 4, 4, 4), [16, 8, 4])]
)
def test_they_are_measured_on_blocks_with_room_for_them(servers: tuple[int, ...], sizes: list[int]):
    standing = np.full(sum(servers), FREE, dtype=np.int8)
    blocks = list(measuring_blocks(servers, standing, [3, 6, 12]))
    assert [len(block) for block in blocks] == sizes
    usable = np.ones(sum(servers), dtype=np.bool_)
    to_come = levels_to_come(36, servers, usable, 0, (3, 6, 12))
    assert to_come == [level for level in (3, 6, 12) if gpus_held(level) in sizes]


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(min_value=0, max_value=2**32 - 1))
def test_all_find_a_place_and_no_promise_breaks_on_servers_of_four_six_and_eight(seed: int):
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
