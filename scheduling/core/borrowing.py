"""Promises on owned servers, other work on borrowed ones too: how ElasticFlow and Lyra meet (design section 4).

Borrowed servers never back a promise: they may be asked back at any time. Work without a promise that can run on their kind of GPU
goes there in Lyra's two phases where that ends it sooner; everything else is divided on owned servers as though nothing
were borrowed. A job uses one kind at a time, and what runs on a borrowed server stays there until it ends, the
server goes back, or owned servers would be done with it clearly sooner (decision 0012).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from scheduling.core import reasons
from scheduling.core.answer import Answer
from scheduling.core.arrays import BoolArray, Placements
from scheduling.core.base_and_flexible import Demands
from scheduling.core.columns import BEST_EFFORT, regather
from scheduling.core.decision import Verdict
from scheduling.core.fleet import Fleet, Speeds, WorkerMap, no_workers, rate_of
from scheduling.core.part import part_of, plans_among
from scheduling.core.problem import Problem
from scheduling.core.sharing import SharedPlacements, Sharing, place
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
    borrowing = _on_loan(problem, sharing)
    rest = np.flatnonzero(~borrowing)
    answer = decide(part_of(problem, rest))
    columns = problem.columns
    held = Placements(columns.addresses, columns.offsets)
    return _merged(
        problem, answer, rest, SharedPlacements(held, sharing.flexible, sharing.fleet.role, (), ()), borrowing
    )


def reallocate_beside_loans(problem: Problem, reallocate: Question, rules: TwoPhase) -> Answer:
    """A division of owned and borrowed servers from the next slot on. ``reallocate`` divides the owned ones."""
    sharing = problem.sharing
    if sharing is None or not (sharing.fleet.on_loan.any() or _on_loan(problem, sharing).any()):
        return reallocate(problem)
    borrowing = _on_loan(problem, sharing)
    everybody = np.arange(problem.count)
    # First as though nobody had borrowed anything: what owned servers could do for each job.
    at_home = reallocate(part_of(problem, everybody, waiting=borrowing))
    idle = np.diff(at_home.placements.offsets) == 0
    able = _may_borrow(problem, sharing)
    candidates = borrowing | (able & idle & (problem.columns.gpus == 0))
    workers = _chosen(problem, sharing, borrowing, candidates, at_home, rules)
    seated = np.diff(workers.offsets) > 0
    shared = _placed(problem, sharing, borrowing & seated, workers)
    rest = np.flatnonzero(~seated)
    if not seated.any():
        return _merged(problem, at_home, rest, shared, seated)
    answer = reallocate(part_of(problem, rest, waiting=borrowing[rest]))
    return _merged(problem, answer, rest, shared, seated)


def _chosen(
    problem: Problem,
    sharing: Sharing,
    borrowing: BoolArray,
    candidates: BoolArray,
    at_home: Answer,
    rules: TwoPhase,
) -> WorkerMap:
    """Workers on borrowed servers of those candidates that end sooner there than on owned ones."""
    home_finish = at_home.plans.finish[: problem.count]
    home_now = np.diff(at_home.placements.offsets) > 0
    for _ in range(MOST_DIVISIONS):
        workers = _division(problem, sharing, borrowing & candidates, candidates, rules)
        finish = _finish_on_loan(problem, sharing, borrowing, workers)
        there = np.diff(workers.offsets) > 0
        # Whoever runs on a borrowed server goes home only for a clear gain: a move costs more than its pause.
        stays = finish <= np.where(borrowing, home_finish / WORTH_A_MOVE, home_finish)
        leaves = candidates & ((there & ~stays & (home_now | ~borrowing)) | (~there & borrowing))
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
    asked = Demands(*demands[:6], nowhere, _speeds_of(demands.lent, candidates))
    present = _workers_of(sharing.workers(problem.columns), borrowing)
    return divide(only_borrowed, present, asked, rules).workers


def _speeds_of(speeds: Speeds, rows: BoolArray) -> Speeds:
    """Rates of some jobs; the others can run nowhere."""
    counts = np.diff(speeds.offsets)
    inside = np.repeat(rows, counts)
    offsets = np.concatenate(([0], np.cumsum(np.where(rows, counts, 0))))
    return Speeds(offsets, speeds.workers[inside], speeds.rate[inside])


def _workers_of(workers: WorkerMap, rows: BoolArray) -> WorkerMap:
    """Workers of some jobs; the others have none."""
    counts = np.diff(workers.offsets)
    inside = np.repeat(rows, counts)
    offsets = np.concatenate(([0], np.cumsum(np.where(rows, counts, 0))))
    return WorkerMap(offsets, workers.server[inside], workers.base[inside], workers.flexible[inside])


def _placed(problem: Problem, sharing: Sharing, borrowing: BoolArray, workers: WorkerMap) -> SharedPlacements:
    """Addresses on borrowed servers, and the changes that lead there."""
    columns = problem.columns
    addresses, offsets = regather(
        columns.addresses, columns.offsets, np.where(borrowing, np.arange(problem.count), -1)
    )

    return place(
        workers,
        roles_with(sharing.fleet.on_loan, workers),
        sharing.demands.gpus_per_worker,
        Placements(addresses, offsets),
        sharing.servers,
        columns.ids,
        lambda row, gpus: _pause(problem, row, gpus),
    )


def _merged(
    problem: Problem, answer: Answer, rest: IntArray, shared: SharedPlacements, seated: BoolArray
) -> Answer:
    """The answer for ``rest`` and the placements of those ``seated`` on borrowed servers, as one."""
    count = problem.count
    planned = np.zeros(count, dtype=np.bool_)
    declined = np.zeros(count, dtype=np.bool_)
    planned[rest], declined[rest] = answer.planned, answer.declined
    row_among = np.full(count, -1)
    row_among[rest] = np.arange(rest.size)
    own, own_offsets = regather(answer.placements.addresses, answer.placements.offsets, row_among)
    lent, lent_offsets = regather(
        shared.placements.addresses, shared.placements.offsets, np.where(seated, np.arange(count), -1)
    )
    offsets = own_offsets + lent_offsets
    addresses = np.empty(int(offsets[-1]), dtype=np.int64)
    on_lent = np.repeat(seated, np.diff(offsets))
    addresses[on_lent], addresses[~on_lent] = lent, own
    marks = np.zeros(addresses.size, dtype=np.bool_)
    mine = np.repeat(seated, np.diff(shared.placements.offsets))
    marks[on_lent] = shared.flexible[mine]
    placements = Placements(addresses, offsets)
    rows = (*shared.rows, *rest[list(answer.changed)].tolist()) if answer.changed else shared.rows
    return replace(
        answer,
        problem=problem,
        verdicts=_verdicts(problem, answer, seated),
        plans=plans_among(answer.plans, rest, count),
        planned=planned,
        declined=declined,
        placements=placements,
        changes=(*shared.changes, *answer.changes),
        changed=rows,
        at_risk=tuple(int(rest[row]) for row in answer.at_risk),
        shared=SharedPlacements(placements, marks, shared.role, shared.changes, shared.rows),
    )


def _verdicts(problem: Problem, answer: Answer, seated: BoolArray) -> tuple[Verdict, ...]:
    """One verdict a newcomer, in the order of their rows; those seated on borrowed servers asked for no promise."""
    given = iter(answer.verdicts)
    return tuple(
        reasons.best_effort(reasons.job_facts(problem, row)) if seated[row] else next(given)
        for row in problem.newcomers
    )
