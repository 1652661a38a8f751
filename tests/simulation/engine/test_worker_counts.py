"""Jobs on 3, 6 or 12 workers in simulations: GPUs held, speed, and promises."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from scheduling.core.question.worker_counts import gpus_held
from simulation.engine.run import Simulation
from simulation.workloads.workload import Workload
from tests.plugins.examples import examples
from tests.simulation.engine.worlds import Job, random_world, settings, workload

COUNTS = (3, 6, 12)
THREES = {3: 3.0, 6: 5.0, 12: 8.0}


def declared(base: Workload, counts: tuple[int, ...] = COUNTS) -> Workload:
    return replace(base, profiles=tuple(replace(profile, worker_counts=counts) for profile in base.profiles))


def test_six_workers_hold_eight_gpus_and_are_as_fast_as_six() -> None:
    trace = declared(workload([Job(0.0, 50.0, curve=THREES, batch=36)]))
    outcome = Simulation(trace, settings("punctual", 1, 8)).run()
    assert set(outcome.allocations.gpus.tolist()) == {0, 8}
    assert outcome.jobs.completed_at[0] == pytest.approx(10.0, abs=1.5)


def test_a_worker_count_that_does_not_divide_the_batch_is_no_level() -> None:
    trace = declared(workload([Job(0.0, 30.0, curve=THREES, batch=9)]))
    outcome = Simulation(trace, settings("punctual", 1, 8)).run()
    assert set(outcome.allocations.gpus.tolist()) == {0, 4}
    assert outcome.jobs.completed_at[0] == pytest.approx(10.0, abs=1.5)


def test_a_rival_gets_the_gpus_that_the_requested_workers_hold() -> None:
    trace = declared(workload([Job(0.0, 30.0, curve=THREES, batch=36, requested_gpus=3)]))
    outcome = Simulation(trace, settings("tiresias", 1, 8)).run()
    assert set(outcome.allocations.gpus.tolist()) == {0, 4}


@hypothesis_settings(max_examples=examples(0.3))
@given(seed=st.integers(0, 2**32 - 1), gpus=st.sampled_from([6, 8, 12]))
def test_promises_are_kept_with_any_ascending_numbers(seed: int, gpus: int) -> None:
    """Half of the jobs allow numbers of workers drawn at random."""
    world, rng = random_world(seed), Random(seed)
    profiles = []
    for profile in world.workload.profiles:
        points = profile.by_kind["gpu"]
        counts = tuple(sorted(rng.sample(range(1, 17), points.gpus.size)))
        batch = 1
        for count in counts:
            batch *= count
        if rng.random() < 0.5:
            by_type = {"gpu": replace(points, gpus=points.gpus.copy())}
            by_type["gpu"].gpus[:] = counts
            profile = replace(profile, by_kind=by_type, worker_counts=counts, global_batch_size=batch)
        profiles.append(profile)
    size = replace(world.settings.pools[0], servers=2, gpus_per_server=gpus)
    run_settings = replace(world.settings, pools=(size,))
    happenings = [item for item in world.happenings if "job" in item.kind]
    outcome = Simulation(replace(world.workload, profiles=tuple(profiles)), run_settings, happenings).run()
    assert outcome.broken == {}
    allowed = [{0, *(gpus_held(count) for count in item.worker_counts)} for item in profiles]
    for row, gpus_used in zip(
        outcome.allocations.job.tolist(), outcome.allocations.gpus.tolist(), strict=True
    ):
        counts = profiles[row].worker_counts
        assert not counts or gpus_used in allowed[row]
