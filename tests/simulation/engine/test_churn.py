"""A long job beside a stream of short promises is rescaled only where that pays."""

from __future__ import annotations

import pytest

from simulation.engine.asked.pauses import Pauses
from simulation.engine.run import Simulation
from simulation.outcome import JobOutcomes
from tests.simulation.engine.worlds import Job, settings, workload

LINEAR = {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}
WORK = 20_000.0
ON_FOUR_SECONDS = WORK / 4


def beside_short_jobs(first_at: float, every: float, count: int = 90) -> JobOutcomes:
    """Simulate a long promised job beside short jobs that need one of eight GPUs most of the time."""
    at = [first_at + every * number for number in range(count)]
    short = [Job(time, 55.0, time + 130.0, LINEAR) for time in at]
    long = Job(0.0, WORK, 7200.0, LINEAR)
    run_settings = settings("punctual", 1, 8, slot=20.0, pauses=Pauses.MEASURED)
    outcome = Simulation(workload([long, *short]), run_settings).run()
    assert not outcome.broken
    assert outcome.jobs.on_time.all()
    return outcome.jobs


@pytest.mark.parametrize("first_at", [30.0, 1030.0])
def test_growth_that_would_soon_be_reverted_is_not_made(first_at: float) -> None:
    """Twenty seconds on eight GPUs gain less than the pauses of growing and shrinking cost."""
    jobs = beside_short_jobs(first_at, 60.0)
    assert jobs.rescales[0] <= 20
    assert jobs.pause_seconds[0] <= 0.05 * jobs.completed_at[0]
    assert jobs.completed_at[0] <= ON_FOUR_SECONDS + 20.0


def test_growth_that_lasts_is_made_each_time() -> None:
    jobs = beside_short_jobs(30.0, 300.0)
    assert jobs.rescales[0] >= 2 * jobs.completed_at[0] / 300.0 - 2
    assert jobs.completed_at[0] <= 0.65 * ON_FOUR_SECONDS


def test_the_job_grows_again_once_gpus_stay_idle() -> None:
    """No event follows the last short job; only time passes."""
    jobs = beside_short_jobs(30.0, 60.0, count=20)
    last = jobs.completed_at[1:].max()
    done = 4 * last
    assert jobs.completed_at[0] <= last + (WORK - done) / 8 + 60.0
