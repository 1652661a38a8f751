"""Chronus: jobs with deadlines get leases, packed as late as their deadlines allow; other jobs use idle GPUs.

Gao et al., "Chronus: A Novel Deadline-aware Scheduler for Deep Learning Training Jobs" (SoCC 2021), as
ElasticFlow compares with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from scheduling.core.problem.answer import Answer
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import TIME_TOLERANCE, BoolArray
from scheduling.core.question.columns import BEST_EFFORT
from scheduling.core.question.snapshot import FloatArray, IntArray
from scheduling.policies.dispatching import answer_with_sizes, requested_sizes, take_all
from scheduling.policies.without_promises import Contest, WithoutPromises, contest
from simulation.baselines.against_elasticflow import chronus_program
from simulation.baselines.against_elasticflow.chronus_kernels import EVERYBODY_FITS, pack_latest
from simulation.baselines.against_elasticflow.requests import rates_at
from simulation.baselines.against_elasticflow.size_kernels import fitting_in_order

LEASE_SECONDS = 240.0
RESUME_SECONDS = 0.5
ESTIMATE_MARGIN = 1.1
MOST_LEASES = 100_000
"""How far ahead leases are counted: most of a year."""

STANDING, IN_LEASE = 0, 1
UNDECIDED, ACCEPTED, OPPORTUNISTIC = 0.0, 1.0, 2.0


@dataclass
class _Leases:
    """The state of one decision."""

    #: The problem that is decided.
    problem: Problem
    #: The jobs that compete for the next slot.
    field: Contest
    #: GPUs of each job.
    sizes: IntArray
    #: Estimated seconds that each job needs.
    seconds_left: FloatArray
    #: Whole leases that each job needs.
    needed: IntArray
    #: Whole leases until each deadline, from the next lease that can be given.
    until_due: IntArray
    #: What the policy notes about each job.
    memory: FloatArray

    def accepted(self) -> IntArray:
        """Rows of accepted jobs that have not ended."""
        rows = self.field.rows
        accepted: IntArray = rows[self.memory[rows, STANDING] == ACCEPTED]
        return accepted

    def order(self, rows: IntArray) -> IntArray:
        """The order of packing: larger jobs, then less slack, then later deadlines."""
        slack = self.until_due[rows] - self.needed[rows]
        ordered: IntArray = rows[np.lexsort((rows, -self.problem.due[rows], slack, -self.sizes[rows]))]
        return ordered

    def pack(self, rows: IntArray) -> tuple[int, BoolArray]:
        """See `pack_latest`."""
        failing, first = pack_latest(
            self.order(rows), self.sizes, self.needed, self.until_due, self.problem.gpus
        )
        return int(failing), first


class Chronus(WithoutPromises):
    """Leases of 240 s: accepted jobs are packed into leases before their deadlines, other jobs use idle GPUs.

    A job with a deadline is accepted if it and all accepted jobs can be packed, each into its latest leases.
    When a lease begins, a 0/1 program picks the accepted jobs that occupy it. They use as many GPUs as
    possible if no other job waits, else as few as possible. Jobs run on the GPU count their user requested.

    Deviations: the program counts leases per interval between deadlines. It handles up to
    `chronus_program.MOST_JOBS` jobs within a limit on nodes; the packer decides where it has no answer. A
    change of GPUs costs the measured pause instead of 0.5 s times (1 + log2 of the GPUs). Jobs are
    consolidated instead of split by local search. An accepted job that can no longer be packed becomes
    opportunistic. Acceptance is no promise of the platform, since a wrong estimate breaks it.
    """

    name = "chronus"
    any_measured_size = True
    memory_columns = ("standing", "in_lease")

    def reallocate(self, problem: Problem) -> Answer:
        """Accept newcomers, give out a lease where one begins, then fill the idle GPUs."""
        verdicts = take_all(problem)
        ends_at = float(problem.cluster_memory[0]) if problem.cluster_memory.size else -inf
        begins = problem.next_slot_at >= ends_at - TIME_TOLERANCE
        if begins:
            ends_at = problem.next_slot_at + LEASE_SECONDS
        leases = _leases(problem, ends_at, begins)
        _accept(leases)
        note = _give_out(leases) if begins else "lease goes on"
        wanted = _filled_up(leases, begins)
        waiting = bool((wanted[leases.field.rows] == 0).any())
        answer = answer_with_sizes(
            problem, verdicts, wanted, job_memory=leases.memory, cluster_memory=np.array([ends_at]),
            next_wake_at=ends_at if waiting else inf,
        )  # fmt: skip
        return replace(answer, notes=(note,))


def _leases(problem: Problem, ends_at: float, begins: bool) -> _Leases:
    field = contest(problem)
    count, columns = problem.count, problem.columns
    sizes = requested_sizes(problem)
    rates = rates_at(problem, sizes)
    rates[rates == 0.0] = 1.0  # jobs that cannot run are in no contest
    whole = columns.total_iterations / rates
    resumes = (1.0 + np.log2(np.maximum(sizes, 1))) * RESUME_SECONDS
    estimate = np.floor(whole * (1.0 + resumes / LEASE_SECONDS) * ESTIMATE_MARGIN)
    left = np.maximum(problem.jobs.work[:count] / rates, 1e-9)
    memory = columns.memory.copy()
    first_at = problem.next_slot_at if begins else ends_at
    seconds_left = np.maximum(estimate - (whole - left), left)
    to_come = seconds_left.copy()
    if not begins:
        going_on = memory[:, IN_LEASE] > 0
        to_come[going_on] = np.maximum(0.0, to_come[going_on] - (ends_at - problem.next_slot_at))
    needed = np.ceil(to_come / LEASE_SECONDS - TIME_TOLERANCE).astype(np.int64)
    until_due = np.floor((columns.deadline_at - first_at) / LEASE_SECONDS + TIME_TOLERANCE)
    bounded = np.clip(np.nan_to_num(until_due, posinf=0.0), 0.0, MOST_LEASES).astype(np.int64)
    return _Leases(problem, field, sizes, seconds_left, needed, bounded, memory)


def _accept(leases: _Leases) -> None:
    """Decide newly arrived jobs in submission order."""
    rows, memory = leases.field.rows, leases.memory
    _demote(leases)
    for row in rows[memory[rows, STANDING] == UNDECIDED].tolist():
        memory[row, STANDING] = OPPORTUNISTIC
        if leases.problem.columns.service_class[row] == BEST_EFFORT:
            continue
        if leases.pack(np.append(leases.accepted(), row))[0] == EVERYBODY_FITS:
            memory[row, STANDING] = ACCEPTED


def _demote(leases: _Leases) -> None:
    """Turn accepted jobs that can no longer be packed, because they took longer than estimated, into
    opportunistic ones."""
    while True:
        failing, _ = leases.pack(leases.accepted())
        if failing == EVERYBODY_FITS:
            return
        leases.memory[failing] = (OPPORTUNISTIC, 0.0)


def _give_out(leases: _Leases) -> str:
    """Choose the jobs that occupy the lease that begins. Returns the name of the method that chose."""
    rows, memory = leases.accepted(), leases.memory
    others = leases.field.rows[memory[leases.field.rows, STANDING] == OPPORTUNISTIC]
    memory[:, IN_LEASE] = 0.0
    sizes, gpus = leases.sizes, leases.field.gpus
    most = not others.size
    if most and int(sizes[rows].sum()) <= gpus:
        memory[rows, IN_LEASE] = 1.0
        return "lease to every accepted job"
    _, first = leases.pack(rows)
    if not most and not first.any():
        return "no accepted job needs this lease"
    chosen = _by_program(leases, rows, most) if rows.size <= chronus_program.MOST_JOBS else None
    note = "lease by the 0/1 program"
    if chosen is None:
        chosen, note = rows[first[rows]], "lease by the packer"
    given = np.zeros_like(sizes)
    order = np.concatenate(
        (leases.order(chosen), leases.order(np.setdiff1d(rows, chosen))[: rows.size * most])
    )
    fitting_in_order(order, sizes, gpus, given)
    memory[given > 0, IN_LEASE] = 1.0
    return note


def _by_program(leases: _Leases, rows: IntArray, most: bool) -> IntArray | None:
    """The program's choice, or None if the remaining leases could not be packed after it."""
    chosen = chronus_program.first_lease(
        leases.sizes[rows], leases.needed[rows], leases.until_due[rows], leases.field.gpus, most_gpus=most
    )
    if chosen is None:
        return None
    after = leases.needed.copy()
    after[rows[chosen]] -= 1
    failing, _ = pack_latest(
        leases.order(rows), leases.sizes, after, np.maximum(leases.until_due - 1, 0), leases.problem.gpus
    )
    return rows[chosen] if failing == EVERYBODY_FITS else None


def _filled_up(leases: _Leases, begins: bool) -> IntArray:
    """GPUs of each job in the next slot: jobs in the lease first, then jobs that fit by remaining GPU
    time."""
    problem, rows, memory = leases.problem, leases.field.rows, leases.memory
    hopeless = leases.seconds_left[rows] > problem.due[rows] - problem.origin
    gpu_seconds = leases.seconds_left[rows] * leases.sizes[rows]
    going_on = (problem.columns.gpus[rows] > 0) & (not begins)
    order = rows[
        np.lexsort(
            (rows, gpu_seconds, memory[rows, STANDING], hopeless, ~going_on, memory[rows, IN_LEASE] == 0)
        )
    ]
    wanted = leases.field.kept
    fitting_in_order(order, leases.sizes, leases.field.gpus, wanted)
    return wanted
