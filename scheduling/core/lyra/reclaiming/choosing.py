"""Choose the on-loan servers that a reclaim returns, with few preempted jobs (Lyra section 3.4).

Idle servers go first, then the flexible group: servers with only flexible workers, whose jobs shrink and
continue. If more servers are needed, jobs are preempted. The methods choose differently among those: Lyra's
greedy choice, the greedy choice improved by a 0/1 program, the optimum, the fewest jobs on the server, or
random.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from scheduling.core.lyra.fleet import Fleet, Speeds, WorkerMap
from scheduling.core.lyra.reclaiming.greedy import Picks, greedy_picks
from scheduling.core.lyra.reclaiming.methods import ReclaimMethod, ReclaimRules
from scheduling.core.lyra.reclaiming.question import (
    Layout,
    consequences,
    gpu_fraction,
    layout_of,
    server_fraction,
    workers_on,
)
from scheduling.core.lyra.reclaiming.release import release_flexible
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray, IntArray

MOST_NODES = 20_000
"""Limit on branch-and-bound nodes for each search of ``optimal``: a limit on work, not on time."""

MOST_NODES_OF_IMPROVED = 1
"""The same limit for ``improved``. Where jobs were placed by best fit, the root node solves the program
(decision 0016)."""


class ReclaimGroup(IntEnum):
    """What a returned server hosted when it was chosen: no workers, only flexible workers, or base
    workers."""

    IDLE = 0
    FLEXIBLE = 1
    PREEMPTION = 2


@dataclass(frozen=True, eq=False, kw_only=True)
class ReclaimQuestion(ReclaimRules):
    """One reclaim: how many servers, and the jobs and workers on the fleet."""

    #: All servers.
    fleet: Fleet
    #: The present worker map.
    workers: WorkerMap
    #: GPUs of one worker of each job.
    gpus_per_worker: IntArray
    #: Iterations left of each job, as the scheduler estimates them.
    remaining_iterations: FloatArray
    #: Rates of the jobs on on-loan GPUs by total number of workers: they give the seconds that flexible
    #: workers save.
    lent: Speeds
    #: Number of on-loan servers that are reclaimed.
    servers: int
    #: Seed for ``random`` and for ties of ``scf``.
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Reclaim:
    """The servers that a reclaim returns, why each was chosen, and the effect on jobs.

    ``improved`` and ``optimal`` choose a set of servers; order and costs are those in which Lyra's rule picks
    them. ``random`` and ``scf`` compute no excess; their cost is the number of jobs on the server.
    """

    #: The method that chose.
    method: ReclaimMethod
    #: Rows of the returned servers, in order.
    returned: IntArray
    #: The `ReclaimGroup` of each returned server.
    group: IntArray
    #: The key of each choice: preemption cost, or in the flexible group seconds lost (or workers); 0 for idle
    #: servers.
    cost: FloatArray
    #: GPUs that the jobs of each server free on servers that do not count as credited.
    excess_gpus: IntArray
    #: Servers that lose their last base worker by this choice, so that they can be returned next.
    credited_servers: IntArray
    #: Jobs that each returned server preempts, beyond those of the servers before it.
    newly_preempted: IntArray
    #: Rows of all preempted jobs, ascending.
    preempted: IntArray
    #: For each scale-in, the job that loses flexible workers and continues.
    scale_in_job: IntArray
    #: For each scale-in, the server of these workers.
    scale_in_server: IntArray
    #: For each scale-in, the number of these workers.
    scale_in_workers: IntArray
    #: GPUs of preempted jobs on servers that are not returned.
    collateral_gpus: int
    #: Whether the search reached its limit on work, so that a longer search might do better.
    limit_hit: bool = False

    def returned_from(self, group: ReclaimGroup) -> int:
        """Number of returned servers in one group."""
        return int((self.group == group).sum())


@dataclass(frozen=True)
class _Chosen:
    """Chosen servers in order with their keys, before the effect on jobs is computed."""

    #: Servers with the key of each choice.
    picks: Picks
    #: Whether the search reached its limit on work.
    limit_hit: bool = False


def choose_servers(question: ReclaimQuestion, method: ReclaimMethod) -> Reclaim:
    """Choose exactly ``question.servers`` on-loan servers, or all of them if there are fewer.

    Raises ValueError for an inconsistent question: arrays of unequal length, rows outside the fleet, negative
    numbers, a pair of job and server listed twice.
    """
    check(question)
    layout = layout_of(question.fleet, question.workers, question.gpus_per_worker)
    wanted = min(max(question.servers, 0), int(layout.candidate.sum()))
    if method in (ReclaimMethod.RANDOM, ReclaimMethod.SCF):
        chosen = _Chosen(_uninformed(layout, method, wanted, question.seed))
    else:
        chosen = _informed(question, layout, method, wanted)
    return _reclaim(layout, method, chosen)


def check(question: ReclaimQuestion) -> None:
    """Raise ValueError where the question is inconsistent."""
    fleet, workers = question.fleet, question.workers
    jobs, servers = workers.offsets.size - 1, fleet.gpus.size
    problems = (
        (
            "columns of the fleet differ in length",
            not fleet.gpus.shape == fleet.on_loan.shape == fleet.role.shape,
        ),
        (
            "columns of the worker map differ in length",
            not workers.server.shape == workers.base.shape == workers.flexible.shape,
        ),
        (
            "offsets of the worker map do not cover its entries",
            jobs < 0
            or workers.offsets[0] != 0
            or workers.offsets[-1] != workers.server.size
            or bool((np.diff(workers.offsets) < 0).any()),
        ),
        (
            "facts about jobs are not one of each",
            not question.gpus_per_worker.shape == question.remaining_iterations.shape == (jobs,),
        ),
        ("speeds are not those of all jobs", question.lent.offsets.shape != (jobs + 1,)),
        ("a server has a negative number of GPUs", bool((fleet.gpus < 0).any())),
        ("a worker has no GPU", bool((question.gpus_per_worker < 1).any())),
        ("a number of workers is negative", bool((workers.base < 0).any() or (workers.flexible < 0).any())),
        (
            "remaining iterations are negative or unknown",
            not bool((question.remaining_iterations >= 0).all()),
        ),
        ("a worker is outside the fleet", bool(((workers.server < 0) | (workers.server >= servers)).any())),
    )
    for problem, present in problems:
        if present:
            raise ValueError(problem)
    pair = np.repeat(np.arange(jobs), np.diff(workers.offsets)) * servers + workers.server
    if np.unique(pair).size != pair.size:
        raise ValueError("a job is listed twice on one server")


def _uninformed(layout: Layout, method: ReclaimMethod, wanted: int, seed: int) -> Picks:
    """Choose servers at random, or those with the fewest jobs (ties at random), before any job is
    preempted."""
    shuffled = np.random.default_rng(seed).permutation(np.flatnonzero(layout.candidate))
    present = np.bincount(layout.server[layout.gpus > 0], minlength=layout.usable.size)
    if method is ReclaimMethod.SCF:
        shuffled = shuffled[np.argsort(present[shuffled], kind="stable")]
    return _without_excess(shuffled[:wanted], present[shuffled[:wanted]])


def _informed(question: ReclaimQuestion, layout: Layout, method: ReclaimMethod, wanted: int) -> _Chosen:
    """Choose idle servers, then the flexible group, then servers with base workers by the given method."""
    present = workers_on(layout)
    idle = np.flatnonzero(layout.candidate & (present == 0))[:wanted]
    flexible, lost = _release(question, layout, present, wanted - idle.size)
    already = np.concatenate((idle, flexible))
    free = _without_excess(already, np.concatenate((np.zeros(idle.size), lost)))
    left = wanted - already.size
    if left == 0:
        return _Chosen(free)
    preempting = _preempting(question, layout, method, already, left)
    return _Chosen(_joined(free, preempting.picks), preempting.limit_hit)


def _release(
    question: ReclaimQuestion, layout: Layout, present: IntArray, wanted: int
) -> tuple[IntArray, FloatArray]:
    """Choose up to ``wanted`` servers of the flexible group, with the key of each: seconds lost, or
    workers."""
    group = layout.candidate & (present > 0) & (layout.hosted == 0)
    if question.fewest_workers_first:
        rows = np.flatnonzero(group)
        rows = rows[np.argsort(present[rows], kind="stable")][:wanted]
        return rows, present[rows].astype(np.float64)
    released, seconds = release_flexible(
        layout, group, present, question.remaining_iterations, question.lent, wanted
    )
    return released, seconds


def _preempting(
    question: ReclaimQuestion, layout: Layout, method: ReclaimMethod, already: IntArray, left: int
) -> _Chosen:
    """Choose ``left`` servers among those with base workers."""
    allowed = layout.candidate & (layout.hosted > 0)
    fraction = server_fraction(layout, count_owned=question.count_owned_servers)

    def greedy(share: FloatArray, among: BoolArray, exact_last_pick: bool) -> Picks:
        return greedy_picks(
            layout,
            share,
            among,
            already,
            left,
            count_always=question.servers == 1,
            count_last=exact_last_pick,
        )

    published = greedy(fraction, allowed, question.exact_last_pick)
    if method is ReclaimMethod.LYRA or left == int(allowed.sum()):
        return _Chosen(published)
    exact = published if question.exact_last_pick else greedy(fraction, allowed, True)
    if left == 1:
        return _Chosen(exact)
    starts = [published, exact, greedy(gpu_fraction(layout), allowed, True)]
    # The import takes half a second, and Lyra's own method does not need it.
    from scheduling.core.lyra.reclaiming.optimum import fewest_preemptions

    most_nodes = MOST_NODES if method is ReclaimMethod.OPTIMAL else MOST_NODES_OF_IMPROVED
    best = fewest_preemptions(layout, allowed, already, [start.server for start in starts], most_nodes)
    among = np.zeros_like(allowed)
    among[best.server] = True
    return _Chosen(greedy(fraction, among, question.exact_last_pick), best.limit_hit)


def _without_excess(server: IntArray, cost: FloatArray | IntArray) -> Picks:
    """Picks without excess GPUs and credited servers."""
    nothing = np.zeros(server.size, dtype=np.int64)
    return Picks(server, cost.astype(np.float64), nothing, nothing)


def _joined(first: Picks, second: Picks) -> Picks:
    """Two lists of picks, one after the other."""
    return Picks(*(np.concatenate(both) for both in zip(first, second, strict=True)))


def _reclaim(layout: Layout, method: ReclaimMethod, chosen: _Chosen) -> Reclaim:
    """Compute the effect of the chosen servers on jobs."""
    returned = chosen.picks.server
    done = consequences(layout, returned)
    present = workers_on(layout)
    group = np.where(
        layout.hosted > 0,
        ReclaimGroup.PREEMPTION,
        np.where(present > 0, ReclaimGroup.FLEXIBLE, ReclaimGroup.IDLE),
    )
    return Reclaim(
        method=method,
        returned=returned,
        group=group[returned],
        cost=chosen.picks.cost,
        excess_gpus=chosen.picks.excess_gpus,
        credited_servers=chosen.picks.credited_servers,
        newly_preempted=_newly_preempted(layout, returned),
        preempted=done.preempted,
        scale_in_job=done.scale_in_job,
        scale_in_server=done.scale_in_server,
        scale_in_workers=done.scale_in_workers,
        collateral_gpus=done.collateral_gpus,
        limit_hit=chosen.limit_hit,
    )


def _newly_preempted(layout: Layout, returned: IntArray) -> IntArray:
    """For each returned server, the number of jobs with a base worker there and on no server returned
    before."""
    turn = np.full(layout.usable.size, returned.size)
    turn[returned] = np.arange(returned.size)
    first = np.full(layout.spread.size, returned.size)
    bound = layout.base > 0
    np.minimum.at(first, layout.job[bound], turn[layout.server[bound]])
    return np.bincount(first, minlength=returned.size + 1)[: returned.size]
