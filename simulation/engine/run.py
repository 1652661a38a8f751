"""The event loop: a virtual clock over the policies of the live platform.

Newcomers are decided on at once. GPUs change at planning instants, which are at least a slot apart, and at
times that a plan itself named. Between instants jobs run on unchanged.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from functools import cache
from math import inf

import numpy as np

from scheduling.core.clock import (
    changes_allowed,
    changes_allowed_from,
    given_out_again,
    looked_at_again,
    slot_end_after,
    tick_from,
)
from scheduling.core.problem.answer import Answer
from scheduling.core.question.arrays import TIME_TOLERANCE
from scheduling.core.question.decision import ChangeKind, Verdict
from scheduling.core.question.known_ends import wake_for_ends
from scheduling.core.question.snapshot import IntArray
from simulation.engine.asked.policy_facts import facts_of
from simulation.engine.asked.settings import SimulationSettings
from simulation.engine.checks.bound import deadlines_bound
from simulation.engine.checks.invariants import InvariantCheck
from simulation.engine.checks.loan_invariants import LoanInvariantCheck
from simulation.engine.checks.shared_invariants import SharedInvariantCheck
from simulation.engine.interruption import interruptible
from simulation.engine.lender import share_pool
from simulation.engine.outside.happenings import Happening, HappeningKind, HappeningQueue
from simulation.engine.outside.server_ends import end_happenings
from simulation.engine.warmup import few_jobs
from simulation.engine.world.description import described
from simulation.engine.world.jobs import NOBODY
from simulation.engine.world.kinds_in_turn import KindsInTurn
from simulation.engine.world.pool import PoolState
from simulation.engine.world.running import ACTIVE, OVER, held_by
from simulation.engine.world.shared_pool import SharedPool
from simulation.engine.world.world import World, seeds_of
from simulation.outcome import ON_TIME_TOLERANCE_SECONDS, JobEnd, JobOutcomes, RunOutcome
from simulation.workloads.workload import Workload

Progress = Callable[[int, int, float], None]
"""A callback that receives the number of ended jobs, of all jobs, and the simulated time in seconds."""


class Simulation(World):
    """One run of one workload under one policy: a world and the loop that moves it."""

    def __init__(
        self,
        workload: Workload,
        settings: SimulationSettings,
        happenings: Sequence[Happening] = (),
        *,
        progress: Progress | None = None,
        watch: Callable[[Simulation, PoolState, Answer], None] | None = None,
    ) -> None:
        began = time.perf_counter()
        super().__init__(workload, settings)
        self.lender = share_pool(self)
        self._happenings = HappeningQueue((*happenings, *end_happenings(settings, workload)))
        self._next_arrival = 0
        self._ended = 0
        self._ended_servers: list[int] = []
        self._idle_since = 0.0
        self._progress = progress
        self._watch = _check_for(settings) if settings.check_invariants else watch
        self._draws = np.random.default_rng(seeds_of(settings)[0])
        self.setup_seconds = time.perf_counter() - began

    def leave_out_arrivals(self, count: int) -> None:
        """Skip the arrivals of the first ``count`` jobs, which are under way already (`beginning.py`)."""
        self._next_arrival = max(self._next_arrival, count)
        self.jobs_under_way = count

    # The loop --------------------------------------------------------------------------------

    def run(self) -> RunOutcome:
        """Run until nothing more can happen. Ctrl-C ends the run with the results so far."""
        began = time.perf_counter()
        if self.settings.bound and (relaxation := deadlines_bound(self)) is not None:
            self.recorder.count("deadlines_met_bound", relaxation.deadlines)
        try:
            load_kernels(self.settings.policy)
        except KeyboardInterrupt:
            return self._outcome(0.0, interrupted=True)
        self.setup_seconds += time.perf_counter() - began
        return self.loop()

    def loop(self) -> RunOutcome:
        """Do as `run`, without loading compiled code first."""
        began = time.perf_counter()
        interrupted = False
        with interruptible() as asked_to_stop:
            try:
                while (at := self._next_instant()) < inf and not interrupted:
                    self._step(at)
                    interrupted = asked_to_stop()
            except KeyboardInterrupt:  # raised by the progress callback
                interrupted = True
        return self._outcome(time.perf_counter() - began, interrupted)

    def _next_instant(self) -> float:
        at = min(pool.wake_at for pool in self.pools)
        if self._next_arrival < self.workload.jobs:
            submitted_at = float(self.workload.submitted_at[self._next_arrival])
            slot = self.settings.slot_seconds
            at = min(at, tick_from(submitted_at, slot) if self.settings.on_ticks else submitted_at)
        at = min(at, self._lender_looks_at(), self._happenings.next_at)
        return max(at, self.now) if at < inf else inf

    def _lender_looks_at(self) -> float:
        """Return when the lender acts next; inf once no job has run for a whole round of its usage, since
        waiting jobs cannot start then."""
        if self.lender is None or self._ended == self.workload.jobs:
            return inf
        if self._next_arrival < self.workload.jobs or self.jobs.gpus.any():
            self._idle_since = self.now
        lending = self.lender.lending
        round_seconds = lending.usage.usage.size * lending.period_seconds
        return self.lender.next_at if self.now - self._idle_since <= round_seconds else inf

    def _step(self, at: float) -> None:
        for pool in self.pools:
            self.jobs.advance(pool.rows, pool.number, at - self.now)
        self.now = at
        for pool in self.pools:
            self._end_finished(pool)
        urgent = self._let_happen()
        if self.lender is not None and self.lender.act(self):
            self._look_again(self.lender.pool, urgent)
        turn = KindsInTurn(self.pools, self.jobs)
        turn.submit(self._arrived())
        for pool in self.pools:
            self._plan(pool, turn, urgent=pool.number in urgent)
        while turn.waiting:
            for pool in self.pools:
                self._plan(pool, turn, urgent=False)
        self._take_away_ended()
        if self._progress is not None:
            self._progress(self._ended, self.workload.jobs, self.now)

    def _plan(self, pool: PoolState, turn: KindsInTurn, *, urgent: bool) -> None:
        """Decide and reallocate in one pool, with the newcomers offered to it."""
        newcomers = turn.asked_on(pool)
        due = urgent or pool.wake_at <= self.now + TIME_TOLERANCE
        if not due and not newcomers.size:
            return
        slot_and_wake = pool.slot_ends_at, pool.wake_at
        if self.settings.on_ticks:
            slot_and_wake = tick_from(self.now, self.settings.slot_seconds), inf
        can_change = due or changes_allowed(self.now, *slot_and_wake)
        slot_at = changes_allowed_from(*slot_and_wake)
        problem = pool.problem(
            self.jobs, self.workload.job_id, newcomers, self.now, self.now if can_change else slot_at
        )
        if can_change:
            answer = pool.reallocate(problem)
        else:
            answer = pool.decide(problem)
        self.recorder.count("decisions")
        self._take_in(pool, answer, turn)
        if can_change:
            self._carry_out(pool, answer)
            moved = bool(answer.changes) or facts_of(pool.policy.name).pauses_everybody
            pool.slot_ends_at = slot_end_after(
                pool.slot_ends_at, self.now, self.settings.slot_seconds, moved=moved
            )
            pool.wake_at = self._wake_after(pool, answer)
        elif bool((~answer.declined[problem.columns.newcomer]).any()):
            pool.wake_at = min(pool.wake_at, slot_at)
        self._note_instant(pool)
        if self._watch is not None:
            self._watch(self, pool, answer)

    def _look_again(self, pool: PoolState, urgent: set[int]) -> None:
        """Plan again after servers came or went: at once for Lyra's scheduler, at the next slot for a planner
        with slots."""
        if self.settings.on_ticks:
            urgent.add(pool.number)
        else:
            pool.wake_at = looked_at_again(self.now, pool.slot_ends_at, pool.wake_at)

    def _wake_after(self, pool: PoolState, answer: Answer) -> float:
        """Return when to plan next: when the plan asks for it, or at the end of the slot in which a job
        ends."""
        finish = self.jobs.forecast_finish(pool.rows, pool.number, self.now)
        slot = self.settings.slot_seconds
        if self.settings.on_ticks:
            return min(answer.next_wake_at, tick_from(finish, slot))
        freed_at = given_out_again(finish, self.now, slot)
        ends_at = wake_for_ends(pool.known_ends(), self.now, slot)
        return max(min(answer.next_wake_at, freed_at, ends_at), self.now + TIME_TOLERANCE)

    # Arrivals, ends and outside events ----------------------------------------------------------

    def _arrived(self) -> IntArray:
        begin = self._next_arrival
        submitted = self.workload.submitted_at
        while self._next_arrival < self.workload.jobs and submitted[self._next_arrival] <= self.now:
            self._next_arrival += 1
        return np.arange(begin, self._next_arrival)

    def _end_finished(self, pool: PoolState) -> None:
        for row in self.jobs.ending_by(pool.rows, pool.number, self.now + TIME_TOLERANCE):
            self._end(row, JobEnd.COMPLETED, float(self.jobs.finish_at[row]))

    def _end(self, row: int, end: JobEnd, at: float) -> None:
        jobs = self.jobs
        if jobs.gpus[row]:
            self.recorder.allocation(self.now, row, 0)
        jobs.phase[row] = OVER
        jobs.gpus[row] = 0
        jobs.rate[row] = 0.0
        jobs.finish_at[row] = inf
        self.fates.end[row] = end
        self.fates.completed_at[row] = at if end is JobEnd.COMPLETED else np.nan
        self._ended += 1
        if (
            end is JobEnd.COMPLETED
            and jobs.promised[row]
            and at > jobs.deadline_at[row] + ON_TIME_TOLERANCE_SECONDS
        ):
            self._note_broken(row, at)

    def _note_broken(self, row: int, at: float) -> None:
        late = at - float(self.jobs.deadline_at[row])
        self.broken[self.workload.job_id[row]] = f"ended {late:.3g} s after its deadline"

    def _let_happen(self) -> set[int]:
        """Apply the happenings that are due. Return the pools that must be planned again at once."""
        urgent: set[int] = set()
        while self._happenings.next_at <= self.now + TIME_TOLERANCE:
            pool = self._happen(self._happenings.pop())
            if pool is not None:
                urgent.add(pool)
        return urgent

    def _happen(self, happening: Happening) -> int | None:
        if happening.kind in (HappeningKind.JOB_CANCELLED, HappeningKind.JOB_STOPS_EARLY):
            row = happening.target
            if self.jobs.phase[row] != ACTIVE:
                return None
            pool = int(self.jobs.pool[row])
            ended = JobEnd.CANCELLED if happening.kind is HappeningKind.JOB_CANCELLED else JobEnd.COMPLETED
            if ended is JobEnd.CANCELLED and self.jobs.promised[row]:
                self.fates.void_reason[row] = "cancelled"
            self._end(row, ended, self.now)
            left = self.pools[pool]
            left.wake_at = looked_at_again(self.now, left.slot_ends_at, left.wake_at)
            return None
        pool_state = self.pools[happening.pool]
        server = happening.target
        if happening.kind is HappeningKind.SERVER_LEAVES:
            self._ended_servers.append(server)
            return None
        if happening.kind is HappeningKind.SERVER_END_KNOWN:
            pool_state.put_server(server, ends_at=happening.until)
            pool_state.wake_at = looked_at_again(self.now, pool_state.slot_ends_at, pool_state.wake_at)
            return happening.pool if self.settings.on_ticks else None
        if happening.kind is HappeningKind.SERVER_LOST:
            self._strike(pool_state, server)
        elif happening.kind is HappeningKind.SERVER_FENCED:
            self._fence(pool_state, server)
        elif happening.kind is HappeningKind.SERVER_BACK:
            if self._happenings.forget(HappeningKind.SERVER_FENCED, server, happening.pool):
                self._fence(pool_state, server)  # the server's jobs are gone, however soon it is back
            pool_state.set_usable(server, True)
        else:
            pool_state.silent[server] = happening.kind is HappeningKind.AGENT_SILENT
        return happening.pool

    def _take_away_ended(self) -> None:
        """Remove servers that have ended. Jobs still on one lose what they did since their checkpoint, as
        with a lost server."""
        pool = self.pools[0]
        while self._ended_servers:
            server = self._ended_servers.pop()
            there = [row for row in pool.rows_on(server) if self.jobs.gpus[row]]
            self.recorder.count("jobs_caught_by_ends", len(there))
            if there:
                self._strike(pool, server)
            else:
                pool.set_usable(server, False)

    def _strike(self, pool: PoolState, server: int) -> None:
        """Lose a server: its jobs stand still until it is fenced."""
        self.recorder.count("failures")
        struck = [row for row in pool.rows_on(server) if self.jobs.phase[row] == ACTIVE]
        every = self.settings.imperfections.checkpoint_seconds
        if self.points is None:
            for row in struck:
                self.jobs.strike(row, self.now, every)
                self.recorder.count("recoveries_from_durable")
        else:
            for loss in self.points.fall_back(self.jobs, pool, server, struck, self.now, every):
                self.recorder.count(loss)
        pool.silent[server] = True
        fenced_at = self.now + self.settings.imperfections.fence_seconds
        self._happenings.add(Happening(fenced_at, HappeningKind.SERVER_FENCED, server, pool.number))

    def _fence(self, pool: PoolState, server: int) -> None:
        """Let a lost server's jobs start elsewhere."""
        for row in pool.rows_on(server):
            if self.jobs.phase[row] == ACTIVE and self.jobs.gpus[row]:
                self.recorder.allocation(self.now, row, 0)
                self.jobs.vacate(row)
            pool.vacate(row)
        pool.silent[server] = False
        pool.set_usable(server, False)

    # Answers ---------------------------------------------------------------------------------

    def _take_in(self, pool: PoolState, answer: Answer, turn: KindsInTurn) -> None:
        """Enter the verdicts; a refusal is final only after every kind of GPU has refused."""
        for row, verdict in pool.keep(answer, self.jobs):
            if verdict.admitted or not turn.refuse(row, pool):
                self._enter_verdict(pool, row, verdict)
        new = answer.problem.newcomers
        if new:
            self.fates.planned_finish_at[pool.rows[new]] = answer.plans.finish[new] + answer.problem.now

    def _enter_verdict(self, pool: PoolState, row: int, verdict: Verdict) -> None:
        self.jobs.decided[row] = True
        self.fates.decided_at[row] = self.now
        self.fates.reason_code[row] = str(verdict.reason_code)
        if not verdict.admitted:
            self._end(row, JobEnd.DECLINED, self.now)
            return
        self.jobs.phase[row] = ACTIVE
        self.jobs.waiting_seconds[row] = self.now - self.jobs.submitted_at[row]
        self.jobs.pool[row] = pool.number
        self.jobs.promised[row] = verdict.promised
        self.jobs.write_checkpoint(row, self.now)

    def _carry_out(self, pool: PoolState, answer: Answer) -> None:
        latency = self.settings.imperfections.agent_latency_seconds
        late = self._draws.uniform(0.0, latency, max(1, len(answer.changes))) if latency else None
        for row, kind in pool.carry_out(answer, self.jobs, late):
            self.recorder.allocation(self.now, row, int(self.jobs.gpus[row]))
            if kind is ChangeKind.START and np.isnan(self.fates.started_at[row]):
                self.fates.started_at[row] = self.now
            elif kind is ChangeKind.MIGRATE:
                self.fates.migrations[row] += 1
                self.recorder.count("migrations")
            elif kind in (ChangeKind.GROW, ChangeKind.SHRINK):
                self.fates.rescales[row] += 1
                self.recorder.count("rescales")
            elif kind is ChangeKind.SUSPEND:
                self.fates.preemptions[row] += 1
                self.recorder.count("preemptions")

    def _note_instant(self, pool: PoolState) -> None:
        jobs = self.jobs
        held = [held_by(jobs.running, one.rows, one.number) for one in self.pools]
        gpus, promised = sum(one.gpus for one in held), sum(one.promised_gpus for one in held)
        running = sum(one.running for one in held)
        speed_ups = sum(one.speed_ups(jobs) for one in self.pools)
        total = sum(one.capacity.gpus for one in self.pools)
        total += 0 if self.lender is None else self.lender.gpus_on_loan
        total += sum(one.gpus_leaving() for one in self.pools if isinstance(one, SharedPool))
        self.recorder.instant(
            self.now, total, promised, gpus - promised, running, sum(one.jobs for one in held) - running,
            speed_ups / max(1, sum(one.size.gpus for one in self.pools)), pool.decision_seconds,
        )  # fmt: skip

    # The end ---------------------------------------------------------------------------------

    def _outcome(self, wall_seconds: float, interrupted: bool) -> RunOutcome:
        jobs, fates, workload = self.jobs, self.fates, self.workload
        for row in np.flatnonzero((jobs.phase == ACTIVE) & jobs.promised).tolist():
            if not interrupted or self.now > jobs.deadline_at[row]:
                self.broken[self.workload.job_id[row]] = "did not end"
        kinds = [size.kind for size in self.settings.pools]
        return RunOutcome(
            settings=described(self.settings, workload),
            jobs=JobOutcomes(
                job_id=workload.job_id,
                service_class=workload.service_class,
                end=tuple(fates.end),
                promised=tuple(jobs.promised.tolist()),
                reason_code=tuple(fates.reason_code),
                void_reason=tuple(fates.void_reason),
                pool=tuple(kinds[pool] if pool != NOBODY else "" for pool in jobs.pool.tolist()),
                submitted_at=workload.submitted_at,
                deadline_at=workload.deadline_at,
                decided_at=fates.decided_at,
                started_at=fates.started_at,
                completed_at=fates.completed_at,
                planned_finish_at=fates.planned_finish_at,
                gpu_seconds=jobs.attained_gpu_seconds,
                pause_seconds=jobs.paused_seconds,
                waiting_seconds=jobs.waiting_seconds,
                rescales=fates.rescales,
                migrations=fates.migrations,
                preemptions=fates.preemptions,
            ),
            cluster=self.recorder.cluster_history(),
            allocations=self.recorder.allocation_history(),
            counts=self.recorder.counts,
            end_at=self.now,
            interrupted=interrupted,
            wall_seconds=wall_seconds,
            setup_seconds=self.setup_seconds,
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            broken=self.broken,
            notes=workload.notes,
            loans=None if self.lender is None else self.lender.history(),
        )


def _check_for(settings: SimulationSettings) -> InvariantCheck | SharedInvariantCheck:
    sharing = settings.sharing
    if sharing is not None and not sharing.by_curves:
        return SharedInvariantCheck()
    lends = sharing is not None and sharing.lending is not None
    return LoanInvariantCheck() if lends or settings.known_ends else InvariantCheck()


@cache
def load_kernels(policy: str) -> None:
    """Load a policy's compiled loops by a run of a few jobs, once a process, before decisions are timed.

    Raises KeyboardInterrupt if Ctrl-C was pressed meanwhile.
    """
    if Simulation(*few_jobs(policy)).loop().interrupted:
        raise KeyboardInterrupt
