"""Chronus: deadline jobs in leases, packed as late as their deadlines allow, the rest on what is left.

Gao et al., "Chronus: A Novel Deadline-aware Scheduler for Deep Learning Training Jobs" (SoCC 2021), as
ElasticFlow compares with it (spec 4.4).
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
from scheduling.policies import chronus_program
from scheduling.policies.chronus_kernels import EVERYBODY_FITS, pack_latest
from scheduling.policies.dispatching import answer_with_sizes, requested_sizes, take_all
from scheduling.policies.requests import rates_at
from scheduling.policies.size_kernels import fitting_in_order
from scheduling.policies.without_promises import Contest, WithoutPromises, contest

LEASE_SECONDS = 240.0
RESUME_SECONDS = 0.5
ESTIMATE_MARGIN = 1.1
MOST_LEASES = 100_000
"""How far ahead leases are counted: most of a year."""

STANDING, IN_LEASE = 0, 1
UNDECIDED, ACCEPTED, OPPORTUNISTIC = 0.0, 1.0, 2.0


@dataclass
class _Leases:
    """One decision. ``needed`` and ``until_due`` count whole leases from the next lease that can be given
    out."""

    problem: Problem
    field: Contest
    sizes: IntArray
    seconds_left: FloatArray
    needed: IntArray
    until_due: IntArray
    memory: FloatArray

    def accepted(self) -> IntArray:
        """Rows that were accepted and are not done."""
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
    """Leases of 240 s. Accepted jobs are packed into leases before their deadlines; others run when GPUs are
    left.

    A job with a deadline is accepted if it and all accepted ones can be packed, each into its latest leases.
    When a lease begins, a 0/1 program picks the accepted jobs that occupy it: as many GPUs as possible if
    nobody else waits, else as few. Jobs run at the size their user asked for. Deviations: the program counts
    leases per interval between deadlines, is asked for up to `chronus_program.MOST_JOBS` jobs, and is cut off
    by nodes, with the packer where it does not answer; a change of GPUs costs the measured pause instead of
    0.5 s times (1 + log2 of the GPUs); jobs are consolidated instead of split by local search; an accepted
    job that cannot be packed any more becomes opportunistic. Acceptance is Chronus's own matter: the policy
    promises nothing, since an estimate that proves too short breaks it.
    """

    name = "chronus"
    any_measured_size = True
    memory_columns = ("standing", "in_lease")

    def reallocate(self, problem: Problem) -> Answer:
        """Accept, hand out a lease where one begins, then fill up."""
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
    """Decide the jobs that nobody has decided yet, in submission order."""
    rows, memory = leases.field.rows, leases.memory
    _demote(leases)
    for row in rows[memory[rows, STANDING] == UNDECIDED].tolist():
        memory[row, STANDING] = OPPORTUNISTIC
        if leases.problem.columns.service_class[row] == BEST_EFFORT:
            continue
        if leases.pack(np.append(leases.accepted(), row))[0] == EVERYBODY_FITS:
            memory[row, STANDING] = ACCEPTED


def _demote(leases: _Leases) -> None:
    """Accepted jobs that cannot be packed any more, because they took longer than estimated, lose their
    standing."""
    while True:
        failing, _ = leases.pack(leases.accepted())
        if failing == EVERYBODY_FITS:
            return
        leases.memory[failing] = (OPPORTUNISTIC, 0.0)


def _give_out(leases: _Leases) -> str:
    """Choose who occupies the lease that begins. Returns what chose."""
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
    """The program's choice, or None where the leases after the first cannot be packed then."""
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
    """Sizes of the next slot: the lease first, then whoever fits by remaining GPU time."""
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
