"""A small event loop that executes decisions exactly as planned, and checks every promise.

Newcomers are decided at once (``admit``). After an event or a changed forecast, allocations change
(``replan``) as soon as the core's clock allows, as in the live planner and the simulator. Every change costs
the pause that the decision charges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from scheduling.core.clock import changes_allowed, changes_allowed_from, looked_at_again, slot_end_after
from scheduling.core.decide import admit, replan
from scheduling.core.question.decision import Decision
from scheduling.core.question.snapshot import (
    HeldOffer,
    JobSnapshot,
    PlannerSettings,
    ServerSnapshot,
    Snapshot,
    StoredPlan,
)
from scheduling.policies import Policy

EXACT = 1e-4
"""Seconds by which floating point may make a job late in these runs."""


@dataclass
class Running:
    """The true state of a job: its remaining work and its present pause."""

    facts: JobSnapshot
    stops_early_at: float = inf

    def rate(self) -> float:
        curve = self.facts.curve
        index = int(np.searchsorted(curve.levels, self.facts.gpus_now))
        if not self.facts.gpus_now or curve.levels[index] != self.facts.gpus_now:
            return 0.0
        return float(curve.throughput[index])

    def finish_if_left_alone(self, now: float) -> float:
        """Return when the last iteration ends with the present GPUs."""
        if self.facts.remaining_iterations <= 0:
            return now
        rate = self.rate()
        if rate == 0:
            return inf
        return now + self.facts.pause_left_seconds + self.facts.remaining_iterations / rate

    def advance(self, seconds: float) -> None:
        productive = max(0.0, seconds - self.facts.pause_left_seconds)
        remaining = self.facts.remaining_iterations - productive * self.rate()
        self.facts = replace(
            self.facts,
            remaining_iterations=max(0.0, remaining),
            pause_left_seconds=max(0.0, self.facts.pause_left_seconds - seconds),
        )


@dataclass
class Cluster:
    """The executor: pass arrivals to ``run``, then read the outcome from the attributes."""

    servers: tuple[ServerSnapshot, ...]
    settings: PlannerSettings
    now: float = 0.0
    jobs: dict[str, Running] = field(default_factory=dict)
    offers: tuple[HeldOffer, ...] = ()
    completed_at: dict[str, float] = field(default_factory=dict)
    stored_at: dict[str, float] = field(default_factory=dict)
    last_iteration_at: dict[str, float] = field(default_factory=dict)
    promised: dict[str, float] = field(default_factory=dict)
    declined: set[str] = field(default_factory=set)
    at_risk: set[str] = field(default_factory=set)
    wake_at: float = inf
    #: End of the slot that the last change of any job's GPUs began.
    slot_ends_at: float = -inf
    dirty: bool = False
    decisions: list[Decision] = field(default_factory=list)
    migrations: int = 0
    used_stored_plans: int = 0
    #: The policy that decides; None: ElasticFlow as published.
    policy: Policy | None = None

    @property
    def slot(self) -> float:
        return self.settings.slot_seconds

    def frozen_until(self) -> float:
        """Return from when a decision made now may assign GPUs."""
        return max(self.now, changes_allowed_from(self.slot_ends_at, self.wake_at))

    def snapshot(self, newcomers: Sequence[JobSnapshot], next_slot_at: float) -> Snapshot:
        return Snapshot(
            now=self.now,
            next_slot_at=next_slot_at,
            servers=self.servers,
            jobs=(*(running.facts for running in self.jobs.values()), *newcomers),
            held_offers=self.offers,
            settings=self.settings,
        )

    # Running ---------------------------------------------------------------------------------

    def run(
        self,
        arrivals: Sequence[JobSnapshot],
        *,
        until: float = inf,
        early_stops: dict[str, float] | None = None,
    ) -> None:
        """Run to the end of all work, or to ``until``; jobs arrive at their submission times."""
        waiting = sorted(arrivals, key=lambda job: (job.submitted_at, job.id))
        for _ in range(5_000):
            next_arrival = waiting[0].submitted_at if waiting else inf
            next_replan = self._next_replan()
            at = min(next_arrival, next_replan, until)
            if at == inf or at >= until:
                if until < inf:
                    self._advance_to(until)
                break
            self._advance_to(at)
            newcomers = []
            while waiting and waiting[0].submitted_at <= at + 1e-9:
                newcomers.append(replace(waiting.pop(0), newcomer=True))
            if early_stops:
                for newcomer in newcomers:
                    early_stops.setdefault(newcomer.id, inf)
            if newcomers and not changes_allowed(at, self.slot_ends_at, self.wake_at):
                self._admit(newcomers, early_stops or {})
            else:
                self._replan(newcomers, early_stops or {})
        else:
            raise AssertionError("the cluster does not come to rest")

    def _next_replan(self) -> float:
        """Return the time of the next decision that may move GPUs."""
        at = max(self.now, self.wake_at)
        happens = [self._stored_when(running) for running in self.jobs.values()]
        happens += [self.now] if self.dirty else []
        for moment in happens:
            seen_at = max(self.now, moment)
            at = min(at, looked_at_again(seen_at, self.slot_ends_at, self.wake_at))
        return at

    def _stored_when(self, running: Running) -> float:
        """Return when the job's result is stored with the present GPUs."""
        job = running.facts
        if job.id in self.stored_at:
            return self.stored_at[job.id]
        finish = min(running.finish_if_left_alone(self.now), max(self.now, running.stops_early_at))
        return finish + job.finishing_seconds

    def _advance_to(self, at: float) -> None:
        for job_id, running in self.jobs.items():
            finish = min(running.finish_if_left_alone(self.now), max(self.now, running.stops_early_at))
            if job_id not in self.last_iteration_at and finish <= at + 1e-9:
                self.last_iteration_at[job_id] = finish
                stored = finish + running.facts.finishing_seconds
                self.stored_at[job_id] = stored
            running.advance(at - self.now)
        for job_id in list(self.jobs):
            if job_id in self.last_iteration_at and self.stored_at[job_id] <= at + 1e-9:
                self.completed_at[job_id] = self.stored_at[job_id]
                del self.jobs[job_id]
                self.dirty = True
            elif job_id in self.last_iteration_at:
                # Storing its weights: no iterations left, the rest of the time to store remains.
                seconds = max(0.0, self.stored_at[job_id] - at)
                facts = self.jobs[job_id].facts
                self.jobs[job_id].facts = replace(facts, remaining_iterations=0.0, finishing_seconds=seconds)
        self.now = at

    def accept(self, job: JobSnapshot, plan: StoredPlan) -> None:
        """Accept a held offer: its job gets the offered promise and plan."""
        facts = replace(job, newcomer=False, promised=True, stored_plan=plan)
        self.jobs[job.id] = Running(facts)
        self.promised[job.id] = job.deadline_at
        self.dirty = True

    def lose_server(self, number: int) -> None:
        """Take a server down: its jobs stop and release their GPUs."""
        first = sum(server.gpus for server in self.servers[:number])
        lost = set(range(first, first + self.servers[number].gpus))
        self.servers = tuple(
            replace(server, usable=server.usable and place != number)
            for place, server in enumerate(self.servers)
        )
        for running in self.jobs.values():
            if lost & set(running.facts.placement):
                running.facts = replace(running.facts, gpus_now=0, placement=(), pause_left_seconds=0.0)
        self.dirty = True

    # Deciding --------------------------------------------------------------------------------

    def _admit(self, newcomers: Sequence[JobSnapshot], early_stops: dict[str, float]) -> None:
        snapshot = self.snapshot(newcomers, self.frozen_until())
        ask = admit if self.policy is None else self.policy.admit
        decision = ask(snapshot)
        assert decision.changes == ()
        assert_same(decision, ask(shuffled(snapshot)))
        self._welcome(newcomers, decision, early_stops)
        for job_id, running in self.jobs.items():
            if job_id in decision.plans:
                running.facts = replace(running.facts, stored_plan=decision.plans[job_id])
        self.dirty = True

    def _replan(self, newcomers: Sequence[JobSnapshot], early_stops: dict[str, float]) -> None:
        snapshot = self.snapshot(newcomers, self.now)
        ask = replan if self.policy is None else self.policy.replan
        decision = ask(snapshot)
        assert_same(decision, ask(shuffled(snapshot)))
        self._welcome(newcomers, decision, early_stops)
        changes = {change.job_id: change for change in decision.changes}
        assert len(changes) == len(decision.changes)
        for job_id, running in self.jobs.items():
            change = changes.get(job_id)
            pause = running.facts.pause_left_seconds
            if change is not None:
                pause = max(pause, change.pause_seconds) if change.gpus_after else 0.0
                self.migrations += change.kind.value == "migrate"
            elif job_id in decision.placements:
                assert sorted(decision.placements[job_id]) == sorted(running.facts.placement)
            addresses = decision.placements[job_id]
            running.facts = replace(
                running.facts,
                gpus_now=len(addresses),
                placement=addresses,
                pause_left_seconds=pause,
                stored_plan=decision.plans.get(job_id),
                flexible=decision.flexible.get(job_id, ()),
            )
        self.used_stored_plans += decision.used_stored_plans
        self.dirty = False
        moved = bool(decision.changes)
        self.slot_ends_at = slot_end_after(self.slot_ends_at, self.now, self.slot, moved=moved)
        self.wake_at = decision.next_wake_at if decision.next_wake_at > self.now + 1e-9 else inf
        self._check_allocation(decision)

    def _welcome(
        self, newcomers: Sequence[JobSnapshot], decision: Decision, early_stops: dict[str, float]
    ) -> None:
        self.decisions.append(decision)
        self.at_risk |= set(decision.at_risk)
        verdicts = {verdict.job_id: verdict for verdict in decision.verdicts}
        assert set(verdicts) == {newcomer.id for newcomer in newcomers}
        for newcomer in newcomers:
            verdict = verdicts[newcomer.id]
            if not verdict.admitted:
                self.declined.add(newcomer.id)
                continue
            if verdict.promised:
                self.promised[newcomer.id] = newcomer.deadline_at
            facts = replace(
                newcomer,
                newcomer=False,
                promised=verdict.promised,
                stored_plan=decision.plans.get(newcomer.id),
            )
            self.jobs[newcomer.id] = Running(facts, early_stops.get(newcomer.id, inf))

    # Watching --------------------------------------------------------------------------------

    def _check_allocation(self, decision: Decision) -> None:
        usable: set[int] = set()
        first = 0
        for server in self.servers:
            if server.usable:
                usable |= set(range(first, first + server.gpus))
            first += server.gpus
        assigned: set[int] = set()
        for job_id, addresses in decision.placements.items():
            assert not assigned & set(addresses), f"a GPU of {job_id} has two owners"
            assert set(addresses) <= usable
            assigned |= set(addresses)
            levels = self.jobs[job_id].facts.curve.levels if job_id in self.jobs else ()
            assert len(addresses) == 0 or len(addresses) in levels
        self._check_plans(len(usable))

    def _check_plans(self, gpus: int) -> None:
        """Check that the stored plans together fit the cluster in every slot."""
        plans = [running.facts.stored_plan for running in self.jobs.values() if running.facts.stored_plan]
        plans += [offer.plan for offer in self.offers]
        for at in sorted({float(start) for plan in plans for start in plan.start if start >= self.now}):
            middle = at + EXACT
            held = sum(int(plan.gpus[(plan.start <= middle) & (middle < plan.end)].sum()) for plan in plans)
            assert held <= gpus, f"{held} of {gpus} GPUs planned at {at}"

    def late(self) -> dict[str, float]:
        """Return the promised jobs that were late, and by how much."""
        return {
            job_id: self.completed_at.get(job_id, inf) - deadline
            for job_id, deadline in self.promised.items()
            if self.completed_at.get(job_id, inf) > deadline + EXACT
        }


def shuffled(snapshot: Snapshot) -> Snapshot:
    """Return the same snapshot with its jobs in another order."""
    return replace(snapshot, jobs=tuple(reversed(snapshot.jobs)))


def assert_same(first: Decision, second: Decision) -> None:
    """Assert that two decisions are equal for any order of the jobs."""
    assert [(v.job_id, v.admitted, v.promised, v.reason) for v in first.verdicts] == [
        (v.job_id, v.admitted, v.promised, v.reason) for v in second.verdicts
    ]
    assert first.placements == second.placements
    assert first.changes == second.changes
    assert first.plans.keys() == second.plans.keys()
    for job_id, plan in first.plans.items():
        assert np.array_equal(plan.gpus, second.plans[job_id].gpus)
        assert np.array_equal(plan.start, second.plans[job_id].start)
        assert plan.finish_at == second.plans[job_id].finish_at
