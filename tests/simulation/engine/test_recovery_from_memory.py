"""Lost servers with recovery points in memory: the state that a job resumes from, and the slack of
promises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulation.engine.asked.settings import Imperfections, Recovery
from simulation.engine.outside.failures import reserve_slack_seconds
from simulation.engine.outside.happenings import Happening, HappeningKind
from simulation.engine.run import Simulation
from simulation.outcome import RunOutcome
from tests.simulation.engine.worlds import Job, random_world, settings, workload

IMPERFECTIONS = Imperfections(checkpoint_seconds=10.0, fence_seconds=5.0)
ON_FOUR = {4: 4.0}
ON_EIGHT = {8: 8.0}


def lost(at: float, server: int) -> Happening:
    return Happening(at, HappeningKind.SERVER_LOST, server)


def run(jobs: list[Job], *happenings: Happening, servers: int = 3, **more: object) -> RunOutcome:
    chosen: dict[str, Any] = {"recovery": Recovery.MEMORY, "imperfections": IMPERFECTIONS} | more
    run_settings = settings(servers=servers, gpus=4, **chosen)
    return Simulation(workload(jobs), run_settings, happenings).run()


def test_a_lost_server_costs_less_than_two_iterations() -> None:
    """At 4 iterations a second, 150.5 are done when the server is lost, and the job resumes from 149."""
    outcome = run([Job(0, 400, curve=ON_FOUR)], lost(37.625, 0))
    # The server is fenced after 5 s. With durable storage alone the job would resume from its state at 30 s.
    assert outcome.jobs.completed_at[0] == pytest.approx(42.625 + (400 - 149) / 4.0)
    assert outcome.counts["recoveries_from_memory"] == 1
    durable = run([Job(0, 400, curve=ON_FOUR)], lost(37.625, 0), recovery=Recovery.DURABLE)
    assert durable.counts["recoveries_from_durable"] == 1
    assert durable.jobs.completed_at[0] - outcome.jobs.completed_at[0] == pytest.approx((149 - 120) / 4.0)


def test_a_job_on_two_servers_survives_either_and_not_both() -> None:
    jobs = [Job(0, 800, curve=ON_EIGHT)]
    single = run(jobs, lost(37.0, 0), servers=4)
    assert single.counts.get("recoveries_from_durable", 0) == 0
    both = run(jobs, lost(37.0, 0), lost(38.0, 1), servers=4)
    assert both.counts["recoveries_from_durable"] == 1
    # The job resumes from its checkpoint at 30 s.
    assert both.jobs.completed_at[0] == pytest.approx(42.0 + (800 - 240) / 8.0)


def test_losing_the_copys_server_too_loses_the_state_in_memory() -> None:
    """The job's own server is lost, then, before training resumes, the server with its copy."""
    jobs = [Job(0, 400, curve=ON_FOUR)]
    both = run(jobs, lost(37.0, 0), lost(39.0, 1))
    assert both.counts["recoveries_from_durable"] == 1
    assert both.jobs.completed_at[0] == pytest.approx(42.0 + (400 - 120) / 4.0)
    third = run(jobs, lost(37.0, 0), lost(39.0, 1), servers=4, replicas=3)
    assert third.counts.get("recoveries_from_durable", 0) == 0


def test_a_second_loss_after_the_job_trains_again_is_another_recovery() -> None:
    outcome = run([Job(0, 800, curve=ON_FOUR)], lost(37.0, 0), lost(70.0, 1), servers=4)
    assert outcome.counts["recoveries_from_memory"] == 2
    assert outcome.counts.get("recoveries_from_durable", 0) == 0


def test_recovery_from_memory_does_not_postpone_durable_states() -> None:
    """A job resumes from memory 8 s after its start. 2 s later its state is due to be stored; that state
    remains once both copies are lost."""
    outcome = run([Job(0, 400, curve=ON_FOUR)], lost(8.0, 0), lost(20.0, 1), lost(21.0, 2), servers=4)
    assert outcome.counts["recoveries_from_durable"] == 1
    at_13, stored_at_15 = 31, 31 + 2 * 4
    assert at_13 < stored_at_15
    assert outcome.jobs.completed_at[0] == pytest.approx(25.0 + (400 - stored_at_15) / 4.0)


def test_without_another_server_there_is_no_copy() -> None:
    back = Happening(60.0, HappeningKind.SERVER_BACK, 0)
    outcome = run([Job(0, 400, curve=ON_FOUR)], lost(37.0, 0), back, servers=1)
    assert outcome.counts["recoveries_from_durable"] == 1
    assert outcome.jobs.completed_at[0] == pytest.approx(60.0 + (400 - 120) / 4.0)


def test_points_in_memory_reduce_the_slack_of_promises() -> None:
    jobs = workload([Job(0, 400, 900.0, {1: 0.5, 4: 4.0})])
    chosen = settings(servers=4, slot=60.0, imperfections=Imperfections())
    one_lost, two_lost = (
        replace(chosen, reserve_servers=count, recovery=Recovery.MEMORY) for count in (1, 2)
    )
    repair = 60.0 + 2 * 60.0
    assert reserve_slack_seconds(replace(one_lost, recovery=Recovery.DURABLE), jobs) == repair + 600.0
    # An iteration takes at most 2 s.
    assert reserve_slack_seconds(one_lost, jobs) == repair + 4.0
    # The second lost server may hold the last copy.
    assert reserve_slack_seconds(two_lost, jobs) == 2 * repair + 4.0 + 600.0
    assert reserve_slack_seconds(replace(two_lost, replicas=3), jobs) == 2 * repair + 8.0
    # Without a second server there is no second copy.
    assert reserve_slack_seconds(replace(two_lost, pools=settings(servers=2).pools), jobs) == 2 * (
        repair + 600.0
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("reserve", [1, 2])
def test_promises_survive_as_many_failures_as_reserved(seed: int, reserve: int) -> None:
    """No promised job is late with the slack for recovery from memory."""
    world = random_world(seed, failures=reserve, reserve=reserve)
    chosen = replace(world.settings, recovery=Recovery.MEMORY, replicas=reserve + 1)
    chosen = replace(chosen, reserve_slack_seconds=reserve_slack_seconds(chosen, world.workload))
    outcome = Simulation(world.workload, chosen, world.happenings).run()
    assert outcome.broken == {}
