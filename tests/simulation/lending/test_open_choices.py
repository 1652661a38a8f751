"""Points that Lyra leaves open, on the virtual clock: cost of moves, retries of fragmented jobs, mixing jobs
on one kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduling.core.question.two_phase_options import TwoPhaseOptions
from simulation.engine.asked.settings import SimulationSettings
from simulation.engine.asked.sharing import SharingSettings
from simulation.engine.curves.worker_tables import worker_tables
from simulation.engine.run import Simulation
from simulation.outcome import RunOutcome
from simulation.workloads.scenarios import RULES, Scenario, worker_ranges
from tests.simulation.lending.worlds import (
    Job,
    completion_seconds,
    ranges_of,
    run,
    settings_of,
    usage_of,
    workload_of,
)


def run_with(jobs: list[Job], choices: TwoPhaseOptions, **options) -> RunOutcome:
    """Run the jobs with other options and with invariants checked."""
    settings: SimulationSettings = settings_of(jobs, **options)
    assert settings.sharing is not None
    sharing: SharingSettings = replace(settings.sharing, two_phase=choices)
    return Simulation(workload_of(jobs), replace(settings, sharing=sharing, check_invariants=True)).run()


MOVES = TwoPhaseOptions(elastic_moves=True)
LENT_FROM_300_SECONDS = {"inference_servers": 5, "usage": usage_of(*[0] * 40)}


def test_moving_elastic_job_pauses_and_keeps_its_progress() -> None:
    """The job runs on four GPUs until 300 s, then, after 63 s, on 16 borrowed GPUs, each a third as fast."""
    job = Job(1000.0, 4, 8, fungible=True)
    stays = run([job], servers=1, gpus_per_server=4, **LENT_FROM_300_SECONDS)
    assert completion_seconds(stays) == pytest.approx([2000.0])
    moves = run_with([job], MOVES, servers=1, gpus_per_server=4, **LENT_FROM_300_SECONDS)
    assert moves.loans is not None
    assert moves.loans.lent_gpus_busy.max() == 16
    assert completion_seconds(moves) == pytest.approx([300 + 63 + (8000 - 300 * 4) / (16 / 3)])
    assert moves.jobs.preemptions.tolist() == [0]


def test_job_longer_than_loans_moves_once_and_ends_on_owned_servers() -> None:
    """Servers are lent for half an hour at a time; the job needs an hour on them and restarts when
    preempted."""
    half_hours = usage_of(*[0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1] * 8)
    job = Job(1800.0, 4, 8, fungible=True)
    outcome = run_with([job], MOVES, servers=1, gpus_per_server=4, inference_servers=5, usage=half_hours)
    assert outcome.jobs.preemptions.tolist() == [1]
    # Preempted at 2,100 s, when it starts anew on the owned server: 14,400 GPU seconds, after 63 s.
    assert completion_seconds(outcome) == pytest.approx([2100 + 63 + 3600])


def test_owned_servers_left_by_a_move_serve_a_waiting_job() -> None:
    jobs = [Job(1000.0, 4, 8, fungible=True), Job(100.0, 8, 8, submitted_at=10.0)]
    stays = run(jobs, **LENT_FROM_300_SECONDS)
    assert completion_seconds(stays)[1] == pytest.approx(1090.0)
    moves = run_with(jobs, MOVES, **LENT_FROM_300_SECONDS)
    assert completion_seconds(moves)[1] == pytest.approx(390.0)


@pytest.mark.parametrize(("retry_when_freed", "other_waits"), [(False, 990.0), (True, 40.0)])
def test_gpus_for_a_fragmented_job_are_kept_always_or_after_an_end(
    retry_when_freed: bool, other_waits: float
) -> None:
    """Three GPUs are free on each of two servers: no place for a worker of four, and enough for five workers
    of one."""
    long = Job(1000.0, 1, 1, gpus_per_worker=5)
    scattered = Job(100.0, 1, 1, gpus_per_worker=4, submitted_at=10.0)
    other = Job(200.0, 5, 5, submitted_at=10.0)
    last = Job(10.0, 1, 1, submitted_at=50.0)
    choices = TwoPhaseOptions(retry_when_freed=retry_when_freed)
    outcome = run_with([long, long, scattered, other, last], choices, servers=2)
    assert outcome.jobs.waiting_seconds.tolist() == [0.0, 0.0, 990.0, other_waits, 0.0]


def test_a_scattered_job_is_tried_again_when_a_server_is_lent() -> None:
    long = Job(1000.0, 1, 1, gpus_per_worker=5)
    scattered = Job(100.0, 1, 1, gpus_per_worker=4, submitted_at=10.0, mixes=True)
    outcome = run_with(
        [long, long, scattered], TwoPhaseOptions(retry_when_freed=True), servers=2, **LENT_FROM_300_SECONDS
    )
    assert outcome.jobs.waiting_seconds.tolist() == [0.0, 0.0, 290.0]


def test_mixing_job_on_one_kind_pays_for_mixing_only_if_set() -> None:
    jobs = [Job(700.0, 4, 4, mixes=True), Job(700.0, 4, 4)]
    ranges = ranges_of(jobs)
    usual = worker_tables(ranges, np.array([700.0, 700.0]))
    assert [usual.rate(row, 4, 0) for row in (0, 1)] == [4.0, 4.0]
    paying = worker_tables(replace(ranges, mixing_efficiency_alone=0.7), np.array([700.0, 700.0]))
    assert [paying.rate(row, 4, 0) for row in (0, 1)] == pytest.approx([2.8, 4.0])
    assert paying.rate(0, 0, 12) == pytest.approx(2.8)
    assert paying.rate(0, 1, 9) == usual.rate(0, 1, 9), "mixing costs it once"


def test_scheduler_charges_mixing_once() -> None:
    rules = replace(RULES[Scenario.HETEROGENEOUS], mixing_efficiency_alone=0.7)
    assert SharingSettings(rules=rules).choices.efficiency == pytest.approx(1.0)
    assert SharingSettings(rules=RULES[Scenario.HETEROGENEOUS]).choices.efficiency == 0.7
    jobs = workload_of([Job(700.0, 4, 4)])
    assert worker_ranges(jobs, rules, 0).mixing_efficiency_alone == 0.7
