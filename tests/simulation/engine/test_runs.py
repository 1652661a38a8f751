"""Whole runs worked out by hand: life cycles, pauses, failures, silence, pools, interruption."""

from __future__ import annotations

import signal
from dataclasses import replace

import numpy as np
import pytest

from scheduling.core.question.snapshot import AdmissionRule, IntArray, ServiceClass
from simulation.engine.asked.pauses import Pauses
from simulation.engine.asked.settings import Imperfections, PoolSize
from simulation.engine.checks.invariants import InvariantViolation
from simulation.engine.outside.happenings import Happening, HappeningKind
from simulation.engine.run import Simulation, load_kernels
from simulation.outcome import JobEnd, RunOutcome
from tests.simulation.engine.worlds import C3, C4, Job, random_world, settings, workload

LINEAR = {1: 1.0, 2: 2.0, 4: 4.0}


def run(jobs: list[Job], *happenings: Happening, **chosen: object) -> RunOutcome:
    return Simulation(workload(jobs), settings(**chosen), happenings).run()  # type: ignore[arg-type]


def held(outcome: RunOutcome, job: int) -> list[tuple[float, int]]:
    """Return (time, GPUs) of every change of one job's GPUs."""
    history = outcome.allocations
    mine = history.job == job
    return list(zip(history.time[mine].tolist(), history.gpus[mine].tolist(), strict=True))


def test_the_life_cycle_of_v10_comes_out_as_worked_by_hand() -> None:
    outcome = run([Job(0, 4, 4), Job(1, 3, 4), Job(1, 6, 4)], gpus=4)
    assert outcome.jobs.end == (JobEnd.COMPLETED, JobEnd.COMPLETED, JobEnd.DECLINED)
    assert outcome.jobs.completed_at[:2] == pytest.approx([2 + 1 / 3, 3.0])
    assert held(outcome, 0)[:2] == [(0.0, 4), (1.0, 2)]
    assert outcome.broken == {}


def test_the_fig_3_example_is_met_by_elasticflow() -> None:
    outcome = run([Job(0, 3, 3, C3), Job(0, 3, 3.5, C3)], gpus=2)
    assert outcome.jobs.completed_at == pytest.approx([3.0, 3.0])


def test_simultaneous_newcomers_are_decided_singly_or_as_a_batch() -> None:
    jobs = [Job(0, 3, 3, C3), Job(0, 4, 3, C3), Job(0, 3, 3, C3)]
    one_by_one = run(jobs, gpus=2)
    assert one_by_one.jobs.promised == (True, False, True)
    together = run(jobs, gpus=2, admission=AdmissionRule.BATCH)
    assert together.jobs.promised == (False, False, False)


def test_a_newcomer_is_answered_at_once_and_starts_at_the_next_slot() -> None:
    outcome = run([Job(0, 100, 1000), Job(10, 100, 1000)], gpus=4, slot=60.0)
    assert outcome.jobs.decided_at.tolist() == [0.0, 10.0]
    assert outcome.jobs.started_at.tolist() == [0.0, 60.0]


def test_a_start_and_a_rescale_cost_the_published_pause() -> None:
    outcome = run([Job(0, 1000, 3000, LINEAR)], gpus=4, slot=60.0, pauses=Pauses.MEASURED)
    assert outcome.jobs.pause_seconds.tolist() == [8.0], "2 s and 2 s for each of 1, 2 and 4 GPUs"
    assert outcome.jobs.completed_at[0] == pytest.approx(8.0 + 250.0)


def test_best_effort_yields_everything_and_loses_nothing() -> None:
    outcome = run([Job(0, 40, curve=C4), Job(2, 8, 6.0, C4)], gpus=4)
    assert held(outcome, 0)[1] == (2.0, 0), "all GPUs go to the promise"
    assert outcome.jobs.completed_at[1] <= 6.0
    assert outcome.jobs.end[0] == JobEnd.COMPLETED
    assert outcome.counts["preemptions"] >= 1
    assert outcome.jobs.completed_at[0] == pytest.approx(2 + 4 + (40 - 2 * 2.0) / 2.0)


def test_a_soft_deadline_that_cannot_be_met_is_no_promise_but_runs() -> None:
    outcome = run([Job(0, 40, 5.0, service_class=ServiceClass.SOFT)], gpus=4)
    assert outcome.jobs.promised == (False,)
    assert outcome.jobs.end == (JobEnd.COMPLETED,)
    assert outcome.broken == {}


def test_a_lost_server_costs_the_work_since_the_last_checkpoint() -> None:
    imperfections = Imperfections(checkpoint_seconds=10.0, fence_seconds=5.0)
    jobs = [Job(0, 400, curve={1: 1.0, 2: 2.0, 4: 4.0})]
    outcome = run(
        jobs, Happening(37.0, HappeningKind.SERVER_LOST, 0), gpus=4, servers=2, imperfections=imperfections
    )
    assert held(outcome, 0) == [(0.0, 4), (42.0, 0), (42.0, 4), (112.0, 0)]
    # 30 s of work are safe, 7 s are lost, 5 s pass until the server is fenced.
    assert outcome.jobs.completed_at[0] == pytest.approx(42.0 + (400 - 30 * 4.0) / 4.0)
    assert outcome.counts["failures"] == 1


def test_server_back_before_its_fence_resumes_jobs_from_checkpoints() -> None:
    imperfections = Imperfections(checkpoint_seconds=10.0, fence_seconds=60.0)
    jobs = [Job(0, 400, curve={1: 1.0, 2: 2.0, 4: 4.0})]
    moments = (Happening(37.0, HappeningKind.SERVER_LOST, 0), Happening(47.0, HappeningKind.SERVER_BACK, 0))
    outcome = run(jobs, *moments, gpus=4, servers=1, imperfections=imperfections)
    assert held(outcome, 0) == [(0.0, 4), (47.0, 0), (47.0, 4), (117.0, 0)]
    assert outcome.jobs.completed_at[0] == pytest.approx(47.0 + (400 - 30 * 4.0) / 4.0)


def test_within_the_reserve_a_promise_survives_a_lost_server() -> None:
    imperfections = Imperfections(checkpoint_seconds=10.0, fence_seconds=5.0)
    jobs = [Job(0, 100, 60.0, LINEAR), Job(0, 100, 70.0, LINEAR)]
    chosen = {"gpus": 4, "servers": 3, "imperfections": imperfections}
    careful = run(
        jobs,
        Happening(10.0, HappeningKind.SERVER_LOST, 0),
        reserve_servers=1,
        reserve_slack_seconds=20.0,
        **chosen,
    )
    assert careful.jobs.promised == (True, True)
    assert careful.broken == {}


def test_standby_server_replaces_a_lost_one_and_keeps_promises() -> None:
    imperfections = Imperfections(checkpoint_seconds=10.0, fence_seconds=5.0)
    jobs = [Job(0, 200, 65.0, LINEAR), Job(0, 200, 65.0, LINEAR)]
    lost = [Happening(10.0, HappeningKind.SERVER_LOST, number) for number in (1, 2)]
    chosen = {"gpus": 4, "imperfections": imperfections, "reserve_slack_seconds": 10.0}
    alone = run(jobs, lost[0], servers=2, **chosen)
    assert alone.jobs.promised == (True, True)
    assert alone.broken
    spare = run(jobs, lost[0], servers=3, standby_servers=1, **chosen)
    assert held(spare, 0)[0] == (0.0, 4), "the third server is not used while it stands by"
    assert held(spare, 1)[0] == (0.0, 4)
    assert spare.jobs.promised == (True, True)
    assert spare.broken == {}
    beyond = run(jobs, *lost, servers=3, standby_servers=1, **chosen)
    assert beyond.broken, "one standby server stands in for one"


def test_a_server_that_is_back_stands_by() -> None:
    imperfections = Imperfections(checkpoint_seconds=10.0, fence_seconds=5.0)
    jobs = [Job(0, 400, curve=LINEAR), Job(30, 400, curve=LINEAR), Job(31, 400, curve=LINEAR)]
    outcome = run(
        jobs,
        Happening(10.0, HappeningKind.SERVER_LOST, 1),
        Happening(20.0, HappeningKind.SERVER_BACK, 1),
        gpus=4,
        servers=3,
        standby_servers=1,
        imperfections=imperfections,
    )
    holds: dict[int, int] = {}
    used = {}
    history = outcome.allocations
    for at, job, gpus in zip(history.time.tolist(), history.job.tolist(), history.gpus.tolist(), strict=True):
        holds[job] = gpus
        used[at] = sum(holds.values())
    assert max(used.values()) == 8, "two servers are used at any time, before the loss and after the return"


def test_losses_beyond_the_reserve_report_only_the_broken_promises() -> None:
    imperfections = Imperfections(checkpoint_seconds=10.0, fence_seconds=5.0)
    jobs = [Job(0, 200, 52.0, LINEAR), Job(0, 40, 60.0, LINEAR)]
    outcome = run(
        jobs, Happening(10.0, HappeningKind.SERVER_LOST, 0), gpus=4, servers=2, imperfections=imperfections
    )
    assert outcome.jobs.promised == (True, True)
    assert list(outcome.broken) == ["job-000"], "the one that needed the lost GPUs"
    assert "after its deadline" in outcome.broken["job-000"]
    assert outcome.jobs.end == (JobEnd.COMPLETED, JobEnd.COMPLETED), "a late job keeps running"


def test_a_silent_agent_keeps_its_job_and_gets_no_new_one() -> None:
    jobs = [Job(0, 400, curve={4: 4.0}), Job(20, 100, curve={4: 4.0})]
    outcome = run(
        jobs,
        Happening(10.0, HappeningKind.AGENT_SILENT, 0),
        Happening(50.0, HappeningKind.AGENT_HEARD, 0),
        Happening(10.0, HappeningKind.AGENT_SILENT, 1),
        Happening(50.0, HappeningKind.AGENT_HEARD, 1),
        gpus=4,
        servers=2,
    )
    assert outcome.jobs.completed_at[0] == pytest.approx(100.0), "the running job is left alone"
    assert outcome.jobs.started_at[1] >= 50.0, "nothing starts where nobody is heard of"


def test_a_cancelled_job_frees_its_gpus_and_voids_its_promise() -> None:
    outcome = run(
        [Job(0, 400, 1000, LINEAR), Job(1, 40, curve=LINEAR)], Happening(5.0, HappeningKind.JOB_CANCELLED, 0)
    )
    assert outcome.jobs.end[0] == JobEnd.CANCELLED
    assert outcome.jobs.void_reason[0] == "cancelled"
    assert outcome.broken == {}


def test_a_job_whose_own_condition_is_met_completes_early() -> None:
    outcome = run([Job(0, 400, 1000, LINEAR)], Happening(5.0, HappeningKind.JOB_STOPS_EARLY, 0))
    assert (outcome.jobs.end[0], outcome.jobs.completed_at[0]) == (JobEnd.COMPLETED, 5.0)


def test_promise_is_made_on_one_named_pool() -> None:
    slow, fast = {1: 1.0, 2: 2.0}, {1: 3.0, 2: 6.0}
    jobs = [Job(0, 20, 15.0, by_kind={"slow": slow, "fast": fast}) for _ in range(3)]
    jobs.append(Job(0, 6, 100.0, by_kind={"fast": fast}))
    # Most GPUs first, in whatever order the pools are given. Three such jobs do not fit the four slow GPUs.
    chosen = replace(settings(), pools=(PoolSize("fast", 1, 2), PoolSize("slow", 2, 2)))
    outcome = Simulation(workload(jobs), chosen).run()
    assert outcome.jobs.promised == (True, True, True, True)
    assert outcome.jobs.pool == ("slow", "slow", "fast", "fast")
    assert outcome.broken == {}


def test_a_promise_is_made_where_servers_are_left() -> None:
    jobs = [Job(5, 20, 50.0, by_kind={"slow": {1: 1.0, 2: 2.0}, "fast": {1: 3.0, 2: 6.0}})]
    chosen = replace(settings(), pools=(PoolSize("fast", 1, 2), PoolSize("slow", 2, 2)))
    lost = [Happening(1.0, HappeningKind.SERVER_LOST, server, 1) for server in (0, 1)]
    outcome = Simulation(
        workload(jobs), replace(chosen, imperfections=Imperfections(fence_seconds=1.0)), lost
    ).run()
    assert outcome.jobs.pool == ("fast",)
    both = [*lost, *(Happening(1.0, HappeningKind.SERVER_LOST, server, 0) for server in (0,))]
    outcome = Simulation(
        workload(jobs), replace(chosen, imperfections=Imperfections(fence_seconds=1.0)), both
    ).run()
    assert outcome.jobs.end == (JobEnd.DECLINED,)


def test_work_without_a_deadline_goes_where_fewest_jobs_share_a_gpu() -> None:
    curves = {"few": {1: 1.0}, "many": {1: 1.0}}
    jobs = [Job(number, 1000, by_kind=curves) for number in range(6)]
    chosen = replace(settings(), pools=(PoolSize("few", 1, 2), PoolSize("many", 1, 4)))
    outcome = Simulation(workload(jobs), chosen).run()
    assert outcome.jobs.pool == ("many", "few", "many", "many", "few", "many")
    together = Simulation(workload([replace(job, at=0) for job in jobs]), chosen).run()
    assert together.jobs.pool == outcome.jobs.pool


def test_efficiency_uses_speeds_of_the_own_gpu_kind() -> None:
    on_one_kind = {"fast": {1: 10.0, 2: 20.0}}
    jobs = [Job(0, 12, 7, by_kind={"slow": LINEAR}), Job(0, 200, 11, by_kind=on_one_kind)]
    chosen = replace(settings(), pools=(PoolSize("slow", 1, 2), PoolSize("fast", 1, 2)))
    outcome = Simulation(workload(jobs), chosen).run()
    # Both double their speed on two GPUs of their own kind: four speed-ups on four GPUs.
    assert outcome.cluster.cluster_efficiency.max() == pytest.approx(1.0)


def test_slow_hardware_breaks_a_tight_promise_without_a_margin() -> None:
    jobs = [Job(0, 100, 27.0, LINEAR)]
    slow = Imperfections(profile_error=0.2)
    seed = next(seed for seed in range(50) if run(jobs, seed=seed, imperfections=slow).broken)
    careful = replace(slow, promise_margin=0.25)
    outcome = run([replace(jobs[0], deadline_at=40.0)], seed=seed, imperfections=careful)
    assert outcome.jobs.promised == (True,)
    assert outcome.broken == {}


def test_expected_failures_lower_promises_and_no_real_speed() -> None:
    """A failure costs slightly more than 11 minutes: 26 a day take a fifth of a server's time."""
    tight, roomy = [Job(0, 100, 27.0, LINEAR)], [Job(0, 100, 40.0, LINEAR)]
    assert run(tight).jobs.promised == (True,)
    assert run(tight, failures_per_server_day=26.0).jobs.promised == (False,)
    outcome = run(roomy, failures_per_server_day=26.0)
    assert outcome.jobs.promised == (True,)
    assert outcome.jobs.completed_at == pytest.approx(run(roomy).jobs.completed_at)


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    world = random_world(5, exact=False)

    def outcome(seed: int) -> RunOutcome:
        return Simulation(world.workload, replace(world.settings, seed=seed), world.happenings).run()

    first, same, other = outcome(1), outcome(1), outcome(2)
    assert np.array_equal(first.jobs.completed_at, same.jobs.completed_at, equal_nan=True)
    assert np.array_equal(first.allocations.time, same.allocations.time)
    assert not np.array_equal(first.jobs.completed_at, other.jobs.completed_at, equal_nan=True)


def test_an_interrupted_run_keeps_what_it_has() -> None:
    def stop_later(ended: int, jobs: int, at: float) -> None:
        if at >= 50.0:
            raise KeyboardInterrupt

    jobs = [Job(10.0 * number, 8, curve=LINEAR) for number in range(20)]
    outcome = Simulation(workload(jobs), settings(), progress=stop_later).run()
    assert outcome.interrupted
    assert outcome.jobs.end.count(JobEnd.COMPLETED) >= 4
    assert outcome.jobs.end.count(JobEnd.UNFINISHED) >= 10
    assert outcome.broken == {}


def test_ctrl_c_ends_a_run_after_the_step_that_it_comes_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.engine.run.load_kernels", lambda policy: None)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    simulation = Simulation(workload([Job(0, 8, curve=LINEAR), Job(100, 8, curve=LINEAR)]), settings())
    advance = simulation.jobs.advance

    def press(rows: IntArray, pool: int, seconds: float) -> None:
        signal.raise_signal(signal.SIGINT)
        advance(rows, pool, seconds)

    monkeypatch.setattr(simulation.jobs, "advance", press)
    try:
        outcome = simulation.run()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, previous)
    assert outcome.interrupted
    assert outcome.counts["decisions"] == 1, "the step was done"


def test_ctrl_c_before_the_first_step_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Simulation._step

    def press(simulation: Simulation, at: float) -> None:
        signal.raise_signal(signal.SIGINT)
        step(simulation, at)

    monkeypatch.setattr(Simulation, "_step", press)
    load_kernels.cache_clear()
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        outcome = Simulation(workload([Job(0, 8, curve=LINEAR)]), settings()).run()
    finally:
        signal.signal(signal.SIGINT, previous)
    assert outcome.interrupted
    assert outcome.counts["decisions"] == 0
    assert list(outcome.jobs.end) == [JobEnd.UNFINISHED]


def test_checks_detect_work_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job(0, 400, curve=LINEAR), Job(5, 40, curve=LINEAR)]
    simulation = Simulation(workload(jobs), settings(gpus=4))
    advance = simulation.jobs.advance
    monkeypatch.setattr(
        simulation.jobs, "advance", lambda rows, pool, seconds: advance(rows, pool, 1.5 * seconds)
    )
    with pytest.raises(InvariantViolation, match="I9"):
        simulation.run()
