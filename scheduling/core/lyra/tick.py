"""Lyra's scheduler tick: base demands, then flexible demands on leftover GPUs, then placement (Lyra 3.5).

`divide` takes the present workers and decides which jobs start, grow or shrink, and on which server each
worker runs. Base workers of running jobs neither move nor stop. A second tick without an event in between
changes nothing, with one exception: after a mixing job started on GPUs where flexible workers found no place,
the second tick may divide these workers differently.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduling.core.lyra.base_and_flexible import LENT, OWNED, Demands, rates_with
from scheduling.core.lyra.base_demands import (
    BaseDemandsMet,
    BaseOrder,
    Skip,
    admit_bases,
    admit_strictly,
    base_order,
)
from scheduling.core.lyra.elastic_moves import move_onto_loan
from scheduling.core.lyra.fleet import Fleet, WorkerMap
from scheduling.core.lyra.flexible_demands import (
    Growth,
    SharingRules,
    growing_jobs,
    share_out,
    share_out_together,
)
from scheduling.core.lyra.flexible_mixing import admit_mixing
from scheduling.core.lyra.flexible_placing import place_extra
from scheduling.core.lyra.flexible_round_robin import divide_in_turn
from scheduling.core.lyra.knapsack import Choice
from scheduling.core.lyra.worker_changes import edited_map, roles_with, worker_changes_between
from scheduling.core.lyra.worker_placement import Grouping, Kept, tear_down, usable_gpus
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray, IntArray


@dataclass(frozen=True)
class TwoPhase(SharingRules):
    """The rules of a tick: `SharingRules` for flexible demands, and these two for base demands.

    Two choices need the policy's memory, so the policy passes their effect to `divide`: which jobs
    ``elastic_moves`` must leave in place, and which jobs ``retry_when_freed`` does not try yet.
    """

    #: The order in which pending jobs get their base demand.
    order: BaseOrder = BaseOrder.SHORTEST_AT_BASE
    #: Whether GPUs of jobs that could not be placed go to other pending jobs within the same tick.
    reconsider: bool = False


@dataclass(frozen=True)
class Division:
    """The outcome of one tick."""

    #: The new worker map.
    workers: WorkerMap
    #: New role of every server.
    role: IntArray
    #: New iterations per second of every job.
    rate: FloatArray
    #: A `WorkerChange` for every job.
    change: IntArray
    #: Rows of the jobs that start.
    admitted: IntArray
    #: Rows of the pending jobs that do not start.
    skipped: IntArray
    #: A `Skip` for each skipped job.
    reason: IntArray
    #: The knapsacks that were solved.
    knapsacks: tuple[Choice, ...]


_SETTLING_ROUNDS = 8
"""How often one tick may divide flexible demand again because chosen workers could not be placed."""


class _Tick:
    """One tick under way, with the workers placed so far."""

    def __init__(
        self,
        fleet: Fleet,
        workers: WorkerMap,
        demands: Demands,
        options: TwoPhase,
        not_tried: BoolArray | None,
        not_moved: BoolArray | None,
    ) -> None:
        self.fleet, self.workers, self.demands, self.options = fleet, workers, demands, options
        self.before, self.not_tried, self.not_moved = workers, not_tried, not_moved
        self.room, self.held = tear_down(fleet.gpus, fleet.on_loan, workers, demands.gpus_per_worker)
        self.base_room = self.room
        if options.emptied_as_idle:
            # The same arrays as `room`, changed in place with it. Only the workers that on-loan servers had
            # before are left out.
            self.base_room = self.room._replace(before=np.where(fleet.on_loan, 0, self.room.before))
        self.valued = demands._replace(remaining=demands.work) if options.value_total_work else demands
        self.grouping = Grouping(not options.naive, options.flexible_in_holes)
        self.base: IntArray = self.held.base.copy()
        self.extra: IntArray = np.zeros_like(self.base)
        self.kept: IntArray = np.zeros_like(workers.flexible)
        self.placed: list[IntArray] = []
        self.admissions: list[BaseDemandsMet] = []
        self.knapsacks: list[Choice] = []

    @property
    def strict(self) -> bool:
        """Whether a job that does not fit blocks the jobs behind it."""
        return self.options.order is BaseOrder.FIRST_COME

    def pending(self, mixing: bool) -> IntArray:
        """Pending jobs in the order of their admission."""
        waits = (self.base.sum(axis=0) == 0) & (self.demands.mixes == mixing)
        if self.not_tried is not None:
            waits &= ~self.not_tried
        return base_order(self.demands, np.flatnonzero(waits), self.options.order, self.options.ageing_weight)

    def admit(self, mixing: bool) -> None:
        """Start pending jobs."""
        jobs = self.pending(mixing)
        if jobs.size == 0:
            return
        known = (self.fleet, self.base_room, self.demands, jobs, self.grouping)
        naive = self.options.naive
        if mixing:
            admission = admit_mixing(*known, strict=self.strict)
        elif self.strict:
            admission = admit_strictly(*known, naive=naive)
        else:
            admission = admit_bases(*known, naive=naive, reconsider=self.options.reconsider)
        self.admissions.append(admission)
        self.placed.append(admission.placed)
        job, server, number = admission.placed[:, 0], admission.placed[:, 1], admission.placed[:, 2]
        np.add.at(self.base, (self.room.kind[server], job), number)

    def move(self) -> None:
        """Move running elastic jobs to on-loan servers, then try skipped jobs again on the freed GPUs."""
        moves = move_onto_loan(
            self.base_room, self.workers, self.demands, self.held, self.base, self.grouping, self.not_moved
        )
        if moves.jobs.size == 0:
            return
        self.workers = self.workers._replace(base=moves.base)
        self.placed.append(moves.placed)
        if self.admissions:
            first = self.admissions.pop()
            nobody = first.skipped[:0]
            self.admissions.append(first._replace(skipped=nobody, reason=nobody))
        self.admit(mixing=False)

    def grow(self, mixing: bool) -> None:
        """Divide the remaining GPUs. Mixing jobs grow onto on-loan servers first; other jobs grow on owned
        ones first."""
        if self.options.growth is Growth.NONE:
            return
        if self.options.growth is Growth.SINGLE_KNAPSACK and not mixing:
            self._grow_on((OWNED, LENT), mixing)
            return
        for kind in (LENT, OWNED) if mixing else (OWNED, LENT):
            self._grow_on((kind,), mixing)

    def _grow_on(self, kinds: tuple[int, ...], mixing: bool) -> None:
        """Divide and place until every chosen worker has a place or the choice repeats.

        The next tick would start from the workers placed here, so this tick iterates to where the next one
        would end.
        """
        jobs = {kind: growing_jobs(self.demands, self.base, kind, mixing) for kind in kinds}
        if not any(members.size for members in jobs.values()):
            return
        room = self.room
        free, flexible, kept = room.free.copy(), room.flexible.copy(), self.kept.copy()
        capacity = {kind: usable_gpus(room, kind, True, self.grouping) for kind in kinds}
        extra = self.extra.copy()
        for kind in kinds:
            extra[kind, jobs[kind]] = self.held.flexible[kind, jobs[kind]]
        chosen: IntArray | None = None
        placed: list[IntArray] = []
        choices: tuple[Choice, ...] = ()
        for _ in range(_SETTLING_ROUNDS):
            wanted, choices = self._share(jobs, capacity, extra)
            if chosen is not None and np.array_equal(chosen, wanted):
                break
            chosen = wanted
            room.free[:], room.flexible[:], self.kept[:] = free, flexible, kept
            placed = []
            for kind in kinds:
                rows, got = place_extra(
                    room,
                    Kept(self.workers, self.kept),
                    self.demands,
                    self.base,
                    wanted[kind],
                    kind,
                    self.grouping,
                )
                placed.append(rows)
                extra[kind, jobs[kind]] = got[jobs[kind]]
            if all(np.array_equal(extra[kind, jobs[kind]], wanted[kind, jobs[kind]]) for kind in kinds):
                break
        self.extra = extra
        self.placed += placed
        self.knapsacks += choices

    def _share(
        self, jobs: dict[int, IntArray], capacity: dict[int, int], extra: IntArray
    ) -> tuple[IntArray, tuple[Choice, ...]]:
        """Choose extra workers by kind of servers and job."""
        if len(jobs) == 2:
            both = (jobs[OWNED], jobs[LENT])
            capacities = (capacity[OWNED], capacity[LENT])
            return share_out_together(
                self.valued, both, self.base, extra, self.held, capacities, self.options
            )
        ((kind, members),) = jobs.items()
        wanted = np.zeros_like(self.base)
        wanted[kind], choices = share_out(
            self.valued, members, kind, self.base, extra, self.held, capacity[kind], self.options
        )
        return wanted, choices

    def grow_in_turn(self) -> WorkerMap:
        """Run the whole tick under round-robin growth; returns the new worker map."""
        jobs = base_order(
            self.demands,
            np.flatnonzero(self.held.base.sum(axis=0) == 0),
            self.options.order,
            self.options.ageing_weight,
        )
        admission, workers = divide_in_turn(
            self.fleet,
            self.base_room,
            self.held,
            self.workers,
            self.demands,
            jobs,
            self.grouping,
            strict=self.strict,
            naive=self.options.naive,
        )
        self.admissions.append(admission)
        return workers

    def division(self, workers: WorkerMap) -> Division:
        """The outcome as a `Division`."""
        nothing = np.zeros(0, dtype=np.int64)
        admissions = self.admissions
        if self.not_tried is not None:
            jobs = np.flatnonzero(self.not_tried)
            admissions = [
                *admissions,
                BaseDemandsMet(nothing, nothing, jobs, np.full_like(jobs, Skip.FRAGMENTED)),
            ]
        return Division(
            workers,
            roles_with(self.fleet.on_loan, workers),
            rates_with(self.demands, self.fleet.on_loan, workers, self.options.efficiency),
            worker_changes_between(self.before, workers),
            np.concatenate([nothing, *(admission.started for admission in admissions)]),
            np.concatenate([nothing, *(admission.skipped for admission in admissions)]),
            np.concatenate([nothing, *(admission.reason for admission in admissions)]),
            tuple(self.knapsacks),
        )


def divide(
    fleet: Fleet,
    workers: WorkerMap,
    demands: Demands,
    options: TwoPhase | None = None,
    *,
    not_tried: BoolArray | None = None,
    not_moved: BoolArray | None = None,
) -> Division:
    """Decide which jobs run where next (Lyra section 3.5).

    ``workers`` are the present workers, one row for each job of ``demands``; a job without base workers is
    pending. ``not_tried`` marks pending jobs that found the free GPUs too scattered before and wait for more.
    ``not_moved`` marks running jobs that must stay on their kind of servers. None marks no job.
    """
    tick = _Tick(fleet, workers, demands, options or TwoPhase(), not_tried, not_moved)
    if tick.options.growth is Growth.ROUND_ROBIN:
        return tick.division(tick.grow_in_turn())
    tick.admit(mixing=False)
    if tick.options.elastic_moves:
        tick.move()
    tick.grow(mixing=False)
    if demands.mixes.any():
        tick.admit(mixing=True)
        tick.grow(mixing=True)
    placed = np.concatenate([np.zeros((0, 4), dtype=np.int64), *tick.placed])
    return tick.division(edited_map(tick.workers, tick.kept, placed))
