"""The common part of policies without promises: they admit every job that can run and promise no deadline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

import numpy as np

from kernels.compiling import ZERO, kernel
from scheduling.core.plans.timeline import EVERYTHING
from scheduling.core.problem.answer import Answer
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import TIME_TOLERANCE, BoolArray, JobArrays
from scheduling.core.question.decision import FoundOffer, Verdict
from scheduling.core.question.snapshot import IntArray, JobSnapshot, Snapshot
from scheduling.policies.base import Policy
from scheduling.policies.dispatching import answer_newcomers, take_all


class WithoutPromises(Policy):
    """Admits every job that can run, at once, and promises nothing."""

    promises: ClassVar[bool] = False

    def decide_newcomers(self, problem: Problem) -> Answer:
        """Admit every newcomer that can run; GPUs change at the next slot."""
        return answer_newcomers(problem, take_all(problem), next_wake_at=inf)

    def find_offer(self, snapshot: Snapshot, job: JobSnapshot) -> FoundOffer | None:
        """None: a policy without promises makes no offers."""
        return None

    def what_if(self, snapshot: Snapshot, job: JobSnapshot) -> tuple[Verdict, FoundOffer | None]:
        """The verdict the job would get now."""
        return verdict_alone(self, snapshot, job), None


def verdict_alone(policy: Policy, snapshot: Snapshot, job: JobSnapshot) -> Verdict:
    """The verdict of ``job`` as the only newcomer. Raises ValueError for an inconsistent snapshot."""
    others = tuple(other for other in snapshot.jobs if other.id != job.id and not other.newcomer)
    asking = replace(job, newcomer=True, promised=False, gpus_now=0, placement=(), stored_plan=None)
    verdicts = policy.admit(replace(snapshot, jobs=(*others, asking))).verdicts
    return next(verdict for verdict in verdicts if verdict.job_id == job.id)


@dataclass(frozen=True)
class Contest:
    """The jobs that compete for the GPUs of the next slot."""

    #: Jobs that may get any size, in the order (submission, id).
    rows: IntArray
    #: Number of GPUs for these jobs.
    gpus: int
    #: For each row of the problem, GPUs of a job that keeps them in any case; 0 for others.
    kept: IntArray


def contest(problem: Problem, declined: BoolArray | None = None) -> Contest:
    """The contest for the next slot, without refused jobs and without jobs that keep their GPUs.

    Those are locked jobs, and jobs that only store their final weights.
    """
    count = problem.count
    refused = np.zeros(count, dtype=np.bool_) if declined is None else declined
    rows, kept, storing_gpus = _contesting(problem.jobs, count, refused, float(problem.origin))
    gpus = int(problem.opened.free[EVERYTHING, 0]) - int(storing_gpus)
    return Contest(rows, max(0, gpus), kept)


@kernel
def _contesting(
    jobs: JobArrays, count: int, refused: BoolArray, origin: float
) -> tuple[IntArray, IntArray, int]:
    """Returns (rows of the contest, GPUs that each row keeps in any case, how many of these those hold that
    store their final weights and are not locked)."""
    rows = np.empty(count, dtype=np.int64)
    kept = np.zeros(count, dtype=np.int64)
    found = 0
    storing_gpus = ZERO
    for row in range(count):
        done = jobs.finished_at[row] < inf
        storing = done and jobs.finished_at[row] + jobs.finishing[row] > origin + TIME_TOLERANCE
        if jobs.locked[row] or storing:
            kept[row] = jobs.gpus[row]
        if jobs.locked[row] or done:
            storing_gpus += jobs.gpus[row] if storing and not jobs.locked[row] else ZERO
        elif jobs.level_count[row] > 0 and not refused[row]:
            rows[found] = row
            found += 1
    return rows[:found], kept, storing_gpus
