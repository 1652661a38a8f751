"""How ElasticFlow and Lyra meet: promises on owned servers, other work also on borrowed ones (design section
4).

A borrowed server backs no promise, because it may be reclaimed at any time. Jobs without a promise that were
measured on the borrowed kind of GPU are placed there by Lyra's two phases where that ends them sooner. All
other jobs are divided on owned servers as though nothing were borrowed. A job uses one kind of servers at a
time. A job on a borrowed server stays there until it ends, until the server is reclaimed, or until owned
servers would end it clearly sooner (decision 0015). Where borrowed servers have the cluster's own kind of
GPU, jobs on owned servers also grow onto them with flexible workers; promised jobs do so if their plans bear
the pause of a reclaim (decision 0015).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from scheduling.core.lyra.fleet import Fleet, Speeds, WorkerMap, no_workers, rate_of
from scheduling.core.lyra.tick import TwoPhase, divide
from scheduling.core.lyra.worker_changes import roles_with
from scheduling.core.plans.stored_plans import pin_head
from scheduling.core.problem import reasons
from scheduling.core.problem.answer import Answer
from scheduling.core.problem.part import part_of, plans_among
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import BoolArray, Placements, Plans, copy_plans
from scheduling.core.question.columns import BEST_EFFORT, JobColumns, regather
from scheduling.core.question.decision import REASONS, Change, ChangeKind, Verdict
from scheduling.core.question.snapshot import FloatArray, IntArray
from scheduling.core.together.borrowed_growth import Growers, grown_onto_loans
from scheduling.core.together.room_for_reclaims import GROW_AND_SHRINK, bears_growth, with_reclaim_room
from scheduling.core.together.shared_problem import SharedProblem
from scheduling.core.together.sharing import (
    SharedPlacements,
    Sharing,
    held_by,
    joined,
    kind_of,
    place,
    put_back,
    set_aside,
    speeds_of,
    workers_in,
)

Question = Callable[[Problem], Answer]

MOST_DIVISIONS = 4
"""How often one decision divides borrowed servers again because a job would end sooner on owned ones."""

WORTH_A_MOVE = 1.25
"""A job leaves a borrowed server when ending there would take this many times as long as on owned servers."""


def decide_beside_loans(problem: Problem, decide: Question) -> Answer:
    """Decide newcomers while all jobs keep their GPUs. ``decide`` answers for owned servers."""
    if not isinstance(problem, SharedProblem) or not problem.sharing.fleet.on_loan.any():
        return decide(problem)
    view = View.of(problem)
    rest = np.flatnonzero(~view.borrowing & ~view.kept)
    answer = decide(part_of(view.owned, rest))
    held = Placements(view.lent.addresses, view.lent.offsets)
    role = view.sharing.fleet.role
    return _merged(problem, answer, rest, SharedPlacements(held, view.sharing.flexible, role, (), ()))


def reallocate_beside_loans(problem: Problem, reallocate: Question, rules: TwoPhase) -> Answer:
    """Divide owned and borrowed servers from the next slot on. ``reallocate`` divides the owned ones."""
    if not isinstance(problem, SharedProblem) or not problem.sharing.fleet.on_loan.any():
        return reallocate(problem)
    view = View.of(problem)
    # First without borrowed servers: what owned servers alone would give each job.
    others = np.flatnonzero(~view.kept)
    on_owned = reallocate(part_of(view.owned, others))
    owned = Forecast.of(problem, on_owned, others)
    able = _may_borrow(view) & (owned.gpus == 0) & (problem.columns.gpus == 0)
    seated = _chosen(view, view.borrowing | able, owned, rules)
    rest = np.flatnonzero((np.diff(seated.offsets) == 0) & ~view.kept)
    answer = on_owned if rest.size == others.size else reallocate(part_of(view.owned, rest))
    workers = seated
    if view.sharing.same_kind:
        answer, bearing = _bearing_growth(view, seated, answer, rest, reallocate)
        workers = joined(seated, _extensions(view, seated, answer, rest, bearing))
    return _merged(problem, answer, rest, put_back(_placed(view, workers), view.sharing, view.lent))


@dataclass(frozen=True)
class View:
    """The problem split into owned and borrowed servers."""

    #: The problem on owned servers.
    owned: Problem
    #: The jobs with only their borrowed GPUs.
    lent: JobColumns
    #: What Lyra's algorithms see of the borrowed servers.
    sharing: Sharing
    #: Marks jobs that hold only borrowed GPUs.
    borrowing: BoolArray
    #: Marks those of them in the middle of a change: they keep their GPUs and are not decided.
    kept: BoolArray

    @classmethod
    def of(cls, problem: SharedProblem) -> View:
        """Split a problem with borrowed servers."""
        sharing, columns = problem.sharing, problem.columns
        on_loan = sharing.fleet.on_loan[sharing.servers.server_of()[columns.addresses]]
        owner = np.repeat(np.arange(problem.count), np.diff(columns.offsets))
        lent = _holding(columns, on_loan, owner)
        owned = _holding(columns, ~on_loan, owner)
        borrowing = (lent.gpus > 0) & (owned.gpus == 0)
        # To owned servers, a job that holds only borrowed GPUs is a waiting job.
        pause_left = np.where(borrowing, 0.0, problem.jobs.pause_left[: problem.count])
        jobs = problem.jobs._replace(
            gpus=np.concatenate((owned.gpus, problem.jobs.gpus[problem.count :])),
            pause_left=np.concatenate((pause_left, problem.jobs.pause_left[problem.count :])),
        )
        kept = borrowing & columns.locked
        extended = (lent.gpus > 0) & (owned.gpus > 0) & columns.promised & ~columns.at_risk
        jobs = with_reclaim_room(jobs, extended)
        sharing = replace(sharing, flexible=sharing.flexible[on_loan])
        sharing = set_aside(sharing, lent, columns.locked & (lent.gpus > 0))
        stored = _pinned_on_owned(problem, columns.locked & (lent.gpus > 0) & (owned.gpus > 0), owned.gpus)
        return cls(problem.on_owned(owned, jobs, stored), lent, sharing, borrowing & ~kept, kept)


def _pinned_on_owned(problem: Problem, rows: BoolArray, owned_gpus: IntArray) -> Plans:
    """The stored plans, but each job of ``rows`` keeps exactly its owned GPUs for one slot."""
    if not rows.any():
        return problem.stored
    stored = copy_plans(problem.stored)
    for row in np.flatnonzero(rows).tolist():
        stored = pin_head(stored, row, owned_gpus[row], problem.origin, problem.jobs.locked_until[row])
    return stored


def _holding(columns: JobColumns, held: BoolArray, owner: IntArray) -> JobColumns:
    """The jobs with only those of their GPUs that ``held`` marks."""
    counts = np.bincount(owner[held], minlength=columns.count)
    return replace(
        columns,
        addresses=columns.addresses[held],
        offsets=np.concatenate(([0], np.cumsum(counts))),
        gpus=counts,
    )


def _extensions(
    view: View, seated: WorkerMap, answer: Answer, rest: IntArray, bearing: BoolArray
) -> WorkerMap:
    """Flexible workers on borrowed servers of jobs to which ``answer`` (about the rows ``rest``) gives owned
    GPUs.

    ``bearing`` marks promised jobs whose borrowed GPUs may change.
    """
    columns, demands = view.owned.columns, view.sharing.demands
    able = _may_grow(view) & (np.diff(seated.offsets) == 0)
    promised = _promised(view.owned, answer, rest)
    growers = Growers(
        on_owned=Forecast.of(view.owned, answer, rest).gpus,
        able=able,
        may_change=~promised | bearing,
        promised=promised,
        remaining=demands.remaining,
        speeds=demands.lent,
        pause_seconds=view.owned.jobs.pause[: columns.count].max(axis=1),
    )
    present = workers_in(view.sharing.workers(view.lent), able & ~view.borrowing)
    relief = max(1, columns.count) / max(1, view.owned.gpus)
    return grown_onto_loans(view.sharing.fleet, seated, present, growers, relief)


def _may_grow(view: View) -> BoolArray:
    """Marks jobs that were measured on the borrowed kind of GPU and are not in the middle of a change."""
    columns = view.owned.columns
    undecided = columns.newcomer & (columns.service_class != BEST_EFFORT)
    able: BoolArray = ~columns.locked & ~undecided & (np.diff(view.sharing.demands.lent.offsets) > 0)
    return able


def _promised(owned: Problem, answer: Answer, rest: IntArray) -> BoolArray:
    """Marks jobs with a promise that the answer's plans keep."""
    at_risk = owned.columns.at_risk.copy()
    at_risk[rest[list(answer.at_risk)]] = True
    kept: BoolArray = owned.columns.promised & ~at_risk
    return kept


def _bearing_growth(
    view: View, seated: WorkerMap, answer: Answer, rest: IntArray, reallocate: Question
) -> tuple[Answer, BoolArray]:
    """The promised jobs whose plans bear the pauses of growing onto borrowed servers and of a reclaim.

    Where plans lack the room, owned servers are divided once more with that room required. The first division
    is kept if the second would cost another job its verdict, its promise or all its GPUs. Returns the answer
    with these plans, and marks of the jobs.
    """
    bearing = _with_room(view.owned, answer, rest)
    wishing = _promised(view.owned, answer, rest) & _may_grow(view) & (view.lent.gpus == 0) & ~bearing
    wishing[rest] &= np.diff(answer.placements.offsets) > 0
    free = int(np.where(view.sharing.fleet.on_loan, view.sharing.fleet.gpus, 0).sum()) - int(
        (seated.base + seated.flexible).sum()
    )
    if free <= 0 or not wishing.any():
        return answer, bearing
    jobs = with_reclaim_room(view.owned.jobs, wishing, GROW_AND_SHRINK)
    roomy = reallocate(part_of(replace(view.owned, jobs=jobs), rest))
    if not _as_good(roomy, answer):
        return answer, bearing
    return roomy, bearing | wishing


def _with_room(owned: Problem, answer: Answer, rest: IntArray) -> BoolArray:
    """Marks planned jobs whose plans bear the pauses of growing and of a reclaim."""
    part = answer.problem
    planned = np.flatnonzero(answer.planned)
    bearing = np.zeros(owned.count, dtype=np.bool_)
    bearing[rest[planned]] = bears_growth(part.jobs, answer.plans, part.due - part.slack_seconds, planned)
    return bearing


def _as_good(one: Answer, other: Answer) -> bool:
    """Whether ``one`` has the verdicts of ``other``, puts no further promise at risk, and gives GPUs to every
    job that has some by ``other``."""
    held, other_held = np.diff(one.placements.offsets), np.diff(other.placements.offsets)
    return (
        [verdict.admitted for verdict in one.verdicts] == [verdict.admitted for verdict in other.verdicts]
        and set(one.at_risk) <= set(other.at_risk)
        and not ((held == 0) & (other_held > 0)).any()
    )


@dataclass(frozen=True)
class Forecast:
    """What owned servers alone would give each job."""

    #: GPUs in the next slot.
    gpus: IntArray
    #: When the job ends, in seconds from now.
    finish: FloatArray

    @classmethod
    def of(cls, problem: Problem, answer: Answer, rows: IntArray) -> Forecast:
        """The forecast of an answer about ``rows``; the other jobs get no GPUs and never end."""
        gpus, finish = np.zeros(problem.count, dtype=np.int64), np.full(problem.count, np.inf)
        gpus[rows] = np.diff(answer.placements.offsets)
        finish[rows] = answer.plans.finish[: rows.size]
        return cls(gpus, finish)


def _chosen(view: View, candidates: BoolArray, owned: Forecast, rules: TwoPhase) -> WorkerMap:
    """Workers on borrowed servers, for the candidates that end sooner there than on owned servers."""
    borrowing = view.borrowing
    for _ in range(MOST_DIVISIONS):
        workers = _division(view, candidates, rules)
        finish = _finish_on_loan(view, workers)
        there = np.diff(workers.offsets) > 0
        # A job leaves a borrowed server only for a clear gain, because a move costs more than its pause.
        stays = finish <= np.where(borrowing, WORTH_A_MOVE * owned.finish, owned.finish)
        leaves = candidates & ((there & ~stays & ((owned.gpus > 0) | ~borrowing)) | (~there & borrowing))
        if not leaves.any():
            return workers
        candidates = candidates & ~leaves
    return _division(view, candidates, rules)


def _finish_on_loan(view: View, workers: WorkerMap) -> FloatArray:
    """When each job ends with the workers of a map, in seconds from now; infinity without workers."""
    demands, origin = view.sharing.demands, view.owned.origin
    finish = np.full(view.borrowing.size, np.inf)
    for row in np.flatnonzero(np.diff(workers.offsets) > 0).tolist():
        entries = slice(workers.offsets[row], workers.offsets[row + 1])
        count = int(workers.base[entries].sum() + workers.flexible[entries].sum())
        rate = float(rate_of(demands.lent, row, count))
        pause = 0.0 if view.borrowing[row] else _pause(view.owned, row, count)
        if rate > 0.0:
            finish[row] = origin + pause + float(demands.remaining[row]) / rate
    return finish


def _pause(problem: Problem, row: int, gpus: int) -> float:
    """Seconds of pause at a start on ``gpus`` GPUs, as measured for that level or the next one above."""
    level = int(np.searchsorted(problem.jobs.levels[row], gpus))
    return float(problem.jobs.pause[row, min(level, problem.jobs.pause.shape[1] - 1)])


def _may_borrow(view: View) -> BoolArray:
    """Marks jobs without a promise that were measured on the borrowed kind of GPU."""
    columns = view.owned.columns
    undecided = columns.newcomer & (columns.service_class != BEST_EFFORT)
    measured = np.diff(view.sharing.demands.lent.offsets) > 0
    able: BoolArray = ~columns.promised & ~columns.at_risk & ~columns.locked & ~undecided & measured
    return able


def _division(view: View, candidates: BoolArray, rules: TwoPhase) -> WorkerMap:
    """Divide the borrowed servers among the candidates; returns their workers."""
    sharing = view.sharing
    fleet, demands = sharing.fleet, sharing.demands
    only_borrowed = Fleet(np.where(fleet.on_loan, fleet.gpus, 0), fleet.on_loan, fleet.role)
    nothing = no_workers(candidates.size)
    nowhere = Speeds(nothing.offsets, nothing.server, np.zeros(0))
    asked = demands._replace(owned=nowhere, lent=speeds_of(demands.lent, candidates))
    present = workers_in(sharing.workers(view.lent), view.borrowing & candidates)
    return divide(only_borrowed, present, asked, rules).workers


def _placed(view: View, workers: WorkerMap) -> SharedPlacements:
    """GPU addresses for workers on borrowed servers, and the changes there."""
    sharing, lent = view.sharing, view.lent
    aside = np.zeros(lent.count, dtype=np.bool_) if sharing.aside is None else sharing.aside
    return place(
        workers,
        roles_with(sharing.fleet.on_loan, workers),
        sharing.demands.gpus_per_worker,
        held_by(lent, ~aside),
        sharing.servers,
        lent.ids,
        lambda row, gpus: _pause(view.owned, row, gpus),
        sharing.blocked,
    )


def _merged(problem: Problem, answer: Answer, rest: IntArray, shared: SharedPlacements) -> Answer:
    """Combine the answer for the rows ``rest`` on owned servers with the placements on borrowed servers."""
    count = problem.count
    planned, declined = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    planned[rest], declined[rest] = answer.planned, answer.declined
    row_among = np.full(count, -1)
    row_among[rest] = np.arange(rest.size)
    own = Placements(*regather(answer.placements.addresses, answer.placements.offsets, row_among))
    placements, on_loan = _side_by_side(own, shared.placements)
    marks = np.zeros(on_loan.size, dtype=np.bool_)
    marks[on_loan] = shared.flexible
    on_owned = {int(rest[row]): change for row, change in zip(answer.changed, answer.changes, strict=True)}
    there = dict(zip(shared.rows, shared.changes, strict=True))
    order = [row for row in there if row not in on_owned] + list(on_owned)
    changes = [_change(problem, row, placements, on_owned.get(row), there.get(row)) for row in order]
    memory = answer.job_memory
    if memory is not None:
        memory = problem.columns.memory.copy()
        memory[rest] = answer.job_memory
    return replace(
        answer,
        problem=problem,
        job_memory=memory,
        verdicts=_verdicts(problem, answer, np.isin(np.arange(count), rest)),
        plans=plans_among(answer.plans, rest, count),
        planned=planned,
        declined=declined,
        placements=placements,
        changes=tuple(changes),
        changed=tuple(order),
        at_risk=tuple(int(rest[row]) for row in answer.at_risk),
        flexible=marks,
        server_roles=shared.role,
    )


def _side_by_side(own: Placements, lent: Placements) -> tuple[Placements, BoolArray]:
    """The GPUs of every job, owned ones first, and marks of the borrowed ones."""
    offsets = own.offsets + lent.offsets
    here, there = np.diff(own.offsets), np.diff(lent.offsets)
    on_loan = np.repeat(np.tile([False, True], here.size), np.stack((here, there), axis=1).ravel())
    addresses = np.empty(on_loan.size, dtype=np.int64)
    addresses[~on_loan], addresses[on_loan] = own.addresses, lent.addresses
    return Placements(addresses, offsets), on_loan


def _change(
    problem: Problem, row: int, placements: Placements, on_owned: Change | None, there: Change | None
) -> Change:
    """Combine a job's change on owned servers with its change on borrowed servers."""
    before, gpus = int(problem.columns.gpus[row]), placements.of(row)
    kind = kind_of(before, len(gpus))
    told = on_owned or there
    assert told is not None
    reason = told.reason if told.kind is kind else REASONS[kind]
    if kind is ChangeKind.SUSPEND and there is not None:
        reason = "the borrowed server it runs on goes back"
    pause = 0.0
    if gpus:
        pause = max(change.pause_seconds for change in (on_owned, there) if change is not None)
        pause = max(pause, _pause(problem, row, len(gpus)))
    first = on_owned is not None and on_owned.suspend_first
    return Change(problem.columns.ids[row], kind, before, len(gpus), gpus, pause, reason, first)


def _verdicts(problem: Problem, answer: Answer, asked: BoolArray) -> tuple[Verdict, ...]:
    """The verdicts in the order of rows; newcomers on borrowed servers asked for no promise.

    A newcomer that the limit of work left for another decision has none.
    """
    given = {verdict.job_id: verdict for verdict in answer.verdicts}
    found = (
        given.get(problem.columns.ids[row])
        if asked[row]
        else reasons.best_effort(reasons.job_facts(problem, row))
        for row in problem.newcomers
    )
    return tuple(verdict for verdict in found if verdict is not None)
