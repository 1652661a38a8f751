"""A job of many machines under random failures: the recovery's life cycle and recovery points on a virtual
clock.

Machines fail at a Poisson rate. Every failure runs through the phases of `recovery.life_cycle`; `points`
chooses every source; `recovery.placement` decides which machines keep which state. Times are the published
ones.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from recovery.life_cycle.facts import RecoveryBounds, RecoveryFacts, RecoveryPhase
from recovery.life_cycle.steps import (
    AskForServers,
    ChooseSources,
    MoveTo,
    RecoveryInstruction,
    StopWorkers,
    TrainOn,
    next_step,
)
from recovery.placement.strategies import place
from research.gemini.points.sources import Tier, choose_sources
from research.gemini.points.versions import KeptState, Slot

SECONDS_PER_DAY = 86_400.0
#: No phase reaches its bound with the published times.
BOUNDS = RecoveryBounds(
    freeze_seconds=3600.0, prepare_seconds=3600.0, load_seconds=7200.0, start_seconds=3600.0
)


@dataclass(frozen=True, slots=True)
class JobUnderFailures:
    """Settings of the job. ``hardware_share``: share of failures that lose a machine's memory.

    ``in_memory``: whether there are recovery points in memory besides the durable ones.
    ``standby``: whether a spare server is available at once; otherwise one comes after
    ``replacement_seconds``. Times are in seconds.
    """

    #: Number of machines.
    machines: int
    #: Copies of each state in memory, including the machine's own.
    replicas: int
    in_memory: bool
    #: Simulated time.
    days: float
    #: Failures of one machine per day.
    failures_a_day: float
    iteration_seconds: float
    hardware_share: float
    standby: bool
    detection_seconds: float
    serialization_seconds: float
    warm_up_seconds: float
    replacement_seconds: float
    memory_load_seconds: float
    durable_load_seconds: float
    durable_period_seconds: float


@dataclass
class FailureRecord:
    """Results. ``lost_iterations``: for each recovery, the whole iterations that must be repeated."""

    productive_seconds: float = 0.0
    seconds: float = 0.0
    failures: int = 0
    during_recovery: int = 0
    tiers: Counter[Tier] = field(default_factory=Counter)
    lost_iterations: list[int] = field(default_factory=list)
    downtime_seconds: list[float] = field(default_factory=list)

    @property
    def effective_share(self) -> float:
        """Share of the time whose training progress was kept."""
        return self.productive_seconds / self.seconds if self.seconds else 1.0


class FailingJob:
    """One run. A version is complete on all holders at the end of the iteration after it."""

    def __init__(self, job: JobUnderFailures, seed: int) -> None:
        self.job = job
        self.placement = place(job.machines, job.replicas)
        self.record = FailureRecord()
        self._rng = np.random.default_rng(seed)
        self._now = 0.0
        self._end = job.days * SECONDS_PER_DAY
        self._reached = 0
        self._durable = 0
        self._durable_at = 0.0
        self._kept_version = 0
        #: Machines without any copy, and those with their own state alone.
        self._empty: set[int] = set()
        self._own_alone: set[int] = set()
        self._chosen = 0
        self._load_seconds = 0.0
        self._next_failure = self._gap()

    def run(self) -> FailureRecord:
        """Train and recover until the end."""
        while self._now < self._end:
            self._train_until(min(self._next_failure, self._end))
            if self._now < self._end:
                self._recover()
        self.record.seconds = self._now
        self.record.productive_seconds = self._reached * self.job.iteration_seconds
        return self.record

    def _gap(self) -> float:
        rate = self.job.machines * self.job.failures_a_day / SECONDS_PER_DAY
        return float(self._rng.exponential(1.0 / rate)) if rate > 0.0 else inf

    def _strikes(self) -> frozenset[int]:
        """Record a failure and return the machine that it takes, if any."""
        self.record.failures += 1
        machine = int(self._rng.integers(self.job.machines))
        hardware = float(self._rng.random()) < self.job.hardware_share
        self._next_failure += self._gap()
        if not hardware:
            return frozenset()
        self._empty.add(machine)
        self._own_alone.discard(machine)
        return frozenset({machine})

    def _train_until(self, at: float) -> None:
        iterations = int((at - self._now) / self.job.iteration_seconds)
        if iterations:
            # Version v is sent during iteration v + 1; at its end all holders have received it.
            self._reached += iterations
            self._kept_version = self._reached - 1
            self._own_alone.clear()
        self._store_durably(at)
        self._now = at

    def _store_durably(self, at: float) -> None:
        """Store durable states that were due at fixed times before ``at``."""
        due = int((at - self._durable_at) / self.job.durable_period_seconds)
        if due > 0:
            self._durable_at += due * self.job.durable_period_seconds
            # A durable state is that of the time at which its writing began.
            since = at - self._durable_at + self.job.durable_load_seconds
            behind = int(since / self.job.iteration_seconds)
            self._durable = max(self._durable, self._reached - 1 - behind)

    # A recovery ------------------------------------------------------------------------------

    def _recover(self) -> None:
        began = self._now
        lost = self._strikes()
        self._now += self.job.detection_seconds
        facts = RecoveryFacts(
            RecoveryPhase.DETECTED, generation=1, ranks=self.job.machines, phase_since=self._now, failed=lost
        )
        while facts.phase is not RecoveryPhase.RUNNING:
            if self._next_failure <= self._now:
                # During a recovery no process trains, so only failures of machines matter.
                facts = replace(facts, newly_failed=facts.newly_failed | self._strikes())
            step = next_step(facts, BOUNDS, self._now)
            facts = self._wait(facts) if step is None else self._carry_out(facts, step)
        self.record.lost_iterations.append(self._reached - self._chosen)
        self.record.downtime_seconds.append(self._now - began)
        self._reached = self._kept_version = self._chosen

    def _carry_out(self, facts: RecoveryFacts, step: RecoveryInstruction) -> RecoveryFacts:
        """Carry out an instruction and return the facts after it."""
        job = self.job
        if isinstance(step, MoveTo):
            return replace(facts, phase=step.phase, phase_since=self._now)
        if isinstance(step, StopWorkers):
            return replace(facts, stopped=facts.stopped | step.ranks)
        if isinstance(step, AskForServers):
            self._now += 0.0 if job.standby else job.replacement_seconds
            return replace(facts, resourced=facts.resourced | step.ranks)
        if isinstance(step, ChooseSources):
            self._now += job.serialization_seconds
            self._choose()
            return replace(facts, sources_chosen=True)
        if isinstance(step, TrainOn):
            self._now += job.warm_up_seconds
            return replace(facts, training=True)
        self.record.during_recovery += 1
        return RecoveryFacts(
            RecoveryPhase.DETECTED, facts.generation + 1, facts.ranks, self._now, failed=step.failed,
            resourced=facts.resourced - facts.newly_failed,
        )  # fmt: skip

    def _wait(self, facts: RecoveryFacts) -> RecoveryFacts:
        """Let time pass until the next report, since no step is due."""
        if facts.phase is RecoveryPhase.STARTING:
            # Published times include starting in the warm-up, which comes last.
            return replace(facts, started=frozenset(range(facts.ranks)))
        if facts.phase is RecoveryPhase.LOADING:
            self._now += self._load_seconds
            # Newcomers have their own state; copies for others come with the next iteration.
            self._own_alone |= self._empty
            self._empty.clear()
            return replace(facts, loaded=tuple((rank, self._chosen) for rank in range(facts.ranks)))
        # A lost server has stopped itself before its failure is detected.
        return replace(facts, fenced=facts.failed)

    def _choose(self) -> None:
        """Choose the version and its sources from what is in memory now."""
        slots = Slot(self._kept_version, True), Slot(self._kept_version + 1, False)
        kept = [
            KeptState(owner, holder, slots)
            for owner, where in enumerate(self.placement.holders)
            for holder in where
            if self.job.in_memory
            and holder not in self._empty
            and (holder == owner or holder not in self._own_alone)
        ]
        found = choose_sources(self.placement, kept, self._empty, self._durable)
        self.record.tiers[found.tier] += 1
        self._chosen = found.version or 0
        self._load_seconds = {
            Tier.LOCAL: 0.0,
            Tier.PEER: self.job.memory_load_seconds,
            Tier.DURABLE: self.job.durable_load_seconds,
        }[found.tier]
