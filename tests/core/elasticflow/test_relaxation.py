"""The relaxation bounds every schedule: exact answers on small instances, simulated runs, and hand-worked
cases."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.elasticflow.relaxation import Hull, JobsToBound, hull_of_points, on_time_bound
from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.engine.checks.bound import deadlines_bound
from simulation.engine.run import Simulation
from tests.simulation.engine.worlds import Job, workload

GPUS = 4
SLOTS = 5
LEVELS = (1, 2, 4)

small_jobs = st.lists(
    st.tuples(
        st.integers(0, SLOTS - 1),  # submitted
        st.integers(1, SLOTS),  # slots until the deadline
        st.floats(0.3, 6.0),  # work
        # speed on 1, times at 2, times at 4
        st.tuples(st.floats(0.3, 1.5), st.floats(0.9, 2.2), st.floats(0.9, 2.2)),
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


def speeds(curve: tuple[float, float, float]) -> tuple[float, float, float]:
    return curve[0], curve[0] * curve[1], curve[0] * curve[1] * curve[2]


def jobs_to_bound(jobs) -> JobsToBound:
    return JobsToBound(
        start_at=np.array([job[0] for job in jobs], dtype=np.float64),
        due_at=np.array([job[0] + job[1] for job in jobs], dtype=np.float64),
        work=np.array([job[2] for job in jobs]),
        hull_of=np.arange(len(jobs)),
        hulls=tuple(hull_of_points(np.array(LEVELS), np.array(speeds(job[3]))) for job in jobs),
    )


def most_on_time(jobs) -> int:
    """Return the largest number of jobs on time, by trying every division of the GPUs in every slot, without
    pauses.

    A state is dropped if another has no more work left of any job, and so meets at least as many deadlines.
    """
    choices = [
        sizes for sizes in product((0, *LEVELS), repeat=len(jobs)) if sum(sizes) <= GPUS
    ]  # fmt: skip
    rate = [dict(zip(LEVELS, speeds(job[3]), strict=True)) | {0: 0.0} for job in jobs]
    done = np.array([[rate[row][gpus] for row, gpus in enumerate(sizes)] for sizes in choices])
    begin = np.array([job[0] for job in jobs])
    end = begin + np.array([job[1] for job in jobs])
    states = np.array([[job[2] for job in jobs]], dtype=np.float64)
    for slot in range(2 * SLOTS):
        # After its deadline a job's remaining work does not change: at the end it is zero for jobs on time.
        now_done = np.unique(np.where((begin <= slot) & (slot < end), done, 0.0), axis=0)
        remaining = np.maximum(0.0, states[:, None, :] - now_done[None, :, :]).reshape(-1, len(jobs))
        # The remaining work of a late job does not matter.
        late = (end <= slot + 1) & (remaining > 1e-9)
        states = not_dominated(np.unique(np.where(late, np.inf, remaining).round(9), axis=0))
    return int((states <= 1e-9).sum(axis=1).max())


def not_dominated(states: np.ndarray) -> np.ndarray:
    """Return the rows that no other row dominates."""
    keep = np.ones(len(states), dtype=bool)
    for index in range(len(states)):
        if keep[index]:
            others = (states >= states[index]).all(axis=1)
            others[index] = False
            keep &= ~others
    return states[keep]


@given(small_jobs, st.sampled_from([1, 2, 3, 8, 64]))
def test_no_division_of_gpus_meets_more_deadlines_than_the_bound(jobs, cells):
    relaxation = on_time_bound(jobs_to_bound(jobs), GPUS, cells=cells)
    assert relaxation.deadlines >= most_on_time(jobs)
    assert relaxation.deadlines <= relaxation.possible <= len(jobs)


@given(small_jobs)
def test_finer_cells_never_loosen_the_bound(jobs):
    bounds = [on_time_bound(jobs_to_bound(jobs), 2, cells=cells).bound for cells in (1, 2, 4, 8, 16)]
    assert all(finer <= coarser + 1e-6 for coarser, finer in zip(bounds, bounds[1:], strict=False))


def test_jobs_that_fill_the_cluster_alone_are_bounded_by_their_number():
    job = (0, 4, 8.0, (1.0, 2.0, 2.0))  # linear: two GPUs for its whole window
    assert on_time_bound(jobs_to_bound([job] * 6), GPUS).bound == pytest.approx(2.0, abs=1e-6)


def test_small_jobs_come_before_a_large_one():
    large, small = (0, 4, 16.0, (1.0, 2.0, 2.0)), (0, 4, 4.0, (1.0, 2.0, 2.0))
    assert on_time_bound(jobs_to_bound([large, *[small] * 4]), GPUS).bound == pytest.approx(4.0, abs=1e-6)


def test_a_job_that_is_too_slow_alone_does_not_count():
    relaxation = on_time_bound(jobs_to_bound([(0, 1, 9.0, (1.0, 2.0, 2.0))]), GPUS)
    assert (relaxation.deadlines, relaxation.possible) == (0, 0)


def test_a_curve_that_is_not_concave_is_replaced_by_its_hull():
    hull = hull_of_points(np.array([1, 2, 4]), np.array([1.0, 1.2, 4.0]))
    assert hull.gpus.tolist() == [4.0]
    assert hull.slope.tolist() == [1.0]
    fallen = hull_of_points(np.array([1, 2, 4]), np.array([1.0, 1.5, 1.4]))
    assert (fallen.gpus.tolist(), fallen.slope.tolist()) == ([1.0, 1.0], [1.0, 0.5])
    assert isinstance(hull, Hull)


@pytest.mark.parametrize(
    "policy",
    ["punctual", "edf", *(pytest.param(name, marks=pytest.mark.slow) for name in ("elasticflow", "fifo"))],
)
def test_no_simulated_run_meets_more_deadlines_than_its_bound(policy):
    rng = np.random.default_rng(5)
    for _ in range(4):
        jobs = [
            Job(at=at, iterations=work, deadline_at=at + work * loose)
            for at, work, loose in zip(
                np.sort(rng.uniform(0, 400, 30)), rng.lognormal(4.0, 1.0, 30), rng.uniform(0.6, 2.0, 30),
                strict=True
            )
        ]  # fmt: skip
        run = SimulationSettings(policy, (PoolSize("gpu", 1, 4),), slot_seconds=5.0, bound=True)
        simulation = Simulation(workload(jobs), run)
        relaxation = deadlines_bound(simulation)
        outcome = simulation.run()
        due = np.array([item.deadline_at for item in jobs])
        met = int((outcome.jobs.completed_at <= due).sum())
        assert relaxation is not None
        assert met <= relaxation.deadlines == outcome.counts["deadlines_met_bound"] <= len(jobs)
