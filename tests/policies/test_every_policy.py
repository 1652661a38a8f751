"""Properties of every policy, in random worlds with failures and on random questions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.question.snapshot import JobSnapshot, PlannerSettings, Snapshot
from simulation.engine.run import Simulation
from simulation.outcome import JobEnd
from simulation.policies import POLICIES, policy_named
from tests.core.building import job, servers, snapshot
from tests.plugins.examples import examples
from tests.policies.asking import measured
from tests.simulation.engine.worlds import random_world

ELASTICFLOW = {"punctual", "elasticflow"}
BASELINES = sorted(set(POLICIES) - ELASTICFLOW)
PUBLISHED = {
    "edf", "edf_artifact", "edf_admission", "edf_admission_artifact", "edf_elastic", "gandiva",
    "gandiva_artifact",
    "tiresias", "themis", "chronus", "pollux",
}  # fmt: skip


def test_published_baselines_exist():
    assert set(BASELINES) >= PUBLISHED


@pytest.mark.parametrize("policy", sorted(PUBLISHED))
@pytest.mark.parametrize(
    "world", [{}, {"exact": False}, {"failures": 1}], ids=["exact", "inexact", "failures"]
)
def test_random_worlds_run_to_their_end_without_violation(policy, world):
    for seed in range(examples(0.15)):
        made = random_world(seed, policy=policy, **world)
        outcome = Simulation(made.workload, made.settings, made.happenings).run()
        assert JobEnd.UNFINISHED not in outcome.jobs.end, f"seed {seed}"


@st.composite
def jobs(draw, number: int) -> JobSnapshot:
    points = {}
    for gpus in (1, 2, 4, 8):
        if draw(st.booleans()) or gpus == 1:
            points[gpus] = draw(st.floats(0.1, 10))
    deadline = draw(st.one_of(st.just(float("inf")), st.floats(-50, 2000)))
    made = job(
        f"job-{number}",
        draw(st.floats(1, 5000)),
        deadline,
        points,
        requested_gpus=draw(st.sampled_from([0, 1, 2, 4, 8, 16])),
        submitted_at=-float(draw(st.integers(0, 500))),
        newcomer=draw(st.booleans()),
        attained_gpu_seconds=draw(st.floats(0, 10_000)),
    )
    return replace(made, measured=measured(points))


@st.composite
def questions(draw) -> Snapshot:
    many = draw(st.integers(0, 8))
    asked = snapshot(
        1, *(draw(jobs(number)) for number in range(many)), settings=PlannerSettings(slot_seconds=60.0)
    )
    cluster = servers(*draw(st.sampled_from([(4,), (4, 4), (8, 8), (2, 2, 2), (8,)])))
    return replace(asked, servers=cluster)


@pytest.mark.parametrize("policy", sorted(PUBLISHED))
@given(asked=questions())
def test_decision_fits_the_cluster_and_has_all_verdicts(policy, asked):
    decision = policy_named(policy).replan(asked)
    assert _same(decision, policy_named(policy).replan(asked))
    verdicts = {verdict.job_id: verdict for verdict in decision.verdicts}
    assert set(verdicts) == {job_snapshot.id for job_snapshot in asked.jobs if job_snapshot.newcomer}
    held = [address for addresses in decision.placements.values() for address in addresses]
    assert len(held) == len(set(held)) <= sum(server.gpus for server in asked.servers)
    for job_snapshot in asked.jobs:
        if job_snapshot.id in verdicts and not verdicts[job_snapshot.id].admitted:
            assert job_snapshot.id not in decision.placements
            continue
        allowed = (
            (job_snapshot.measured or job_snapshot.curve)
            if POLICIES[policy].any_measured_size
            else job_snapshot.curve
        )
        assert len(decision.placements[job_snapshot.id]) in {0, *allowed.levels.tolist()}
    assert decision.next_wake_at > asked.next_slot_at


def _same(first, second) -> bool:
    """Return whether two decisions do the same. They hold arrays, so `==` cannot compare them."""
    return (
        first.placements == second.placements
        and first.changes == second.changes
        and first.next_wake_at == second.next_wake_at
        and first.memory == second.memory
        and first.job_memory == second.job_memory
        and [verdict.admitted for verdict in first.verdicts]
        == [verdict.admitted for verdict in second.verdicts]
    )


@pytest.mark.parametrize("policy", sorted(PUBLISHED))
def test_a_locked_job_keeps_its_gpus(policy):
    locked = job(
        "locked", 900, 5000, {1: 1.0, 2: 2.0}, newcomer=False, gpus_now=2, placement=(0, 1), locked=True
    )
    others = [job(f"other-{number}", 90, 100, {1: 1.0, 2: 2.0}, requested_gpus=2) for number in range(3)]
    decision = policy_named(policy).replan(snapshot(4, locked, *others))
    assert decision.placements["locked"] == (0, 1)
    assert sum(len(addresses) for addresses in decision.placements.values()) <= 4


@pytest.mark.parametrize("policy", sorted(PUBLISHED))
def test_an_empty_cluster_and_an_empty_queue_are_answered(policy):
    nothing = policy_named(policy).replan(snapshot(4))
    assert nothing.placements == {}
    assert nothing.next_wake_at == float("inf")


@pytest.mark.parametrize("policy", sorted(PUBLISHED))
def test_what_if_gives_a_verdict_and_no_offer(policy):
    verdict, offer = policy_named(policy).what_if(snapshot(4), job("asked", 9, 90))
    assert verdict.job_id == "asked"
    assert verdict.admitted
    assert offer is None
    assert policy_named(policy).find_offer(snapshot(4), job("asked", 9, 90)) is None
    if not policy_named(policy).promises:
        assert not verdict.promised


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_job_waits_while_no_server_is_usable(policy: str) -> None:
    gone = tuple(replace(server, usable=False) for server in servers(4))
    waiting = replace(job("waiting", 100.0, requested_gpus=1), measured=measured({1: 1.0, 2: 1.5}))
    decision = policy_named(policy).replan(Snapshot(0.0, 0.0, gone, (waiting,)))
    assert not decision.placements.get("waiting")
