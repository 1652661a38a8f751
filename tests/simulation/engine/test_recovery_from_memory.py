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
    one = settings(servers=servers, gpus=4, **chosen)
    return Simulation(workload(jobs), one, happenings).run()


def test_a_lost_server_costs_less_than_two_iterations() -> None:
    """Four iterations a second on four GPUs: 150.5 are done when the server is lost, and 149 are kept."""
    outcome = run([Job(0, 400, curve=ON_FOUR)], lost(37.625, 0))
    # 5 s pass until the server is fenced. In durable storage alone 30 s of work would be safe.
    assert outcome.jobs.completed_at[0] == pytest.approx(42.625 + (400 - 149) / 4.0)
    assert outcome.counts["recoveries_from_memory"] == 1
    durable = run([Job(0, 400, curve=ON_FOUR)], lost(37.625, 0), recovery=Recovery.DURABLE)
    assert durable.counts["recoveries_from_durable"] == 1
    assert durable.jobs.completed_at[0] - outcome.jobs.completed_at[0] == pytest.approx((149 - 120) / 4.0)


def test_a_job_on_two_servers_survives_either_and_not_both() -> None:
    jobs = [Job(0, 800, curve=ON_EIGHT)]
    one = run(jobs, lost(37.0, 0), servers=4)
    assert one.counts.get("recoveries_from_durable", 0) == 0
    both = run(jobs, lost(37.0, 0), lost(38.0, 1), servers=4)
    assert both.counts["recoveries_from_durable"] == 1
    # All go back to the checkpoint at 30 s.
    assert both.jobs.completed_at[0] == pytest.approx(42.0 + (800 - 240) / 8.0)


def test_a_server_that_keeps_a_copy_takes_the_state_along() -> None:
    """The job's own server is lost, and then, before training resumes, the one with its copy."""
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


def test_promises_keep_less_for_failures_where_points_are_in_memory() -> None:
    jobs = workload([Job(0, 400, 900.0, {1: 0.5, 4: 4.0})])
    chosen = settings(servers=4, slot=60.0, imperfections=Imperfections())
    one, two = (replace(chosen, reserve_servers=count, recovery=Recovery.MEMORY) for count in (1, 2))
    repair = 60.0 + 2 * 60.0
    assert reserve_slack_seconds(replace(one, recovery=Recovery.DURABLE), jobs) == repair + 600.0
    # Iterations of 2 s at the slowest.
    assert reserve_slack_seconds(one, jobs) == repair + 4.0
    # The second may take the last copy.
    assert reserve_slack_seconds(two, jobs) == 2 * repair + 4.0 + 600.0
    assert reserve_slack_seconds(replace(two, replicas=3), jobs) == 2 * repair + 8.0
    # Where no second server is left there is no second copy.
    assert reserve_slack_seconds(replace(two, pools=settings(servers=2).pools), jobs) == 2 * (repair + 600.0)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("reserve", [1, 2])
def test_promises_survive_as_many_failures_as_they_were_made_for(seed: int, reserve: int) -> None:
    """No promised job is late with the slack for recovery from memory."""
    world = random_world(seed, failures=reserve, reserve=reserve)
    chosen = replace(world.settings, recovery=Recovery.MEMORY, replicas=reserve + 1)
    chosen = replace(chosen, reserve_slack_seconds=reserve_slack_seconds(chosen, world.workload))
    outcome = Simulation(world.workload, chosen, world.happenings).run()
    assert outcome.broken == {}
