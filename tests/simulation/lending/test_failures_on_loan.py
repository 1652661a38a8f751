"""Failures of loaned servers under jobs: random runs, and the fate of the server and of its jobs."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from scheduling.core.problem.answer import Answer
from simulation.engine.outside.happenings import Happening, HappeningKind
from simulation.engine.run import Simulation
from simulation.engine.world.pool import PoolState
from simulation.engine.world.shared_pool import SharedPool
from simulation.inference.usage import UsageSeries
from simulation.outcome import JobEnd, RunOutcome
from tests.simulation.engine.worlds import World, random_world
from tests.simulation.lending.worlds import Job, completion_seconds, settings_of, usage_of, workload_of

IN_EVERY_RUN = 20
"""Random worlds in `make test`; `make test-all` takes 1,500 with a reserve and as many without."""


def instants_with_jobs_on_loan(world: World) -> list[tuple[float, int]]:
    """Return the times after decisions at which a borrowed server had a job, with the server."""
    instants: list[tuple[float, int]] = []

    def watch(simulation: Simulation, pool: PoolState, answer: Answer) -> None:
        assert isinstance(pool, SharedPool)
        servers = np.flatnonzero(pool.on_loan).tolist()
        instants.extend((simulation.now, server) for server in servers if pool.rows_on(server))

    unchecked = replace(world.settings, check_invariants=False)
    Simulation(world.workload, unchecked, world.happenings, watch=watch).run()
    return instants


def world_with_a_failure_on_loan(seed: int, reserve: int) -> World | None:
    """Return a random world in which a borrowed server fails under jobs; None if none of them has jobs."""
    world = random_world(seed, reserve=reserve, lending=True)
    chosen = Random(seed)
    instants = instants_with_jobs_on_loan(world)
    if not instants:
        return None
    at, server = chosen.choice(instants)
    at += chosen.uniform(0.1, world.settings.slot_seconds)
    failure = [Happening(at, HappeningKind.SERVER_LOST, server)]
    if chosen.random() < 0.5:
        failure.append(Happening(at + chosen.uniform(90.0, 900.0), HappeningKind.SERVER_BACK, server))
    return replace(world, happenings=(*world.happenings, *failure))


def check(seeds: range, reserve: int) -> None:
    checked = 0
    for seed in seeds:
        world = world_with_a_failure_on_loan(seed, reserve)
        if world is None:
            continue
        checked += 1
        outcome = Simulation(world.workload, world.settings, world.happenings).run()
        silent = any("silent" in happening.kind for happening in world.happenings)
        if reserve and not silent:
            assert outcome.broken == {}, f"seed {seed}: {outcome.broken}"
    assert checked > len(seeds) / 10


@pytest.mark.parametrize("reserve", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_invariants_hold_and_the_reserve_covers_borrowed_servers(reserve: int) -> None:
    check(range(50_000, 50_000 + IN_EVERY_RUN), reserve)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("reserve", [0, 1])
def test_so_it_is_in_many_runs(reserve: int) -> None:
    check(range(60_000, 61_500), reserve)


#: The first fills the owned server; the second waits, and begins at 300 s on the one server that is lent.
WAITING = (
    Job(20_000.0, 8, 8),
    Job(1_200.0, 2, 2, fungible=True, keeps_progress=True, submitted_at=1.0),
)
FIRST, SECOND = 1, 2
"""Numbers of the two inference servers, after the owned one."""


def lent_while(usage: UsageSeries, *happenings: Happening) -> RunOutcome:
    settings = settings_of(WAITING, inference_servers=2, usage=usage)
    return Simulation(workload_of(WAITING), settings, happenings).run()


def on_loan(outcome: RunOutcome, periods: int) -> list[int]:
    assert outcome.loans is not None
    return outcome.loans.on_loan[:periods].tolist()


def test_a_job_begins_again_when_the_server_that_it_was_on_is_back() -> None:
    outcome = lent_while(
        usage_of(*[0.0] * 40),
        Happening(700.0, HappeningKind.SERVER_LOST, FIRST),
        Happening(2_000.0, HappeningKind.SERVER_BACK, FIRST),
    )
    assert on_loan(outcome, 8) == [1] * 8
    # Its last checkpoint is that of its start.
    assert completion_seconds(outcome)[1] == 2_000.0 + 1_200.0 - 1.0


def test_broken_server_returns_on_reclaim_and_counts_as_shortfall() -> None:
    outcome = lent_while(
        usage_of(0.0, 0.0, 0.0, 1.0, *[0.0] * 36),
        Happening(700.0, HappeningKind.SERVER_LOST, FIRST),
        Happening(2_000.0, HappeningKind.SERVER_BACK, FIRST),
    )
    # At 1,500 s the other one could be lent but for the reserve of one server, which the broken one is no
    # part of.
    assert on_loan(outcome, 8) == [1, 1, 1, 0, 0, 0, 1, 1]
    assert completion_seconds(outcome)[1] == 2_100.0 + 1_200.0 - 1.0
    assert outcome.loans is not None
    assert outcome.loans.shortfall[:6].tolist() == [0, 0, 0, 1, 0, 0]


def test_a_broken_server_is_given_back_after_the_others() -> None:
    settings = settings_of(WAITING, inference_servers=4, usage=usage_of(0.0, 0.0, *[0.5] * 400))
    simulation = Simulation(
        workload_of(WAITING), settings, [Happening(700.0, HappeningKind.SERVER_LOST, FIRST)]
    )
    simulation.run()
    assert simulation.lender is not None
    assert np.flatnonzero(simulation.lender.pool.on_loan).tolist() == [FIRST], "two of three were wanted"


def test_silent_server_returns_on_reclaim_when_heard_again() -> None:
    outcome = lent_while(
        usage_of(*[0.0] * 3, *[1.0] * 37),
        Happening(700.0, HappeningKind.AGENT_SILENT, FIRST),
        Happening(1_300.0, HappeningKind.AGENT_HEARD, FIRST),
    )
    assert on_loan(outcome, 6) == [1, 1, 1, 1, 0, 0]
    assert outcome.loans is not None
    assert [(reclaim.at, reclaim.wanted, reclaim.returned) for reclaim in outcome.loans.reclaims[:1]] == [
        (1_500.0, 1, 1),
    ]
    assert outcome.loans.shortfall[:6].tolist() == [0, 0, 0, 1, 1, 0]


@pytest.mark.parametrize("policy", ["lyra", "opportunistic", "fifo"])
@pytest.mark.parametrize("seed", range(3))
def test_sharing_policies_survive_failures_of_both_server_kinds(policy: str, seed: int) -> None:
    chosen = Random(seed)
    jobs = [
        Job(chosen.uniform(300, 3_000), 1, chosen.randint(1, 4), submitted_at=300.0 * number, fungible=True)
        for number in range(12)
    ]
    settings = replace(
        settings_of(
            jobs,
            policy=policy,
            servers=2,
            gpus_per_server=4,
            inference_servers=4,
            usage=usage_of(*[0.1] * 200),
        ),
        check_invariants=True,
    )
    failures = [
        Happening(at + late, kind, server)
        for server in (0, 2, 3, 4, 5)
        for at in (chosen.uniform(300, 3_000),)
        for late, kind in ((0.0, HappeningKind.SERVER_LOST), (600.0, HappeningKind.SERVER_BACK))
    ]
    outcome = Simulation(workload_of(jobs), settings, failures).run()
    assert set(outcome.jobs.end) == {JobEnd.COMPLETED}
    assert outcome.counts["failures"] == 5
