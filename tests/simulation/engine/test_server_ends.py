"""Servers that leave a simulation at a known time: no job is on them then, and no promise breaks."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from simulation.engine.asked.settings import KnownEnd
from simulation.engine.asked.sharing import SharingSettings
from simulation.engine.outside.happenings import Happening, HappeningKind
from simulation.engine.outside.server_ends import drawn_ends
from simulation.engine.run import Simulation
from simulation.outcome import JobEnd, RunOutcome
from simulation.workloads.scenarios import ScenarioRules
from tests.plugins.examples import examples
from tests.simulation.engine.worlds import Job, random_world, settings, workload

OUTAGES = (HappeningKind.AGENT_SILENT, HappeningKind.AGENT_HEARD)


def with_random_ends(seed: int, *, announced_late: bool, policy: str, lending: bool) -> RunOutcome:
    """Run a small crowded cluster in which half of the servers end at random times."""
    world, rng = random_world(seed, policy=policy, lending=lending), Random(seed)
    pool = world.settings.pools[0]
    if lending and world.settings.sharing is not None and world.settings.sharing.lending is not None:
        lent = replace(world.settings.sharing.lending, inference_gpu_type=pool.kind)
        world = replace(
            world,
            settings=replace(world.settings, sharing=replace(world.settings.sharing, lending=lent)),
        )
    last = float(world.workload.submitted_at[-1]) + 10 * world.settings.slot_seconds
    ends = []
    for server in rng.sample(range(pool.servers), max(1, pool.servers // 2)):
        at = rng.uniform(0.0, last)
        ends.append(KnownEnd(server, at, at * rng.random() if announced_late else 0.0))
    happenings = [happening for happening in world.happenings if happening.kind not in OUTAGES]
    return Simulation(world.workload, replace(world.settings, known_ends=tuple(ends)), happenings).run()


@hypothesis_settings(max_examples=examples(0.1))
@given(
    seed=st.integers(0, 2**32 - 1),
    policy=st.sampled_from(["punctual", "punctual", "elasticflow", "edf"]),
    lending=st.booleans(),
)
def test_no_job_is_caught_by_an_end_and_invariants_hold(seed: int, policy: str, lending: bool) -> None:
    announced_late = bool(seed % 2)
    lends = lending and policy == "punctual"
    outcome = with_random_ends(seed, announced_late=announced_late, policy=policy, lending=lends)
    assert outcome.counts.get("jobs_caught_by_ends", 0) == 0
    if not announced_late:
        assert outcome.broken == {}


LONG = {1: 1.0, 2: 2.0, 4: 4.0}


def test_best_effort_job_uses_a_server_to_its_end_then_moves() -> None:
    jobs = [Job(0.0, 200.0, curve=LONG), Job(0.0, 200.0, curve=LONG)]
    ends = (KnownEnd(1, 40.0),)
    outcome = Simulation(workload(jobs), settings("punctual", 2, 4, known_ends=ends)).run()
    assert outcome.jobs.end == (JobEnd.COMPLETED, JobEnd.COMPLETED)
    # 400 iterations: 8 a second until 40 s, then 4 a second.
    assert outcome.end_at == pytest.approx(60.0, abs=1.5)
    assert outcome.counts["jobs_caught_by_ends"] == 0


@pytest.mark.parametrize(("ends_at", "admitted"), [(inf, 2), (5.0, 1), (1_000.0, 1)])
def test_no_promise_depends_on_a_server_that_ends(ends_at: float, admitted: int) -> None:
    jobs = [Job(0.0, 40.0, 10.5, curve=LONG), Job(0.0, 40.0, 10.5, curve=LONG)]
    ends = () if ends_at == inf else (KnownEnd(1, ends_at),)
    outcome = Simulation(workload(jobs), settings("punctual", 2, 4, known_ends=ends)).run()
    assert sum(outcome.jobs.promised) == admitted
    assert outcome.broken == {}


def test_unmovable_job_caught_by_an_end_is_counted() -> None:
    jobs = [Job(0.0, 200.0, curve=LONG)]
    silent = [Happening(5.0, HappeningKind.AGENT_SILENT, 0)]
    run_settings = settings("punctual", 1, 4, known_ends=(KnownEnd(0, 20.0),))
    outcome = Simulation(workload(jobs), run_settings, silent).run()
    assert outcome.counts["jobs_caught_by_ends"] == 1


def test_known_ends_with_scenario_jobs_are_refused() -> None:
    run_settings = settings("lyra", 2, 4, known_ends=(KnownEnd(0, 5.0),))
    with pytest.raises(ValueError, match="measured curves"):
        Simulation(workload([Job(0.0, 5.0)]), replace(run_settings, sharing=SharingSettings(ScenarioRules())))


def test_drawn_ends_have_the_requested_rate_and_follow_the_seed() -> None:
    """With one end per server and day, a server stays beyond a day with probability 1/e."""
    jobs = [Job(0.0, 5.0), Job(86_400.0, 5.0, 86_400.0)]
    run_settings = settings("punctual", 4000, 1)
    ends = drawn_ends(1.0, run_settings, workload(jobs), notice_seconds=600.0)
    assert len(ends) / 4000 == pytest.approx(0.632, abs=0.03)
    assert ends == drawn_ends(1.0, run_settings, workload(jobs), notice_seconds=600.0)
    assert all(end.known_at == max(0.0, end.ends_at - 600.0) for end in ends)
    assert drawn_ends(0.0, run_settings, workload(jobs)) == ()
