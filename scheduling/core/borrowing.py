"""Promises on owned servers, other work on borrowed ones too: how ElasticFlow and Lyra meet (design section 4).

Borrowed servers never back a promise: they may be asked back at any time. Work without a promise that can run on their kind of GPU
goes there in Lyra's two phases where that ends it sooner; everything else is divided on owned servers as though nothing
were borrowed. A job uses one kind at a time, and what runs on a borrowed server stays there until it ends, the
server goes back, or owned servers would be done with it clearly sooner (decision 0012).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from scheduling.core import reasons
from scheduling.core.answer import Answer
from scheduling.core.arrays import BoolArray, Placements
from scheduling.core.columns import BEST_EFFORT, regather
from scheduling.core.decision import Change, ChangeKind, Verdict
from scheduling.core.fleet import Fleet, Speeds, WorkerMap, no_workers, rate_of
from scheduling.core.part import part_of, plans_among
from scheduling.core.problem import Problem
from scheduling.core.sharing import (
    SharedPlacements,
    Sharing,
    held_by,
    kind_of,
    place,
    put_back,
    set_aside,
    speeds_of,
    workers_of,
)
from scheduling.core.snapshot import FloatArray, IntArray
from scheduling.core.two_phase import TwoPhase, divide
from scheduling.core.worker_changes import roles_with

Question = Callable[[Problem], Answer]

MOST_DIVISIONS = 4
"""How often borrowed servers are divided because somebody is better off on owned ones."""

WORTH_A_MOVE = 1.25
"""A job leaves a borrowed server when it would take so many times as long to end there as on owned ones."""


def decide_beside_loans(problem: Problem, decide: Question) -> Answer:
    """Verdicts on newcomers; nobody's GPUs change, on servers of either kind. ``decide`` answers for owned servers."""
    sharing = problem.sharing
    if sharing is None or not sharing.fleet.on_loan.any():
        return decide(problem)
    columns = problem.columns
    borrowing = _on_loan(problem, sharing)
    rest = np.flatnonzero(~borrowing)
    answer = decide(part_of(problem, rest))
    marks = sharing.flexible[np.repeat(borrowing, np.diff(columns.offsets))]
    held = SharedPlacements(held_by(columns, borrowing), marks, sharing.fleet.role, (), ())
    return _merged(problem, answer, rest, held, borrowing)


def reallocate_beside_loans(problem: Problem, reallocate: Question, rules: TwoPhase) -> Answer:
    """A division of owned and borrowed servers from the next slot on. ``reallocate`` divides the owned ones."""
    sharing = problem.sharing
    if sharing is None or not sharing.fleet.on_loan.any():
        return reallocate(problem)
    columns = problem.columns
    borrowing = _on_loan(problem, sharing)
    kept = borrowing & columns.locked  # in the middle of a change: it stays as it is
    sharing = set_aside(sharing, columns, kept)
    borrowing &= ~kept
    others = np.flatnonzero(~kept)
    # First as though nobody had borrowed anything: what owned servers could do for each job.
    at_home = reallocate(part_of(problem, others, waiting=borrowing[others]))
    home = Forecast.of(problem, at_home, others)
    able = _may_borrow(problem, sharing) & (home.gpus == 0) & (columns.gpus == 0)
    workers = _chosen(problem, sharing, borrowing, borrowing | able, home, rules)
    seated = np.diff(workers.offsets) > 0
    shared = put_back(_placed(problem, sharing, borrowing & seated, workers), sharing, columns)
    rest = np.flatnonzero(~seated & ~kept)
    answer = at_home
    if seated.any():
        answer = reallocate(part_of(problem, rest, waiting=borrowing[rest]))
    return _merged(problem, answer, rest, shared, borrowing)


@dataclass(frozen=True)
class Forecast:
    """What owned servers would do for each job: ``gpus`` in the next slot, and its ``finish`` in seconds from now."""

    gpus: IntArray
    finish: FloatArray

    @classmethod
    def of(cls, problem: Problem, answer: Answer, rows: IntArray) -> Forecast:
        """Of an answer about some of the rows; the others are done no good."""
        gpus, finish = np.zeros(problem.count, dtype=np.int64), np.full(problem.count, np.inf)
        gpus[rows] = np.diff(answer.placements.offsets)
        finish[rows] = answer.plans.finish[: rows.size]
        return cls(gpus, finish)


def _chosen(
    problem: Problem,
    sharing: Sharing,
    borrowing: BoolArray,
    candidates: BoolArray,
    home: Forecast,
    rules: TwoPhase,
) -> WorkerMap:
    """Workers on borrowed servers of those candidates that end sooner there than on owned ones."""
    for _ in range(MOST_DIVISIONS):
        workers = _division(problem, sharing, borrowing & candidates, candidates, rules)
        finish = _finish_on_loan(problem, sharing, borrowing, workers)
        there = np.diff(workers.offsets) > 0
        # Whoever runs on a borrowed server goes home only for a clear gain: a move costs more than its pause.
        stays = finish <= np.where(borrowing, WORTH_A_MOVE * home.finish, home.finish)
        leaves = candidates & ((there & ~stays & ((home.gpus > 0) | ~borrowing)) | (~there & borrowing))
        if not leaves.any():
            return workers
        candidates = candidates & ~leaves
    return _division(problem, sharing, borrowing & candidates, candidates, rules)


def _finish_on_loan(
    problem: Problem, sharing: Sharing, borrowing: BoolArray, workers: WorkerMap
) -> FloatArray:
    """When each job ends on the workers of a map, in seconds from now; infinity without any."""
    finish = np.full(problem.count, np.inf)
    lent = sharing.demands.lent
    for row in np.flatnonzero(np.diff(workers.offsets) > 0).tolist():
        entries = slice(workers.offsets[row], workers.offsets[row + 1])
        count = int(workers.base[entries].sum() + workers.flexible[entries].sum())
        rate = float(rate_of(lent, row, count))
        pause = 0.0 if borrowing[row] else _pause(problem, row, count)
        if rate > 0.0:
            finish[row] = problem.origin + pause + float(sharing.demands.remaining[row]) / rate
    return finish


def _pause(problem: Problem, row: int, gpus: int) -> float:
    """The pause of a start on so many GPUs, as measured for the level or the next one above."""
    level = int(np.searchsorted(problem.jobs.levels[row], gpus))
    return float(problem.jobs.pause[row, min(level, problem.jobs.pause.shape[1] - 1)])


def _on_loan(problem: Problem, sharing: Sharing) -> BoolArray:
    """Jobs that hold GPUs of borrowed servers."""
    columns = problem.columns
    owner = np.repeat(np.arange(problem.count), np.diff(columns.offsets))
    borrowed = sharing.fleet.on_loan[sharing.servers.server_of()[columns.addresses]]
    found = np.zeros(problem.count, dtype=np.bool_)
    found[owner[borrowed]] = True
    return found


def _may_borrow(problem: Problem, sharing: Sharing) -> BoolArray:
    """Jobs without a promise that were measured on the borrowed kind of GPU."""
    columns = problem.columns
    undecided = columns.newcomer & (columns.service_class != BEST_EFFORT)
    measured = np.diff(sharing.demands.lent.offsets) > 0
    able: BoolArray = ~columns.promised & ~columns.at_risk & ~columns.locked & ~undecided & measured
    return able


def _division(
    problem: Problem, sharing: Sharing, borrowing: BoolArray, candidates: BoolArray, rules: TwoPhase
) -> WorkerMap:
    """Workers of the candidates on borrowed servers alone."""
    fleet = sharing.fleet
    only_borrowed = Fleet(np.where(fleet.on_loan, fleet.gpus, 0), fleet.on_loan, fleet.role)
    demands = sharing.demands
    nothing = no_workers(problem.count)
    nowhere = Speeds(nothing.offsets, nothing.server, np.zeros(0))
    asked = demands._replace(owned=nowhere, lent=speeds_of(demands.lent, candidates))
    present = workers_of(sharing.workers(problem.columns), borrowing)
    return divide(only_borrowed, present, asked, rules).workers


def _placed(problem: Problem, sharing: Sharing, borrowing: BoolArray, workers: WorkerMap) -> SharedPlacements:
    """Addresses on borrowed servers, and the changes that lead there."""
    columns = problem.columns
    return place(
        workers,
        roles_with(sharing.fleet.on_loan, workers),
        sharing.demands.gpus_per_worker,
        held_by(columns, borrowing),
        sharing.servers,
        columns.ids,
        lambda row, gpus: _pause(problem, row, gpus),
        sharing.blocked,
    )


def _merged(
    problem: Problem, answer: Answer, rest: IntArray, shared: SharedPlacements, borrowing: BoolArray
) -> Answer:
    """The answer for ``rest`` and the placements on borrowed servers as one. ``borrowing``: who was there until now."""
    count, there = problem.count, np.diff(shared.placements.offsets) > 0
    planned, declined = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    planned[rest], declined[rest] = answer.planned, answer.declined
    row_among = np.full(count, -1)
    row_among[rest] = np.arange(rest.size)
    own, own_offsets = regather(answer.placements.addresses, answer.placements.offsets, row_among)
    offsets = own_offsets + shared.placements.offsets
    on_lent = np.repeat(there, np.diff(offsets))
    addresses, marks = np.empty(on_lent.size, dtype=np.int64), np.zeros(on_lent.size, dtype=np.bool_)
    addresses[on_lent], addresses[~on_lent] = shared.placements.addresses, own
    marks[on_lent] = shared.flexible
    placements = Placements(addresses, offsets)
    came = [
        _as_it_is(problem, int(rest[row]), change)
        for row, change in zip(answer.changed, answer.changes, strict=True)
    ]
    moved = {int(rest[row]) for row in answer.changed}
    stopped = [row for row in np.flatnonzero(borrowing & ~there).tolist() if row not in moved]
    suspended = [_suspension(problem, row) for row in stopped]
    changes = (*suspended, *shared.changes, *came)
    rows = (*stopped, *shared.rows, *(int(rest[row]) for row in answer.changed))
    return replace(
        answer,
        problem=problem,
        verdicts=_verdicts(problem, answer, there),
        plans=plans_among(answer.plans, rest, count),
        planned=planned,
        declined=declined,
        placements=placements,
        changes=changes,
        changed=rows,
        at_risk=tuple(int(rest[row]) for row in answer.at_risk),
        shared=SharedPlacements(placements, marks, shared.role, shared.changes, shared.rows),
    )


def _as_it_is(problem: Problem, row: int, change: Change) -> Change:
    """A change of a job that comes home, of which the owned servers' answer did not know where it is."""
    before = int(problem.columns.gpus[row])
    if before == change.gpus_before:
        return change
    return replace(change, kind=kind_of(before, change.gpus_after), gpus_before=before)


def _suspension(problem: Problem, row: int) -> Change:
    reason = "the borrowed server it runs on goes back"
    return Change(
        problem.columns.ids[row], ChangeKind.SUSPEND, int(problem.columns.gpus[row]), 0, (), 0.0, reason
    )


def _verdicts(problem: Problem, answer: Answer, there: BoolArray) -> tuple[Verdict, ...]:
    """One verdict a newcomer, in the order of their rows; those on borrowed servers asked for no promise."""
    given = iter(answer.verdicts)
    return tuple(
        reasons.best_effort(reasons.job_facts(problem, row)) if there[row] else next(given)
        for row in problem.newcomers
    )
