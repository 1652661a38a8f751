"""Decisions of the default policy on borrowed servers: which jobs go there, stay and return."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scheduling.core.question.decision import ChangeKind, Decision
from scheduling.core.question.snapshot import (
    BlockedGpus,
    JobSnapshot,
    PlannerSettings,
    ScalingCurve,
    ServerSnapshot,
    ServiceClass,
    Snapshot,
    StoredPlan,
)
from simulation.policies import policy_named

OWNED = tuple(range(4))  # addresses of the one owned server
BORROWED = tuple(range(4, 8))


def curve(*rates: float) -> ScalingCurve:
    levels = 2 ** np.arange(len(rates))
    return ScalingCurve(levels, np.array(rates), np.full(len(rates), 1.0))


FAST, SLOW = curve(10.0, 19.0, 36.0), curve(3.0, 5.5, 10.0)


def job(name: str, *, submitted_at: float = 0.0, **facts) -> JobSnapshot:
    return JobSnapshot(
        id=name,
        service_class=facts.pop("service_class", ServiceClass.BEST_EFFORT),
        submitted_at=submitted_at,
        deadline_at=facts.pop("deadline_at", float("inf")),
        remaining_iterations=facts.pop("remaining_iterations", 10_000.0),
        curve=FAST,
        lent_curve=facts.pop("lent_curve", SLOW),
        **facts,
    )


def promised(**facts) -> JobSnapshot:
    """Return a newcomer that needs all four owned GPUs until shortly before its deadline."""
    return job(
        "promised",
        service_class=ServiceClass.SLO,
        deadline_at=300.0,
        newcomer=True,
        remaining_iterations=36.0 * 280,
        **facts,
    )


def snapshot(*jobs: JobSnapshot, lent_usable: bool = True, blocked: tuple[BlockedGpus, ...] = ()) -> Snapshot:
    return Snapshot(
        now=0.0,
        next_slot_at=0.0,
        servers=(ServerSnapshot("owned", 4), ServerSnapshot("borrowed", 4, usable=lent_usable, on_loan=True)),
        jobs=jobs,
        blocked=blocked,
        settings=PlannerSettings(slot_seconds=5.0),
    )


def decide(question: Snapshot) -> Decision:
    return policy_named("punctual").replan(question)


def test_work_without_room_beside_promises_runs_on_borrowed_servers() -> None:
    decision = decide(snapshot(promised(), job("waiting", submitted_at=-1.0)))
    assert decision.placements["promised"] == OWNED
    assert decision.placements["waiting"] == BORROWED
    assert decision.flexible["waiting"] == (False, True, True, True), (
        "workers beyond the lowest level are flexible"
    )


def test_a_job_waits_for_owned_gpus_that_come_free_soon_enough() -> None:
    """On two slow GPUs the job would end later than if it waits for a fast GPU."""
    measuring = BlockedGpus(addresses=BORROWED[:2], until=60.0)
    decision = decide(snapshot(promised(), job("waiting", submitted_at=-1.0), blocked=(measuring,)))
    assert not decision.placements["waiting"]


def test_work_stays_on_owned_servers_where_it_ends_sooner_there() -> None:
    decision = decide(snapshot(job("alone", newcomer=True)))
    assert decision.placements["alone"] == OWNED


def test_no_promise_depends_on_borrowed_servers() -> None:
    first = decide(snapshot(promised()))
    (verdict,) = first.verdicts
    assert verdict.promised
    second = replace(promised(), id="second", submitted_at=1.0)
    decision = decide(snapshot(promised(), second))
    assert [verdict.admitted for verdict in decision.verdicts] == [True, False]
    assert not decision.placements.get("second")


def test_a_job_never_measured_on_the_borrowed_kind_waits() -> None:
    decision = decide(snapshot(promised(), job("waiting", submitted_at=-1.0, lent_curve=None)))
    assert not decision.placements["waiting"]


def running_borrowed(**facts) -> JobSnapshot:
    addresses = facts.pop("placement", BORROWED)
    return job("there", submitted_at=-10.0, gpus_now=len(addresses), placement=addresses, **facts)


def test_borrowed_job_stays_while_promises_fill_owned_servers() -> None:
    decision = decide(snapshot(promised(), running_borrowed()))
    assert decision.placements["there"] == BORROWED
    assert "there" not in {change.job_id for change in decision.changes}


def test_borrowed_job_migrates_to_clearly_faster_owned_servers() -> None:
    decision = decide(snapshot(running_borrowed()))
    assert decision.placements["there"] == OWNED
    (change,) = decision.changes
    assert (change.kind, change.gpus_before, change.gpus_after) == (ChangeKind.MIGRATE, 4, 4)


def test_borrowed_job_is_suspended_when_its_server_is_reclaimed() -> None:
    decision = decide(snapshot(promised(), running_borrowed(), lent_usable=False))
    (change,) = [change for change in decision.changes if change.job_id == "there"]
    assert (change.kind, change.gpus_before, change.addresses) == (ChangeKind.SUSPEND, 4, ())
    assert not decision.placements["there"]


def test_a_job_in_the_middle_of_a_change_keeps_its_borrowed_gpus() -> None:
    decision = decide(snapshot(running_borrowed(locked=True, placement=BORROWED[:2])))
    assert decision.placements["there"] == BORROWED[:2]
    assert not decision.changes


def test_blocked_gpus_of_a_borrowed_server_are_unused() -> None:
    measuring = BlockedGpus(addresses=BORROWED[:2], until=60.0)
    waiting = job("waiting", submitted_at=-1.0, remaining_iterations=1000.0)
    decision = decide(snapshot(promised(), waiting, blocked=(measuring,)))
    assert decision.placements["waiting"] == BORROWED[2:]


def test_two_decisions_in_a_row_without_an_event_change_nothing() -> None:
    question = snapshot(promised(), job("waiting", submitted_at=-1.0))
    decision = decide(question)
    later = replace(
        question,
        jobs=tuple(
            replace(
                candidate,
                newcomer=False,
                promised=candidate.id == "promised",
                stored_plan=decision.plans.get(candidate.id),
                gpus_now=len(decision.placements[candidate.id]),
                placement=decision.placements[candidate.id],
                flexible=decision.flexible[candidate.id],
            )
            for candidate in question.jobs
        ),
    )
    assert decide(later).changes == ()


def same_kind(*jobs: JobSnapshot, lent_usable: bool = True) -> Snapshot:
    """Return the snapshot with a borrowed server of the owned servers' GPU kind."""
    question = snapshot(*jobs, lent_usable=lent_usable)
    return replace(question, servers=(question.servers[0], replace(question.servers[1], same_kind=True)))


LONGER = curve(10.0, 19.0, 36.0, 68.0)


def test_job_grows_from_owned_onto_borrowed_servers_of_its_kind() -> None:
    decision = decide(same_kind(job("growing", newcomer=True, lent_curve=LONGER)))
    assert decision.placements["growing"] == OWNED + BORROWED
    assert decision.flexible["growing"] == (False,) * 4 + (True,) * 4, "workers on borrowed GPUs are flexible"


def test_job_shrinks_to_owned_servers_when_borrowed_one_is_reclaimed() -> None:
    grown = job(
        "growing",
        lent_curve=LONGER,
        gpus_now=8,
        placement=OWNED + BORROWED,
        flexible=(False,) * 4 + (True,) * 4,
    )
    before = decide(same_kind(grown))
    assert before.changes == ()
    decision = decide(same_kind(grown, lent_usable=False))
    (change,) = decision.changes
    assert (change.kind, change.gpus_before, change.addresses) == (ChangeKind.SHRINK, 8, OWNED)


def running_promise(*, borrowed: int = 0, **facts) -> JobSnapshot:
    """Return a promised job that needs its four owned GPUs for another 197 s and also holds ``borrowed``
    GPUs."""
    addresses = OWNED + BORROWED[:borrowed]
    ends_at = facts.get("deadline_at", 300.0)
    plan = StoredPlan(np.array([0.0]), np.array([ends_at]), np.array([4]), ends_at)
    return job(
        "promised",
        service_class=ServiceClass.SLO,
        promised=True,
        deadline_at=facts.pop("deadline_at", 300.0),
        remaining_iterations=facts.pop("remaining_iterations", 36.0 * 197),
        stored_plan=plan,
        gpus_now=len(addresses),
        placement=addresses,
        flexible=(False,) * 4 + (True,) * borrowed if borrowed else (),
        lent_curve=facts.pop("lent_curve", LONGER),
        **facts,
    )


def test_a_promised_job_grows_onto_borrowed_servers_of_its_own_kind() -> None:
    decision = decide(same_kind(running_promise()))
    assert decision.placements["promised"] == OWNED + BORROWED
    assert decision.flexible["promised"] == (False,) * 4 + (True,) * 4
    assert not decision.at_risk
    plan = decision.plans["promised"]
    assert plan.gpus.max() <= len(OWNED), "the promise depends on owned servers alone"


def test_a_promised_job_keeps_off_borrowed_servers_of_another_kind() -> None:
    decision = decide(snapshot(running_promise(lent_curve=LONGER)))
    assert decision.placements["promised"] == OWNED


def test_promised_job_grows_only_if_it_can_afford_a_reclaim() -> None:
    """The job needs 197 s; growing and shrinking cost a second each."""
    assert decide(same_kind(running_promise(deadline_at=198.5))).placements["promised"] == OWNED
    assert decide(same_kind(running_promise(deadline_at=199.5))).placements["promised"] == OWNED + BORROWED


def test_promised_job_keeps_borrowed_gpus_if_it_can_afford_a_reclaim() -> None:
    question = same_kind(running_promise(borrowed=4, deadline_at=198.5))
    assert decide(question).changes == ()


def test_promised_job_is_on_time_after_an_immediate_reclaim() -> None:
    grown = running_promise(borrowed=4, deadline_at=198.5)
    decision = decide(same_kind(grown, lent_usable=False))
    (change,) = decision.changes
    assert (change.kind, change.addresses) == (ChangeKind.SHRINK, OWNED)
    assert not decision.at_risk
    assert decision.plans["promised"].finish_at <= 198.5


def test_unreachable_promised_job_plans_with_its_owned_gpus_alone() -> None:
    """Its agent is silent, so it keeps its GPUs until the agent can be reached."""
    unreachable = running_promise(borrowed=4, locked=True)
    newcomer = job("newcomer", newcomer=True, submitted_at=1.0)
    question = replace(same_kind(unreachable, newcomer), next_slot_at=3.0)
    answer = policy_named("punctual").decide_newcomers(policy_named("punctual").problem_of(question))
    row = answer.problem.columns.ids.index("promised")
    assert answer.plans.gpus[row, 0] == len(OWNED)
    assert answer.placements.addresses.tolist() == [*OWNED, *BORROWED]


def test_unpromised_job_grows_before_an_equal_promised_job() -> None:
    """Two jobs hold two owned GPUs each, and only one can get the four borrowed GPUs. The promised job is on
    time either way."""
    lent_curve = curve(10.0, 19.0, 20.0, 68.0)
    unpromised = job(
        "waiting", placement=OWNED[:2], remaining_iterations=19.0 * 100, gpus_now=2, lent_curve=lent_curve
    )
    promised_job = replace(
        running_promise(deadline_at=1000.0, lent_curve=lent_curve), remaining_iterations=19.0 * 100,
        gpus_now=2, placement=OWNED[2:],
        stored_plan=StoredPlan(np.array([0.0]), np.array([1000.0]), np.array([2]), 1000.0),
    )  # fmt: skip
    decision = decide(same_kind(unpromised, promised_job))
    assert set(BORROWED) & set(decision.placements["waiting"])
    assert len(decision.placements["waiting"]) >= len(decision.placements["promised"])
