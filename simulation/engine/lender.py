"""The orchestrator in a simulation: every five minutes it lends servers or reclaims them (Lyra 3.3)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lending.core.lending_rule import LendingRule
from scheduling.core.lyra.fleet import NO_ROLE
from scheduling.core.lyra.reclaiming.choosing import Reclaim, ReclaimGroup, ReclaimQuestion, choose_servers
from scheduling.core.lyra.reclaiming.methods import ReclaimRules
from scheduling.core.question.arrays import TIME_TOLERANCE
from scheduling.core.question.options import chosen
from scheduling.core.question.snapshot import FloatArray
from simulation.engine.asked.forecasts import forecasts_of
from simulation.engine.asked.lending import Lending
from simulation.engine.asked.policy_facts import facts_of
from simulation.engine.asked.settings import PoolSize
from simulation.engine.asked.sharing import SharingSettings
from simulation.engine.curves.curve_ranges import curve_ranges
from simulation.engine.curves.tables import CurveTables, curve_tables
from simulation.engine.curves.worker_tables import speeds_of_rows, worker_tables
from simulation.engine.outside.expected_failures import failures_of_pool
from simulation.engine.world.shared_pool import SharedPool
from simulation.engine.world.world import World
from simulation.loans import LoanHistory, ReclaimRecord
from simulation.workloads.scenarios import worker_ranges
from simulation.workloads.tuning import Tuning


@dataclass
class Lender:
    """Follow an inference cluster's usage and move its servers into and out of a pool."""

    lending: Lending
    pool: SharedPool
    rule: LendingRule
    forecast: FloatArray
    lent_at: FloatArray
    sample: int = 1
    next_at: float = 0.0
    instants: list[tuple[float, ...]] = field(default_factory=list)
    reclaims: list[ReclaimRecord] = field(default_factory=list)
    borrowers: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, lending: Lending, pool: SharedPool) -> Lender:
        """Return a lender that has lent nothing yet."""
        rule = LendingRule(lending.servers, lending.headroom, lending.forecast_margin, lending.hysteresis)
        lent_at = np.full(pool.on_loan.size, -np.inf)
        return cls(lending, pool, rule, forecasts_of(lending), lent_at, next_at=lending.period_seconds)

    def act(self, world: World) -> bool:
        """Lend or reclaim at this instant if it is due. Return whether the pool must be planned at once."""
        if self.next_at > world.now + TIME_TOLERANCE:
            return False
        usage = self.lending.usage
        known = (self.sample - 1) % usage.usage.size
        measured = float(usage.usage[known])
        expected = float(self.forecast[known])
        # A broken server at home is as useless to inference as one on loan.
        on_loan = int((self.pool.on_loan | self.pool.broken).sum())
        owned_busy, lent_busy = self._busy_gpus(world)
        decision = self.rule.decide(
            measured,
            None if np.isnan(expected) else expected,
            on_loan=on_loan,
            recent_peak=self._recent_peak(measured, expected, world.now),
            settled=self._settled(world.now),
        )
        moved = 0
        if decision.reclaim:
            ahead = self.rule.decide(measured, None, on_loan=on_loan).reclaim == 0
            moved = self._reclaim(world, decision.reclaim, ahead)
        elif decision.lend:
            moved = self._lend(decision.lend, world.now)
        lent_now = int(self.pool.on_loan.sum())
        self.instants.append(
            (world.now, measured, expected, lent_now, decision.shortfall, owned_busy, lent_busy)
        )
        self.sample += 1
        self.next_at = self.sample * self.lending.period_seconds
        return moved > 0

    def _recent_peak(self, measured: float, expected: float, now: float) -> float:
        """Return the largest share of GPUs in use or forecast within the last ``hold_seconds``."""
        since = now - self.lending.hold_seconds - TIME_TOLERANCE
        recent = [instant[1:3] for instant in self.instants[-self._held_periods :] if instant[0] >= since]
        shares = np.array([(measured, expected), *recent])
        forecasts = shares[~np.isnan(shares[:, 1]), 1]
        return self.rule.recent_peak(
            float(shares[:, 0].max()), float(forecasts.max()) if forecasts.size else None
        )

    @property
    def _held_periods(self) -> int:
        return int(self.lending.hold_seconds // self.lending.period_seconds) + 1

    def _settled(self, now: float) -> int:
        """Return the servers on loan for at least ``hold_seconds``, plus the broken ones at home, which count
        as on loan."""
        lent = self.pool.on_loan
        long_away = self.lent_at <= now - self.lending.hold_seconds + TIME_TOLERANCE
        return int((lent & long_away).sum() + (self.pool.broken & ~lent).sum())

    def _lend(self, count: int, now: float) -> int:
        """Lend up to ``count`` idle servers, the lowest numbers first. Return how many were lent."""
        lent = np.flatnonzero(self.pool.lendable())[:count]
        self.pool.on_loan[lent] = True
        self.lent_at[lent] = now
        return int(lent.size)

    def _reclaim(self, world: World, count: int, ahead: bool) -> int:
        """Return up to ``count`` servers, fewer if others cannot be emptied now. Return their number."""
        pool, jobs = self.pool, world.jobs
        pool.forget_ended(jobs)
        rows = pool.rows
        running = int((jobs.gpus[rows] > 0).sum())
        fleet = pool.fleet()
        question = ReclaimQuestion(
            # Servers out of reach cannot be emptied now: they stay until their agent reports or a fence.
            fleet=fleet._replace(gpus=np.where(pool.out_of_reach(), 0, fleet.gpus)),
            workers=pool.worker_map(),
            gpus_per_worker=pool.workers.ranges.gpus_per_worker[rows],
            remaining_iterations=pool.believed_remaining(jobs, rows),
            lent=speeds_of_rows(pool.workers.lent, rows),
            servers=count,
            seed=world.settings.seed + self.sample,
            **chosen(ReclaimRules, self.lending),
        )
        reclaim = choose_servers(question, self.lending.reclaim)
        preempted, scaled_in = pool.give_back(reclaim.returned)
        for position in preempted.tolist():
            _preempt(world, pool, position)
        for position in scaled_in.tolist():
            _scale_in(world, pool, position)
        # Broken servers fill up the count last: inference cannot use them.
        broken = np.flatnonzero(pool.on_loan & pool.broken)[: count - reclaim.returned.size]
        returned = np.concatenate((reclaim.returned, broken))
        pool.on_loan[returned] = False
        pool.role[returned] = NO_ROLE
        pool.clear_roles()
        # A reclaim that returns nothing is repeated a period later and counted then.
        if returned.size:
            world.reclaims += 1
            self.reclaims.append(_record(world.now, count, running, reclaim, broken.size, ahead))
        return int(returned.size)

    def _busy_gpus(self, world: World) -> tuple[int, int]:
        """Return the GPUs that jobs hold on owned servers and on servers on loan."""
        pool = self.pool
        pool.forget_ended(world.jobs)
        borrowed = pool.addresses >= pool.size.gpus
        owner = np.repeat(pool.rows, np.diff(pool.offsets))
        self.borrowers.update(np.unique(owner[borrowed]).tolist())
        lent = int(borrowed.sum())
        return pool.addresses.size - lent, lent

    @property
    def gpus_on_loan(self) -> int:
        """GPUs of the servers that are on loan now and not broken."""
        return int(self.pool.servers.gpus[self.pool.on_loan & ~self.pool.broken].sum())

    def history(self) -> LoanHistory:
        """Return the history of loans, usage and reclaims."""
        return LoanHistory.of(
            self.lending.servers,
            self.instants,
            tuple(self.reclaims),
            headroom=self.lending.headroom,
            gpus_per_server=self.pool.size.gpus_per_server,
            owned_gpus=self.pool.size.gpus,
            borrowers=np.array(sorted(self.borrowers), dtype=np.int64),
        )


def _record(
    now: float, wanted: int, running: int, reclaim: Reclaim, broken: int, ahead: bool
) -> ReclaimRecord:
    return ReclaimRecord(
        at=now,
        wanted=wanted,
        returned=int(reclaim.returned.size) + broken,
        idle=reclaim.returned_from(ReclaimGroup.IDLE) + broken,
        flexible=reclaim.returned_from(ReclaimGroup.FLEXIBLE),
        preempted=int(reclaim.preempted.size),
        running=running,
        collateral_gpus=reclaim.collateral_gpus,
        ahead=ahead,
    )


def _preempt(world: World, pool: SharedPool, position: int) -> None:
    """Preempt a job that lost all its GPUs to a reclaim; without a checkpoint of its own it loses all
    progress."""
    row = int(pool.rows[position])
    pool.restarting.add(row)
    world.jobs.vacate(row)
    if not pool.workers.ranges.keeps_progress[row]:
        world.jobs.remaining[row] = world.jobs.total[row]
    world.fates.preemptions[row] += 1
    world.recorder.count("preemptions")
    world.recorder.allocation(world.now, row, 0)


def _scale_in(world: World, pool: SharedPool, position: int) -> None:
    """Continue a job without its flexible workers on returned servers."""
    row = int(pool.rows[position])
    pool.drop_to_level(position)
    gpus = int(pool.offsets[position + 1] - pool.offsets[position])
    pause = pool.scale_in_pause(position)
    world.jobs.take_gpus(row, gpus, pool.rate_now(position), pause, world.now)
    world.jobs.forecast_finish(np.array([row]), pool.number, world.now)
    world.fates.rescales[row] += 1
    world.recorder.count("rescales")
    world.recorder.allocation(world.now, row, gpus)


def _curves_on_loan(world: World, lending: Lending) -> CurveTables:
    """Return all jobs' curves on the inference cluster's kind of GPU, up to all GPUs that can be on loan.

    If training servers are of the same kind, their GPUs count too, since a job may hold both.
    """
    plain, settings = world.pools[0], world.settings
    beside = plain.size.servers if _same_kind(plain.size, lending) else 0
    return curve_tables(
        world.workload,
        PoolSize(lending.inference_gpu_type, lending.servers + beside, plain.size.gpus_per_server),
        settings.pauses,
        charges_pauses=facts_of(world.policy.name).charges_pauses,
        promise_margin=settings.imperfections.promise_margin,
        agent_latency_seconds=settings.imperfections.agent_latency_seconds,
        true_factor=plain.tables.true_factor,
        # No promise rests on borrowed servers, so no slack pays for their failures.
        failures=failures_of_pool(settings, world.workload, plain.size, promised=False),
    )


def _same_kind(pool: PoolSize, lending: Lending) -> bool:
    return pool.kind == lending.inference_gpu_type


def _require_ends_can_be_planned(world: World, sharing: SharingSettings) -> None:
    """Raise ValueError if servers with a known end cannot be treated as on loan."""
    if not sharing.by_curves:
        raise ValueError("--server-ends is for jobs with measured curves, not for a scenario's")
    lending = sharing.lending
    if lending is not None and not _same_kind(world.pools[0].size, lending):
        raise ValueError(
            "--server-ends beside --inference-servers: one kind of GPU is borrowed at a time; give "
            f"--inference-gpu-type {world.pools[0].size.kind}"
        )


def share_pool(world: World) -> Lender | None:
    """Make the simulation's only pool a shared one as its settings ask; return the lender, if any.

    Raises ValueError if there are several pools.
    """
    settings = world.settings
    sharing = settings.sharing
    if sharing is None:
        if not settings.known_ends:
            return None
        sharing = SharingSettings(rules=None)  # jobs follow their curves, and nothing is lent
    if len(world.pools) != 1:
        raise ValueError("inference servers are lent to one pool of training servers, not to several")
    if settings.known_ends:
        _require_ends_can_be_planned(world, sharing)
    workload = world.workload
    plain = world.pools[0]
    lending = sharing.lending
    lent_tables = None
    if sharing.rules is None and sharing.ranges is None:
        if lending is not None:
            lent_tables = _curves_on_loan(world, lending)
        elif settings.known_ends:
            lent_tables = plain.tables
        workers = curve_ranges(workload, plain.tables, lent_tables)
    else:
        ranges = sharing.ranges
        if ranges is None:
            assert sharing.rules is not None
            ranges = worker_ranges(
                workload, sharing.rules, settings.seed, gpus_per_server=plain.size.gpus_per_server
            )
        workers = worker_tables(
            ranges,
            workload.requested_seconds,
            expansion=sharing.expansion,
            scaling=sharing.scaling,
            tuning=Tuning() if facts_of(world.policy.name).adapts_batch else None,
        )
    pool = SharedPool.beside(
        plain,
        0 if lending is None else lending.servers,
        workers,
        restart_seconds=0.0 if sharing.by_curves else sharing.preemption_seconds,
        lent_tables=lent_tables,
        same_kind=lent_tables is not None and (lending is None or _same_kind(plain.size, lending)),
    )
    world.pools[0] = pool
    world.jobs.total[:] = workers.work
    world.jobs.remaining[:] = workers.work
    return None if lending is None else Lender.of(lending, pool)
