"""Verdicts and plans do not depend on how newcomers are split into decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.long import burst
from benchmarks.long.burst_newcomers import newcomers
from scheduling.core.elasticflow.admission import Admission
from scheduling.core.elasticflow.deadline_order import DeadlineOrder
from scheduling.core.elasticflow.early_refusal import GpuTimeNeeded
from scheduling.core.elasticflow.pause_budget import PauseBudget, published_pause_seconds
from scheduling.core.elasticflow.reallocation import Planner
from scheduling.core.problem.problem import Problem, build_problem
from scheduling.core.problem.work import Work
from scheduling.core.question.curves import curve_from_measurements
from scheduling.core.question.decision import Decision, ReasonCode, Verdict
from scheduling.core.question.snapshot import (
    NO_DEADLINE,
    Fill,
    JobSnapshot,
    Newcomers,
    PlannerSettings,
    ServerSnapshot,
    ServiceClass,
    Snapshot,
    StoredPlan,
)
from scheduling.policies.punctual import SEARCH
from simulation.policies import policy_named

CLASSES = (ServiceClass.SLO, ServiceClass.SLO, ServiceClass.SOFT, ServiceClass.BEST_EFFORT)


def random_newcomers(seed: int, count: int, *, pauses: bool) -> tuple[JobSnapshot, ...]:
    rng = np.random.default_rng(seed)
    jobs = []
    for number in range(count):
        efficiency, rate = rng.uniform(0.6, 1.0), rng.uniform(0.5, 4.0)
        rates = {2**level: rate * (2 * efficiency) ** level for level in range(int(rng.integers(1, 4)))}
        curve = curve_from_measurements(rates, pause_seconds=published_pause_seconds if pauses else None)
        kind = CLASSES[int(rng.integers(4))]
        alone = 10.0 * 10 ** rng.uniform(0.0, 1.5)
        deadline = NO_DEADLINE if kind is ServiceClass.BEST_EFFORT else 20.0 + alone * rng.uniform(0.3, 6.0)
        jobs.append(
            JobSnapshot(
                id=f"job-{number:03d}", service_class=kind, submitted_at=float(number), deadline_at=deadline,
                remaining_iterations=float(curve.throughput[0]) * alone, curve=curve, newcomer=True,
                finishing_seconds=1.0,
                project=int(rng.integers(2)),
            )
        )  # fmt: skip
    return tuple(jobs)


def cluster(servers: int, **fields: object) -> Snapshot:
    chosen = PlannerSettings(slot_seconds=5.0, **fields)  # type: ignore[arg-type]
    machines = tuple(ServerSnapshot(f"server-{number}", 4) for number in range(servers))
    return Snapshot(now=0.0, next_slot_at=3.0, servers=machines, jobs=(), settings=chosen)


def committed(snapshot: Snapshot, decision: Decision) -> Snapshot:
    """Return the snapshot after a commit: admitted jobs with their plans."""
    verdicts = {verdict.job_id: verdict for verdict in decision.verdicts}
    jobs = []
    for job in snapshot.jobs:
        verdict = verdicts.get(job.id)
        if verdict is not None and not verdict.admitted:
            continue
        if verdict is not None:
            job = replace(job, newcomer=False, promised=verdict.promised)
        jobs.append(replace(job, stored_plan=decision.plans.get(job.id, job.stored_plan)))
    return replace(snapshot, jobs=tuple(jobs), memory=decision.memory)


def decide_in_groups(
    snapshot: Snapshot, jobs: tuple[JobSnapshot, ...], sizes: list[int], policy: str
) -> tuple[list[Verdict], dict[str, StoredPlan]]:
    """Return all verdicts and the promised plans when newcomers arrive in groups of these sizes."""
    verdicts: list[Verdict] = []
    waiting = list(jobs)
    while waiting:
        size = sizes.pop(0) if sizes else len(waiting)
        group, waiting = waiting[:size], waiting[size:]
        snapshot = replace(snapshot, jobs=(*snapshot.jobs, *group))
        decision = policy_named(policy).admit(snapshot)
        verdicts += decision.verdicts
        snapshot = committed(snapshot, decision)
    plans = {job.id: job.stored_plan for job in snapshot.jobs if job.promised and job.stored_plan is not None}
    return verdicts, plans


def same_plan(first: StoredPlan, second: StoredPlan) -> bool:
    return first.gpus.tolist() == second.gpus.tolist() and bool(
        np.allclose(first.start, second.start, atol=1e-5) and np.allclose(first.end, second.end, atol=1e-5)
    )


@given(
    seed=st.integers(0, 10_000), sizes=st.lists(st.integers(1, 9), max_size=12), pauses=st.booleans(),
    policy=st.sampled_from(["punctual", "elasticflow"]), reserve=st.integers(0, 1),
    fill=st.sampled_from(list(Fill)),
    rule=st.sampled_from(list(Newcomers)),
)  # fmt: skip
def test_splitting_newcomers_changes_no_verdict_or_plan(
    seed: int, sizes: list[int], pauses: bool, policy: str, reserve: int, fill: Fill, rule: Newcomers
) -> None:
    slack = 6.0 * reserve
    snapshot = cluster(3, fill=fill, reserve_servers=reserve, reserve_slack_seconds=slack, newcomers=rule)
    jobs = random_newcomers(seed, 36, pauses=pauses)
    verdicts, plans = decide_in_groups(snapshot, jobs, list(sizes), policy)
    expected, expected_plans = decide_in_groups(snapshot, jobs, [1] * len(jobs), policy)
    assert [(v.job_id, v.admitted, v.promised, v.reason_code, v.reason) for v in verdicts] == [
        (v.job_id, v.admitted, v.promised, v.reason_code, v.reason) for v in expected
    ]
    assert plans.keys() == expected_plans.keys()
    assert all(same_plan(plans[job_id], expected_plans[job_id]) for job_id in plans)


@given(seed=st.integers(0, 10_000), most_work=st.integers(1, 60_000), reallocating=st.booleans())
def test_work_limit_decides_a_prefix_and_names_undecided_newcomers(
    seed: int, most_work: int, reallocating: bool
) -> None:
    policy = policy_named("punctual")
    jobs = random_newcomers(seed, 30, pauses=True)
    ask = policy.replan if reallocating else policy.admit
    limited = ask(replace(cluster(2, most_work=most_work), jobs=jobs))
    whole = ask(replace(cluster(2), jobs=jobs))
    count = len(limited.verdicts)
    assert count >= 1
    assert [(v.job_id, v.promised, v.reason) for v in limited.verdicts] == [
        (v.job_id, v.promised, v.reason) for v in whole.verdicts[:count]
    ]
    assert limited.undecided == tuple(job.id for job in jobs[count:])
    waiting = set(limited.undecided)
    assert not waiting & (limited.plans.keys() | limited.placements.keys())
    assert not waiting & {change.job_id for change in limited.changes}


@given(
    seed=st.integers(0, 10_000), most_work=st.integers(0, 60_000), reallocating=st.booleans(),
    same_kind=st.booleans(),
)  # fmt: skip
def test_work_limit_names_undecided_newcomers_beside_borrowed_servers(
    seed: int, most_work: int, reallocating: bool, same_kind: bool
) -> None:
    """Best-effort jobs that get borrowed GPUs are decided at once, before earlier newcomers."""
    policy = policy_named("punctual")
    jobs = tuple(replace(job, lent_curve=job.curve) for job in random_newcomers(seed, 30, pauses=True))
    owned = cluster(2, most_work=most_work)
    lent = ServerSnapshot("lent", 4, on_loan=True, same_kind=same_kind)
    question = replace(owned, servers=(*owned.servers, lent), jobs=jobs)
    limited = (policy.replan if reallocating else policy.admit)(question)
    decided_ids = [verdict.job_id for verdict in limited.verdicts]
    assert decided_ids[0] == "job-000"
    assert sorted([*decided_ids, *limited.undecided]) == [job.id for job in jobs]
    waiting = set(limited.undecided)
    assert not waiting & (limited.plans.keys() | limited.placements.keys())
    assert not waiting & {change.job_id for change in limited.changes}


def test_work_limit_keeps_verdicts_beside_borrowed_servers() -> None:
    policy = policy_named("punctual")
    jobs = random_newcomers(7, 30, pauses=True)
    owned = cluster(2, most_work=1)
    question = replace(owned, servers=(*owned.servers, ServerSnapshot("lent", 4, on_loan=True)), jobs=jobs)
    verdicts: list[Verdict] = []
    while question.jobs and any(job.newcomer for job in question.jobs):
        decision = policy.admit(question)
        verdicts += decision.verdicts
        waiting = set(decision.undecided)
        after = committed(
            replace(question, jobs=tuple(j for j in question.jobs if j.id not in waiting)), decision
        )
        question = replace(after, jobs=(*after.jobs, *(job for job in jobs if job.id in waiting)))
    whole = policy.admit(replace(cluster(2), servers=question.servers, jobs=jobs))
    assert [(v.job_id, v.promised, v.reason) for v in verdicts] == [
        (v.job_id, v.promised, v.reason) for v in whole.verdicts
    ]


def test_promises_broken_by_moves_are_replanned_for_a_newcomer() -> None:
    """No job has started, so all plans are four seconds short. Forced moves then make some promises late;
    without replanning, these would block every newcomer."""
    policy = policy_named("punctual")
    jobs = [job for job, _ in newcomers(200, 16, "large", 0)]
    question = replace(burst.empty_cluster(16), jobs=tuple(jobs[:120]))
    present = replace(burst.committed(question, policy.admit(question)), now=4.0, next_slot_at=5.0)
    assert not _keeps_all_promises(present)
    answers = []
    for job in jobs[120:140]:
        question = replace(present, jobs=(*present.jobs, job))
        answers.append((question, policy.admit(question)))
    assert sum(answer.verdicts[0].promised for _, answer in answers) > 4, "four fit without replanning"
    repaired = sum(_keeps_all_promises(burst.committed(question, answer)) for question, answer in answers)
    assert repaired > 15, "refusals repair promises too"


def _keeps_all_promises(snapshot: Snapshot) -> bool:
    """Return whether the stored plans keep all promises with the pauses of all forced moves."""
    planner = Planner(build_problem(snapshot), search=SEARCH)
    planner.budget.treat_as_new([])
    return planner.budget.affordable(planner.admission.plans, planner.admission.rows) is not None


def test_prudent_newcomer_is_counted_once_in_any_split() -> None:
    """Some newcomers are refused to keep room. One decision learns the same demand as many."""
    jobs = random_newcomers(3, 60, pauses=True)
    snapshot = cluster(2, newcomers=Newcomers.PRUDENT)
    together, _ = decide_in_groups(snapshot, jobs, [], "punctual")
    one_by_one, _ = decide_in_groups(snapshot, jobs, [1] * len(jobs), "punctual")
    codes = [verdict.reason_code for verdict in together]
    assert codes == [verdict.reason_code for verdict in one_by_one]
    assert ReasonCode.ROOM_KEPT in codes
    whole = policy_named("punctual").admit(replace(snapshot, jobs=jobs))
    limited = policy_named("punctual").admit(
        replace(snapshot, jobs=jobs, settings=replace(snapshot.settings, most_work=1))
    )
    only = policy_named("punctual").admit(replace(snapshot, jobs=jobs[:1]))
    assert limited.memory == only.memory != whole.memory


@given(seed=st.integers(0, 10_000), pauses=st.booleans(), reserve=st.integers(0, 1))
def test_full_admission_refuses_jobs_that_lack_gpu_time(seed: int, pauses: bool, reserve: int) -> None:
    refused = []

    class Never(GpuTimeNeeded):
        """Records missing GPU time for the test but never reports it to admission."""

        def is_missing(self, rows: object, row: int) -> bool:
            if super().is_missing(rows, row):  # type: ignore[arg-type]
                refused.append(self._problem.columns.ids[row])
            return False

    snapshot = cluster(2, reserve_servers=reserve, reserve_slack_seconds=6.0 * reserve)
    with patch.object(Admission, "gpu_time_test", Never):
        jobs = random_newcomers(seed, 36, pauses=pauses)
        verdicts = policy_named("punctual").admit(replace(snapshot, jobs=jobs)).verdicts
    promised = {verdict.job_id for verdict in verdicts if verdict.promised}
    assert not promised & set(refused)


def test_missing_gpu_time_is_detected() -> None:
    """Four GPUs for 100 s hold two jobs that need 200 GPU seconds each, and no other."""
    linear = curve_from_measurements({1: 1.0, 2: 2.0, 4: 4.0})
    jobs = tuple(
        JobSnapshot(f"job-{number}", ServiceClass.SLO, float(number), 100.0, 190.0, linear, newcomer=True)
        for number in range(10)
    )
    snapshot = replace(cluster(1), next_slot_at=0.0, jobs=jobs)
    missing: list[bool] = []

    class Noting(GpuTimeNeeded):
        def is_missing(self, rows: object, row: int) -> bool:
            missing.append(super().is_missing(rows, row))  # type: ignore[arg-type]
            return missing[-1]

    with patch.object(Admission, "gpu_time_test", Noting):
        verdicts = policy_named("punctual").admit(snapshot).verdicts
    assert [verdict.promised for verdict in verdicts] == [True, True] + 8 * [False]
    assert missing == [False, False] + 8 * [True]


def test_gpu_time_needed_is_built_only_for_several_newcomers() -> None:
    """Simulations decide few newcomers at a time, and each count visits all promises."""

    class Counted(GpuTimeNeeded):
        made = 0

        def __init__(self, problem: Problem) -> None:
            type(self).made += 1
            super().__init__(problem)

    jobs = random_newcomers(5, 12, pauses=True)
    with patch.object(Admission, "gpu_time_test", Counted):
        few_at_a_time, _ = decide_in_groups(cluster(2), jobs, [1, 2, 3] * 2, "punctual")
        assert Counted.made == 0
        together, _ = decide_in_groups(cluster(2), jobs, [], "punctual")
        assert Counted.made == 1
    assert [verdict.reason for verdict in together] == [verdict.reason for verdict in few_at_a_time]
    assert not all(verdict.admitted for verdict in together)


def test_mending_promises_counts_towards_the_limit_and_ends_no_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mend revisits every promise's plan; hundreds of mends must not make a pass long."""
    mended: list[tuple[int, int]] = []
    counted: list[int] = []
    mend, add_beside = PauseBudget._mended, Work.add_beside

    def watched(
        self: PauseBudget, plans: Any, rows: Any, late: list[int], *arguments: Any, **options: Any
    ) -> Any:
        done_before = self.work.done
        answer = mend(self, plans, rows, late, *arguments, **options)
        mended.extend((row, self.work.done - done_before) for row in late)
        return answer

    def noted(self: Work, amount: int) -> None:
        counted.append(amount)
        add_beside(self, amount)

    monkeypatch.setattr(PauseBudget, "_mended", watched)
    monkeypatch.setattr(Work, "add_beside", noted)
    for seed in range(6):
        policy_named("punctual").admit(replace(cluster(2), jobs=random_newcomers(seed, 30, pauses=True)))
    assert mended, "none of these decisions had a promise to mend"
    assert {difference for _, difference in mended} == {0}, "mends do not count towards the limit of a search"
    assert sum(counted) >= len(mended)
    assert min(counted) > 0
    work = Work(limit=10)
    work.add_beside(9)
    assert not work.is_spent()
    work.add_beside(1)
    assert work.is_spent()


def test_passed_pieces_count_less_towards_the_work_limit() -> None:
    """Most pieces are skipped; at full weight, a pass with many refusals would stop far too early."""
    work = Work(limit=10)
    work.add_passed(36)
    assert work.done == 36, "the limit of a search counts each piece in full"
    assert not work.is_spent()
    work.add_passed(4)
    assert work.is_spent()


def test_uniform_filling_counts_passed_pieces_and_suffix_visited_ones() -> None:
    """Uniform filling searches for room in a tight loop; suffix filling visits the same pieces many times."""
    passed: list[int] = []
    added: list[int] = []

    class Watched(Work):
        def add_passed(self, pieces: int) -> None:
            passed.append(pieces)

        def add(self, amount: int) -> None:
            added.append(amount)

    problem = build_problem(replace(cluster(2), jobs=random_newcomers(5, 12, pauses=True)))
    rows = [row for row in problem.newcomers if problem.due[row] < np.inf]
    for suffix in (False, True):
        order = DeadlineOrder(problem, problem.stored, problem.opened, Watched(), suffix=suffix)
        order.with_newcomer(rows[:-1], rows[-1])
    assert passed
    assert added
