"""Earliest deadline first with admission control: a job is admitted only if all admitted jobs can meet their
deadlines.

The variant "EDF + admission control" of ElasticFlow section 6.4 (figure 9).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

import numpy as np

from kernels.compiling import YES
from scheduling.core.elasticflow.holding import next_wake
from scheduling.core.plans.timeline import occupy_all, take
from scheduling.core.problem import reasons
from scheduling.core.problem.answer import Answer
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import TIME_TOLERANCE, BoolArray, Plans, copy_plans
from scheduling.core.question.columns import BEST_EFFORT, SOFT
from scheduling.core.question.decision import FoundOffer, Verdict
from scheduling.core.question.snapshot import IntArray, JobSnapshot, Snapshot
from scheduling.policies.base import Policy
from scheduling.policies.dispatching import answer_newcomers, answer_with_sizes
from scheduling.policies.without_promises import contest, verdict_alone
from simulation.baselines.against_elasticflow.edf_kernels import plan_in_order


@dataclass
class Admitted:
    """The outcome of admission."""

    #: Verdicts on newcomers.
    verdicts: list[Verdict]
    #: Plans of all admitted jobs.
    plans: Plans
    #: Promised rows whose plan ends after the deadline.
    late: IntArray


class EdfAdmission(Policy):
    """Plans in deadline order, each job on its largest level; a newcomer that would make any job late is
    refused.

    Source: the paper's text. Plans include the pauses of their own changes of level (the platform's rule for
    promises). A job that is already late keeps its place but no longer counts, so that it does not refuse all
    later newcomers. The policy makes no offers. Deviation from ElasticFlow's promise: plans are made anew at
    every decision, on a slot grid that begins there, and do not foresee moves that placement forces. So a
    promise can break; such jobs are reported as at risk.
    """

    name = "edf_admission"
    #: Whether plans carry pauses.
    plans_with_pauses: ClassVar[bool] = True
    #: Whether a job that is late already makes every later newcomer be refused.
    late_jobs_refuse_all: ClassVar[bool] = False

    def decide_newcomers(self, problem: Problem) -> Answer:
        """Decide newcomers by plans that begin at the next slot; until then all jobs keep their GPUs."""
        admitted = self._admit(problem)
        answer = answer_newcomers(
            problem, admitted.verdicts, next_wake_at=self._wake(problem, admitted.plans)
        )
        return self._with_plans(answer, admitted)

    def reallocate(self, problem: Problem) -> Answer:
        """Decide newcomers, then give each job the GPUs of its plan in the next slot."""
        admitted = self._admit(problem)
        wanted = contest(problem).kept
        planned = admitted.plans.length[: problem.count] > 0
        wanted[planned] = admitted.plans.gpus[: problem.count][planned, 0]
        answer = answer_with_sizes(
            problem, admitted.verdicts, wanted, plans=admitted.plans,
            next_wake_at=self._wake(problem, admitted.plans),
        )  # fmt: skip
        return self._with_plans(answer, admitted)

    def find_offer(self, snapshot: Snapshot, job: JobSnapshot) -> FoundOffer | None:
        """None: this baseline makes no offers."""
        return None

    def what_if(self, snapshot: Snapshot, job: JobSnapshot) -> tuple[Verdict, FoundOffer | None]:
        """The verdict the job would get now."""
        return verdict_alone(self, snapshot, job), None

    def _wake(self, problem: Problem, plans: Plans) -> float:
        """When a plan next takes more GPUs or ends."""
        rows = np.flatnonzero(plans.length[: problem.count] > 0)
        return problem.now + float(next_wake(problem.jobs, plans, rows, problem.slots))

    def _with_plans(self, answer: Answer, admitted: Admitted) -> Answer:
        planned = admitted.plans.length[: answer.problem.count] > 0
        return replace(
            answer, plans=admitted.plans, planned=planned & ~answer.declined,
            at_risk=tuple(admitted.late.tolist()),
        )  # fmt: skip

    # Admission -------------------------------------------------------------------------------

    def _admit(self, problem: Problem) -> Admitted:
        """Decide the newcomers one by one in submission order, and plan all admitted jobs."""
        promised = problem.columns.promised & ~problem.columns.newcomer
        present = contest(problem, problem.columns.newcomer).rows
        plans = self._planned(problem, present, promised)
        if not problem.newcomers:
            return Admitted([], plans, self._late(problem, plans, promised))
        excused = np.zeros_like(promised)
        if not self.late_jobs_refuse_all:
            excused[self._late(problem, plans, promised)] = True
        verdicts: list[Verdict] = []
        inside = present
        for row in problem.newcomers:
            verdict = self._verdict(problem, inside, promised, excused, row)
            verdicts.append(verdict)
            if verdict.admitted:
                inside = np.append(inside, row)
                promised[row] = verdict.promised
        plans = self._planned(problem, inside, promised)
        return Admitted(verdicts, plans, self._late(problem, plans, promised))

    def _planned(self, problem: Problem, rows: IntArray, promised: BoolArray) -> Plans:
        """EDF plans of ``rows``: promised ones first, then the others, each in deadline order."""
        storing = int(contest(problem).kept[~problem.jobs.locked[: problem.count]].sum())
        slot_end = problem.origin + problem.slot
        timeline = take(problem.open_timeline(), problem.origin, slot_end, storing, True)
        plans = copy_plans(problem.stored)
        plans.length[: problem.count] = 0
        offers = np.arange(problem.count, problem.jobs.work.size)
        timeline = occupy_all(timeline, plans, offers, YES)
        order = rows[np.lexsort((problem.by_deadline[rows], ~promised[rows]))]
        plans, _ = plan_in_order(
            problem.jobs, plans, order, timeline, problem.slots,
            self.plans_with_pauses,
        )  # fmt: skip
        return plans

    def _late(self, problem: Problem, plans: Plans, promised: BoolArray) -> IntArray:
        """Promised rows whose plan ends after their deadline."""
        count = problem.count
        over = plans.finish[:count] > problem.due[:count] + TIME_TOLERANCE
        return np.flatnonzero(promised & over & (problem.jobs.finished_at[:count] == inf))

    def _verdict(
        self, problem: Problem, inside: IntArray, promised: BoolArray, excused: BoolArray, row: int
    ) -> Verdict:
        facts = reasons.job_facts(problem, row)
        if problem.jobs.level_count[row] == 0:
            return reasons.no_levels(facts, problem.gpus)
        if problem.columns.remaining_iterations[row] <= 0.0:
            return reasons.no_work(facts)
        if problem.columns.service_class[row] == BEST_EFFORT:
            return reasons.best_effort(facts)
        tried = promised.copy()
        tried[row] = True
        plans = self._planned(problem, np.append(inside, row), tried)
        late = self._late(problem, plans, tried & ~excused)
        if not late.size:
            return reasons.fits(facts, problem.stored_plan(plans, row))
        refusal = self._refusal(problem, facts, row, late)
        return reasons.soft_unpromised(refusal) if problem.columns.service_class[row] == SOFT else refusal

    def _refusal(self, problem: Problem, facts: reasons.VerdictFacts, row: int, late: IntArray) -> Verdict:
        """The refusal with its reason: the deadline has passed, the job is too slow alone, or another job
        would be late."""
        jobs, now, due = problem.jobs, problem.now, float(problem.due[row])
        if due <= 0.0:
            return reasons.deadline_passed(facts, now)
        levels = int(jobs.level_count[row])
        seconds = problem.origin + jobs.work[row] / jobs.throughput[row, :levels]
        if self.plans_with_pauses:
            seconds += jobs.pause[row, :levels]
        fastest = int(seconds.argmin())
        if seconds[fastest] > due + TIME_TOLERANCE:
            alone = float(seconds[fastest] + jobs.finishing[row])
            return reasons.too_slow_alone(facts, now, alone, int(jobs.levels[row, fastest]))
        needed = int(jobs.levels[row, int(np.flatnonzero(seconds <= due + TIME_TOLERANCE)[0])])
        free = contest(problem).gpus - int(jobs.gpus[: problem.count].sum())
        first = int(late[problem.by_deadline[late].argmin()])
        if first == row:
            return reasons.capacity(facts, now, needed, free, problem.origin)
        return reasons.would_break(
            facts, now, reasons.job_facts(problem, first), needed, free, problem.origin
        )
