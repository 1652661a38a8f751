"""Pollux as Lyra's evaluation takes it: numbers of workers by a genetic search for goodput (Lyra section 3.7; spec 2.12).

`pollux.py` is the system as ElasticFlow's evaluation takes it, with sizes found exactly. Here the search is genetic with a
budget in generations, so that it can end before the best division is found, as the original does.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from scheduling.core.fleet import WorkerMap
from scheduling.core.flexible_demands import Growth
from scheduling.core.problem import Problem
from scheduling.core.sharing import Sharing
from scheduling.core.snapshot import FloatArray, IntArray
from scheduling.core.two_phase import Division, TwoPhase
from scheduling.core.worker_changes import WorkerChange, changes_between, roles_with
from scheduling.policies.genetic_search import Budget, Choices, best_sizes
from scheduling.policies.shares_workers import SharesWorkers

RESTART_SECONDS = 30.0


class LyraPollux(SharesWorkers):
    """Any number of workers within a job's range, or none, so that the power mean (-1) of speed-ups is greatest.

    A speed-up is the rate over the rate on a fair share of the GPUs, lowered for a job that would be changed by (age - 30 s times its
    changes) / (age + 30 s); every change costs 30 s. Deviations: the search is over numbers of workers, which are placed by best fit
    afterwards, not over job-by-server matrices; its budget is that of `Budget`; owned servers alone; a change of the division is
    sought when something happened, at most once a slot.
    """

    name = "lyra_pollux"
    rules = TwoPhase(growth=Growth.NONE)
    adapts_batch = True
    restart_seconds = RESTART_SECONDS
    memory_columns: ClassVar[tuple[str, ...]] = ("changes",)
    budget: ClassVar[Budget] = Budget()

    def divided(self, problem: Problem, sharing: Sharing) -> Division:
        """Who gets how many workers where."""
        before = sharing.workers(problem.columns)
        owned = ~sharing.fleet.on_loan
        choices = _choices(problem, sharing, before, int(sharing.fleet.gpus[owned].sum()))
        sizes = best_sizes(choices, self.budget, seed=problem.count + int(problem.now))
        after = _placed(sharing, before, sizes, np.where(owned, sharing.fleet.gpus, 0))
        held, given = _totals(before), _totals(after)
        nothing = np.zeros(0, dtype=np.int64)
        return Division(
            after,
            roles_with(sharing.fleet.on_loan, after),
            np.zeros(given.size),
            changes_between(before, after),
            np.flatnonzero((held == 0) & (given > 0)),
            nothing,
            nothing,
            (),
        )

    def noted(self, problem: Problem, division: Division) -> FloatArray:
        """How often each job was changed."""
        moved = (division.change != WorkerChange.UNCHANGED) & (division.change != WorkerChange.START)
        changes: FloatArray = problem.columns.memory[:, 0] + moved
        return changes[:, None]


def _totals(workers: WorkerMap) -> IntArray:
    owner = np.repeat(np.arange(workers.offsets.size - 1), np.diff(workers.offsets))
    counted = np.bincount(owner, workers.base + workers.flexible, minlength=workers.offsets.size - 1)
    return counted.astype(np.int64)


def _choices(problem: Problem, sharing: Sharing, before: WorkerMap, gpus: int) -> Choices:
    """What each job may have: none, or a listed number of workers."""
    speeds, width = sharing.demands.owned, sharing.demands.gpus_per_worker
    count = np.diff(speeds.offsets)
    jobs, most = count.size, int(count.max(initial=0))
    workers = np.zeros((jobs, most + 1), dtype=np.int64)
    rate = np.zeros((jobs, most + 1))
    inside = np.arange(1, most + 1)[None, :] <= count[:, None]
    workers[:, 1:][inside] = speeds.workers
    rate[:, 1:][inside] = speeds.rate
    held = _totals(before)
    now = np.where((workers == held[:, None]) & (held > 0)[:, None], np.arange(most + 1), 0).max(
        axis=1, initial=0
    )
    fair = np.maximum(1, gpus // max(1, jobs)) // width
    place = np.clip((workers <= fair[:, None]).sum(axis=1) - 1 - (most - count), 1, np.maximum(1, count))
    at_fair = rate[np.arange(jobs), np.minimum(place, most)] if jobs else np.zeros(0)
    age = np.maximum(0.0, problem.now - problem.columns.submitted_at)
    changes = problem.columns.memory[:, 0]
    return Choices(
        workers=workers,
        gpus=workers * width[:, None],
        speedup=np.divide(rate, at_fair[:, None], out=np.zeros_like(rate), where=at_fair[:, None] > 0),
        count=count,
        now=now,
        discount=np.maximum(age - RESTART_SECONDS * changes, 0.0) / (age + RESTART_SECONDS),
        capacity=gpus,
    )


def _placed(sharing: Sharing, before: WorkerMap, sizes: IntArray, gpus: IntArray) -> WorkerMap:
    """Workers on servers: who keeps its number stays; the others are placed by best fit, larger workers first.

    A job that finds no room for its number falls back to its base, or to none.
    """
    width = sharing.demands.gpus_per_worker
    held = _totals(before)
    free = gpus.copy()
    places: list[dict[int, int]] = [{} for _ in range(sizes.size)]
    for job in np.flatnonzero((held > 0) & (sizes > 0)).tolist():
        for entry in range(int(before.offsets[job]), int(before.offsets[job + 1])):
            if free[before.server[entry]] > 0:
                places[job][int(before.server[entry])] = int(before.base[entry] + before.flexible[entry])
        _shrink(places[job], int(sizes[job]))
        for server, number in places[job].items():
            free[server] -= number * int(width[job])
    for job in np.lexsort((np.arange(sizes.size), -sizes * width, -width)).tolist():
        missing = int(sizes[job]) - sum(places[job].values())
        if missing > 0:
            _grow(places[job], free, int(width[job]), missing)
            _settle(places[job], free, int(width[job]), sharing.demands.owned, job)
    return _as_map(places, sharing)


def _shrink(places: dict[int, int], wanted: int) -> None:
    surplus = sum(places.values()) - wanted
    for server in sorted(places, key=lambda one: (places[one], -one)):
        taken = min(max(surplus, 0), places[server])
        surplus -= taken
        places[server] -= taken
        if places[server] == 0:
            del places[server]


def _grow(places: dict[int, int], free: IntArray, width: int, missing: int) -> None:
    while missing > 0:
        fits = np.flatnonzero(free >= width)
        if not fits.size:
            return
        server = int(fits[np.argmin(free[fits])])
        number = min(missing, int(free[server]) // width)
        free[server] -= number * width
        places[server] = places.get(server, 0) + number
        missing -= number


def _settle(places: dict[int, int], free: IntArray, width: int, speeds, job: int) -> None:  # type: ignore[no-untyped-def]
    """Give back workers beyond the largest listed number."""
    listed = speeds.workers[speeds.offsets[job] : speeds.offsets[job + 1]]
    total = sum(places.values())
    fitting = int(listed[listed <= total].max(initial=0))
    had = dict(places)
    _shrink(places, fitting)
    for server, number in had.items():
        free[server] += (number - places.get(server, 0)) * width


def _as_map(places: list[dict[int, int]], sharing: Sharing) -> WorkerMap:
    speeds = sharing.demands.owned
    offsets, server, base, flexible = [0], [], [], []
    for job, where in enumerate(places):
        first = int(speeds.offsets[job])
        left = int(speeds.workers[first]) if int(speeds.offsets[job + 1]) > first else 0
        for one in sorted(where):
            here = min(left, where[one])
            left -= here
            server.append(one)
            base.append(here)
            flexible.append(where[one] - here)
        offsets.append(len(server))
    return WorkerMap(*(np.array(column, dtype=np.int64) for column in (offsets, server, base, flexible)))
