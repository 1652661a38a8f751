"""Pollux as in Lyra's evaluation: placements by a genetic search for goodput (Lyra section 3.7).

`pollux.py` is Pollux as in ElasticFlow's evaluation, with exact sizes. The search here is genetic with a
budget of generations, so it may end before the best placement is found, as in the original.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import ClassVar

import numpy as np

from scheduling.core.lyra.fleet import Speeds, WorkerMap
from scheduling.core.lyra.flexible_demands import Growth
from scheduling.core.lyra.tick import Division, TwoPhase
from scheduling.core.lyra.worker_changes import roles_with, worker_changes_between
from scheduling.core.problem.answer import Answer
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import TIME_TOLERANCE
from scheduling.core.question.decision import ChangeKind
from scheduling.core.question.snapshot import FloatArray, IntArray
from scheduling.core.together.sharing import Sharing
from scheduling.policies.shares_workers import SharesWorkers
from simulation.baselines.against_lyra.genetic_operators import Question, WorkerCounts, repair
from simulation.baselines.against_lyra.genetic_search import Budget, search
from simulation.baselines.against_lyra.pollux_memory import PolluxMemory, entries_of

INTERVAL_SECONDS = 60.0
LONGEST_REST_SECONDS = 3_600.0
RESTART_SECONDS = 30.0
PLACED, NUMBER = 0, 1


class LyraPollux(SharesWorkers):
    """Every minute, search the placement on owned servers with the greatest power mean (-1) of speed-ups.

    A job has a number of workers within its range, or none. Its speed-up is its rate over the rate on a fair
    share of the GPUs (or on its least number of workers, if that is more). For a job whose placement changes,
    the speed-up is multiplied by (age - 30 s times its restarts) / (age + 30 s). A change of placement costs
    30 s. Each server hosts at most one job that runs on several servers. The search (`genetic_search.py`)
    begins with the present placement and the best ones of the last search.

    Deviations: the first start of a job is no restart, so that a job that arrives at a tick is not skipped. A
    job whose least number of workers exceeds one server starts on several servers at once; in the published
    version jobs start with one worker. After a search that moved no job, the next one follows after twice the
    time, at most an hour, unless a job arrives or ends or the GPUs change. 16 members are remembered, not
    all. A search has 100 generations, as published for Pollux (Lyra ran 250), and fewer on large clusters
    (`Budget`).
    """

    name = "lyra_pollux"
    rules = TwoPhase(growth=Growth.NONE)
    restart_seconds = RESTART_SECONDS
    memory_columns: ClassVar[tuple[str, ...]] = ("placed", "number")
    budget: ClassVar[Budget] = Budget()

    def reallocate(self, problem: Problem) -> Answer:
        """Search if the last search was at least a minute ago; otherwise all jobs keep their workers and new
        jobs wait."""
        tick = _Tick(problem, self.budget)
        answer = tick.reallocate(problem)
        began = problem.columns.memory[:, PLACED] > 0
        changes = tuple(
            replace(change, pause_seconds=max(change.pause_seconds, RESTART_SECONDS))
            if change.kind is ChangeKind.START and began[row]
            else change
            for row, change in zip(answer.changed, answer.changes, strict=True)
        )
        wake = tick.memory.searched_at + tick.memory.rest_seconds if tick.searchable else inf
        return replace(
            answer, changes=changes, cluster_memory=tick.memory.noted(), next_wake_at=wake, notes=tick.notes
        )


class _Tick(SharesWorkers):
    """One decision. `LyraPollux` itself has no state between decisions."""

    name = LyraPollux.name
    rules = LyraPollux.rules
    restart_seconds = RESTART_SECONDS

    def __init__(self, problem: Problem, budget: Budget) -> None:
        self.budget = budget
        self.memory = PolluxMemory.recalled(problem.cluster_memory)
        self.job_memory = problem.columns.memory.copy()
        self.notes: tuple[str, ...] = ()
        self.searchable = False
        self.came = False

    def divided(self, problem: Problem, sharing: Sharing) -> Division:
        """Number of workers of each job on each server."""
        before = sharing.workers(problem.columns)
        rows = _rows(problem, sharing.demands.owned)
        servers = np.flatnonzero(~sharing.fleet.on_loan & (sharing.fleet.gpus > 0))
        self.searchable = bool(rows.size and servers.size)
        self._number(rows)
        present = _matrix(before, problem.count, sharing.fleet.gpus.size)
        wanted = np.zeros_like(present)
        if self.searchable:
            question = _question(problem, sharing, rows, servers, present, self._restarts(problem)[rows])
            wanted[np.ix_(servers, rows)] = self._best(
                problem, question, rows, servers, sharing.fleet.gpus.size
            )
        moved = (wanted != present).any(axis=0)
        given = wanted.sum(axis=0)
        self.job_memory[:, PLACED] = self._placed(problem) + (moved & (given > 0))
        after = _map(wanted, sharing.demands.owned)
        nothing = np.zeros(0, dtype=np.int64)
        return Division(
            after,
            roles_with(sharing.fleet.on_loan, after),
            np.zeros(given.size),
            worker_changes_between(before, after),
            np.flatnonzero((present.sum(axis=0) == 0) & (given > 0)),
            nothing,
            nothing,
            (),
        )

    def _best(
        self, problem: Problem, question: Question, rows: IntArray, servers: IntArray, fleet: int
    ) -> WorkerCounts:
        """The best workers by server and job; records what the next search begins with."""
        draw = np.random.default_rng((abs(int(problem.next_slot_at)), problem.count))
        interval = max(problem.slot, INTERVAL_SECONDS)
        known = self.memory
        taking_part = (rows.size, int(question.capacity.sum()))
        same = not self.came and taking_part == (known.jobs, known.gpus)
        rest = known.rest_seconds if same else min(known.rest_seconds, interval)
        if problem.next_slot_at < known.searched_at + rest - TIME_TOLERANCE:
            self.memory = replace(known, rest_seconds=rest)
            kept = question.present.copy()
            repair(question, kept, draw)
            return kept
        numbers = self.job_memory[rows, NUMBER].astype(np.int64)
        seeds = self.memory.members(numbers, servers, fleet)
        found = search(question, seeds, self.budget, draw)
        stays = bool((found.members[0] == question.present).all())
        self.memory = PolluxMemory(
            problem.next_slot_at,
            min(2.0 * rest, LONGEST_REST_SECONDS) if same and stays else interval,
            known.numbered,
            *taking_part,
            fleet,
            entries_of(found.members[: self.budget.remembered], numbers, servers),
        )
        self.notes = (
            (
                f"{rows.size} jobs on {servers.size} servers: {found.generations} generations of "
                f"{self.budget.population}"
            ),
        )
        best: WorkerCounts = found.members[0]
        return best

    def _number(self, rows: IntArray) -> None:
        """Give every job without a number the next one."""
        fresh = rows[self.job_memory[rows, NUMBER] == 0]
        self.came = fresh.size > 0
        numbered = self.memory.numbered
        self.job_memory[fresh, NUMBER] = numbered + 1 + np.arange(fresh.size)
        self.memory = replace(self.memory, numbered=numbered + fresh.size)

    def _placed(self, problem: Problem) -> FloatArray:
        """How often each job was placed. A running job counts as placed once even if another policy placed
        it."""
        placed: FloatArray = np.maximum(problem.columns.memory[:, PLACED], problem.columns.gpus > 0)
        return placed

    def _restarts(self, problem: Problem) -> FloatArray:
        """Placements after the first; -1 for a job that never ran."""
        return self._placed(problem) - 1.0

    def noted(self, problem: Problem, division: Division) -> FloatArray:
        """How often each job was placed, and its number."""
        return self.job_memory


def _rows(problem: Problem, owned: Speeds) -> IntArray:
    """Jobs that can run on owned servers; those with the least service so far come first where room is short,
    as published."""
    rows = np.flatnonzero(np.diff(owned.offsets) > 0)
    order: IntArray = rows[np.lexsort((rows, problem.columns.attained_gpu_seconds[rows]))]
    return order


def _question(
    problem: Problem,
    sharing: Sharing,
    rows: IntArray,
    servers: IntArray,
    present: WorkerCounts,
    restarts: FloatArray,
) -> Question:
    """What is to be searched: ``rows`` of the jobs on ``servers`` of the fleet."""
    capacity = sharing.fleet.gpus[servers]
    width = sharing.demands.gpus_per_worker[rows]
    listed, rate = _tables(sharing.demands.owned, rows)
    least = sharing.demands.owned.workers[sharing.demands.owned.offsets[rows]]
    # A column of a table is laid out unlike an array of its own: the search would be compiled for both.
    most = np.ascontiguousarray(listed[:, -1])
    share = np.ceil(capacity.sum() / width / rows.size).astype(np.int64)
    at_fair = np.take_along_axis(rate, np.clip(share, least, most)[:, None], axis=1)
    age = np.maximum(0.0, problem.next_slot_at - problem.columns.submitted_at[rows])
    lowered = np.maximum(age - RESTART_SECONDS * restarts, 0.0) / (age + RESTART_SECONDS)
    return Question(
        capacity=capacity,
        width=width,
        least=least,
        most=most,
        listed=listed,
        speedup=np.divide(rate, at_fair, out=np.zeros_like(rate), where=at_fair > 0),
        present=np.ascontiguousarray(present[np.ix_(servers, rows)]),
        discount=np.where(restarts < 0, 1.0, lowered),
    )


def _tables(speeds: Speeds, rows: IntArray) -> tuple[IntArray, FloatArray]:
    """(largest listed number of workers, rate with it) by job and number of workers."""
    counts = np.diff(speeds.offsets)[rows]
    job = np.repeat(np.arange(rows.size), counts)
    entry = (
        np.repeat(speeds.offsets[rows], counts)
        + np.arange(job.size)
        - np.repeat(np.cumsum(counts) - counts, counts)
    )
    listed = np.zeros((rows.size, int(speeds.workers[entry].max(initial=0)) + 1), dtype=np.int64)
    rate = np.zeros(listed.shape)
    listed[job, speeds.workers[entry]] = speeds.workers[entry]
    rate[job, speeds.workers[entry]] = speeds.rate[entry]
    listed = np.maximum.accumulate(listed, axis=1)
    return listed, np.take_along_axis(rate, listed, axis=1)


def _matrix(workers: WorkerMap, jobs: int, servers: int) -> WorkerCounts:
    """Workers by server and job."""
    job = np.repeat(np.arange(jobs), np.diff(workers.offsets))
    counted = np.zeros((servers, jobs), dtype=np.int16)
    counted[workers.server, job] = workers.base + workers.flexible
    return counted


def _map(counted: WorkerCounts, speeds: Speeds) -> WorkerMap:
    """The same as a map; a job's base workers are those on its first servers."""
    job, server = np.nonzero(counted.T)
    number = counted[server, job].astype(np.int64)
    held = np.bincount(job, minlength=counted.shape[1])
    offsets = np.concatenate(([0], np.cumsum(held)))
    before = np.cumsum(number) - number
    before -= np.repeat(before[offsets[:-1][held > 0]], held[held > 0])
    base = np.clip(speeds.workers[speeds.offsets[job]] - before, 0, number)
    return WorkerMap(offsets, server, base, number - base)
