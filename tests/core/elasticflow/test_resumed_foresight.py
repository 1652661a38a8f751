"""Forecasts resumed from a stored state equal forecasts from the beginning."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from kernels.compiling import YES
from scheduling.core.elasticflow import offers
from scheduling.core.placement import resumed_foresight
from scheduling.core.placement.foresight import (
    Script,
    Stage,
    fixed_at_first,
    foresee_moves,
    planned_events,
)
from scheduling.core.placement.repacking import Seating
from scheduling.core.placement.resumed_foresight import ForesightFromNow
from scheduling.core.plans.charging import NO_CHARGES, Charges, charged_finish, slack_of
from scheduling.core.problem.problem import build_problem
from scheduling.core.question.arrays import Draft, Plans, no_plans, set_plan
from scheduling.core.question.decision import Decision
from scheduling.core.question.snapshot import (
    BlockedGpus,
    Fill,
    HeldOffer,
    IntArray,
    JobSnapshot,
    PlannerSettings,
    Snapshot,
)
from simulation.policies import policy_named
from tests.core import building
from tests.core.building import servers, snapshot
from tests.core.elasticflow.test_bursts import random_newcomers

SHAPES = ((4, 4, 4), (8, 8), (6, 6, 6), (8, 6, 2), (4, 2, 4, 2), (2, 2, 2, 2, 2, 2))


class Compared:
    """Compares every resumed forecast with one from the beginning."""

    def __init__(self) -> None:
        self.resumed = 0
        self.with_moves_before = 0
        self._original = ForesightFromNow.moves

    def moves(self, foresight: ForesightFromNow, script: Script, rows: IntArray) -> tuple[bool, Charges]:
        feasible, moves = self._original(foresight, script, rows)
        expected = whole_forecast(foresight, script, rows)
        assert feasible == expected[0]
        if feasible:
            for first, second in zip(moves, expected[1], strict=True):
                assert np.array_equal(first, second)
        self.resumed += foresight.spared > 0
        if foresight.spared:
            began = foresight._played.events.time[foresight.spared] if foresight._played else 0.0
            self.with_moves_before += bool((moves.time < began).any())
        return feasible, moves


def whole_forecast(foresight: ForesightFromNow, script: Script, rows: IntArray) -> tuple[bool, Charges]:
    """Return the forecast that plays every planned change of size from the present placement on."""
    stage, seating = foresight._stage, foresight._seating
    slack = slack_of(stage.jobs, script.plans, rows, script.latest, NO_CHARGES)
    occupancy = seating.fresh(slack)
    homeless = seating.enter(occupancy, rows)
    events = planned_events(script.plans, rows, occupancy.size, foresight._origin, YES)
    fixed = fixed_at_first(stage.jobs, rows, events, foresight._origin)
    return foresee_moves(stage, occupancy, script, NO_CHARGES, events, homeless, fixed)


@pytest.fixture
def compared() -> Compared:
    return Compared()


def random_life(chance: Random, steps: int) -> None:
    """Submit bursts of newcomers to a running cluster with locked, blocked, scattered and held GPUs."""
    shape = chance.choice(SHAPES)
    settings = PlannerSettings(
        slot_seconds=5.0, fill=chance.choice(list(Fill)), reserve_servers=chance.randrange(2),
        reserve_slack_seconds=6.0,
    )  # fmt: skip
    cluster = Snapshot(0.0, 3.0, servers(*shape), (), settings=settings)
    policy = policy_named(chance.choice(("punctual", "punctual", "elasticflow")))
    for step in range(steps):
        burst = random_newcomers(chance.randrange(10_000), chance.randint(8, 16), pauses=True)
        arrivals = tuple(
            replace(
                job, id=f"{step}-{job.id}", submitted_at=cluster.now + job.submitted_at * 1e-3,
                deadline_at=cluster.now + job.deadline_at,
            )
            for job in burst
        )  # fmt: skip
        cluster = disturbed(chance, replace(cluster, jobs=(*cluster.jobs, *arrivals)), sum(shape))
        cluster = later(cluster, policy.admit(cluster), cluster.next_slot_at)
        offer = offers.find_offer(cluster, replace(arrivals[0], id="asks", deadline_at=cluster.now + 90.0))
        held_offers = (HeldOffer("held", offer.plan, cluster.now + 120.0),) if offer else ()
        cluster = replace(cluster, held_offers=held_offers)
        cluster = later(cluster, policy.replan(cluster), cluster.now + 7.0)


def disturbed(chance: Random, cluster: Snapshot, gpus: int) -> Snapshot:
    """Lock some jobs, scatter one over unaligned GPUs, and block some GPUs for a while."""
    free = set(range(gpus)) - {address for job in cluster.jobs for address in job.placement}
    jobs: list[JobSnapshot] = []
    for job in cluster.jobs:
        scattered = (
            tuple(sorted(chance.sample(sorted(free), len(job.placement))))
            if (job.placement and len(job.placement) <= len(free) and chance.random() < 0.2)
            else ()
        )
        free -= set(scattered)
        jobs.append(
            replace(
                job,
                placement=scattered or job.placement,
                locked=bool(job.placement) and chance.random() < 0.2,
            )
        )
    blocked = tuple(
        BlockedGpus((address,), cluster.now + chance.uniform(5.0, 40.0))
        for address in sorted(free)
        if chance.random() < 0.15
    )
    return replace(cluster, jobs=tuple(jobs), blocked=blocked)


def later(cluster: Snapshot, decision: Decision, now: float) -> Snapshot:
    """Return the cluster a little after the decision took effect."""
    verdicts = {verdict.job_id: verdict for verdict in decision.verdicts}
    jobs = []
    for job in cluster.jobs:
        verdict = verdicts.get(job.id)
        if verdict is not None and not verdict.admitted or not job.placement and job.deadline_at < now:
            continue
        placement = decision.placements.get(job.id, job.placement)
        jobs.append(
            replace(
                job, newcomer=False, promised=job.promised or bool(verdict and verdict.promised),
                stored_plan=decision.plans.get(job.id, job.stored_plan), placement=placement,
                gpus_now=len(placement), locked=False,
                remaining_iterations=max(1.0, job.remaining_iterations - 5.0 * len(placement)),
            )
        )  # fmt: skip
    return replace(
        cluster, now=now, next_slot_at=now + 3.0, jobs=tuple(jobs), blocked=(), memory=decision.memory
    )


def test_forecasts_resumed_in_bursts_equal_full_forecasts(compared: Compared) -> None:
    def moves(foresight: ForesightFromNow, *arguments: Any) -> tuple[bool, Charges]:
        return compared.moves(foresight, *arguments)

    with (
        patch.object(ForesightFromNow, "moves", moves),
        patch.object(resumed_foresight, "FROM_THE_BEGINNING", 1),
        patch.object(resumed_foresight, "LEAST_BETWEEN", 1),
    ):
        for seed in range(8):
            random_life(Random(seed), 4)
    assert compared.resumed > 100
    assert compared.with_moves_before > 4


SLOTS = 24


class RandomPlans:
    """Random plans that never exceed the cluster; one job's plan changes at a time."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        shape = chance.choice(SHAPES)
        self.gpus = sum(shape)
        free = list(range(self.gpus))
        jobs = [self._job(number, free) for number in range(chance.randint(6, 12))]
        blocked = tuple(
            BlockedGpus((free.pop(chance.randrange(len(free))),), 10.0 * chance.randint(1, SLOTS))
            for _ in range(min(len(free) - 1, chance.randrange(3)))
        )
        settings = PlannerSettings(slot_seconds=10.0)
        self.problem = build_problem(snapshot(shape, *jobs, settings=settings, blocked=blocked))
        self.plans = no_plans(len(jobs))
        self.latest = np.full(len(jobs), inf)
        self.chosen = set(range(len(jobs)))
        self.used = np.zeros(SLOTS, dtype=np.int64)
        for until in self.problem.blocked_until:
            self.used[: int(until / 10.0)] += 1
        for row in range(len(jobs)):
            self.plan(row, self.problem.jobs.gpus[row])

    def _job(self, number: int, free: list[int]) -> JobSnapshot:
        """Return a job that may run, also on an unaligned block."""
        chance = self.chance
        size = min(chance.choice((0, 0, 1, 2, 4)), len(free))
        size = size if size != 3 else 2
        first = next(
            (low for low in range(0, self.gpus, size or 1) if {*range(low, low + size)} <= {*free}), 0
        )
        aligned = tuple(range(first, first + size))
        addresses = aligned if {*aligned} <= {*free} and chance.random() < 0.8 else tuple(sorted(free[:size]))
        free[:] = [address for address in free if address not in addresses]
        built = building.job(
            f"job-{number:02d}", chance.uniform(20.0, 400.0), 1e4, {1: 1.0, 2: 1.8, 4: 3.2}, pause=3.0,
            newcomer=not addresses, promised=bool(addresses), gpus_now=len(addresses), placement=addresses,
            locked=bool(addresses) and chance.random() < 0.2,
        )  # fmt: skip
        return replace(built, submitted_at=float(number))

    def change(self) -> None:
        """Change one job's plan, its latest end, or its membership."""
        row = self.chance.randrange(self.latest.size)
        kind = self.chance.random()
        if kind < 0.3:
            self.judge(row)
        elif kind < 0.45 and not self.problem.jobs.gpus[row]:
            self.chosen ^= {row}
        else:
            self.plan(row, None)

    def plan(self, row: int, head: int | None) -> None:
        """Return a plan with new GPUs from a random slot on. ``head``: GPUs of the first slot."""
        sizes_by_slot = self._held(row)
        self.used -= sizes_by_slot
        begin = 0 if head is not None else self.chance.randrange(SLOTS)
        size = 0
        for slot in range(begin, SLOTS):
            room = self.gpus - int(self.used[slot])
            if slot == 0 and (head is not None or self.problem.jobs.locked[row]):
                size = int(self.problem.jobs.gpus[row])
            elif self.chance.random() < 0.3 or size > room:
                size = self.chance.choice([0, *(gpus for gpus in (1, 2, 4) if gpus <= room)])
            sizes_by_slot[slot] = size
        self.used += sizes_by_slot
        starts = [
            0,
            *(slot for slot in range(1, SLOTS) if sizes_by_slot[slot] != sizes_by_slot[slot - 1]),
            SLOTS,
        ]
        times = np.array([10.0 * slot for slot in starts])
        sizes = np.array([*(sizes_by_slot[slot] for slot in starts[:-1]), 0], dtype=np.int64)
        self.plans = Plans(*set_plan(self.plans, row, Draft(times, sizes), times.size, inf, 0.0))
        self.judge(row)

    def judge(self, row: int) -> None:
        """Set a latest end that leaves more or less time than a move takes."""
        nothing = NO_CHARGES
        finish, _ = charged_finish(self.problem.jobs, self.plans, row, nothing.time, nothing.seconds)
        self.latest[row] = min(finish, 1e4) + self.chance.choice((0.5, 2.0, 4.0, 7.0, inf))

    def _held(self, row: int) -> IntArray:
        sizes_by_slot = np.zeros(SLOTS, dtype=np.int64)
        for piece in range(self.plans.length[row]):
            sizes_by_slot[int(self.plans.time[row, piece] / 10.0) :] = self.plans.gpus[row, piece]
        return sizes_by_slot


@pytest.mark.parametrize(("least_between", "most_states"), [(1, 32), (1, 3), (4, 5)])
def test_forecast_resumed_from_a_stored_state_equals_the_full_one(
    compared: Compared, least_between: int, most_states: int
) -> None:
    with (
        patch.object(resumed_foresight, "FROM_THE_BEGINNING", 1),
        patch.object(resumed_foresight, "LEAST_BETWEEN", least_between),
        patch.object(resumed_foresight, "MOST_STATES", most_states),
    ):
        for seed in range(100):
            random_plans = RandomPlans(Random(seed))
            problem = random_plans.problem
            seating = Seating(problem.present_placement)
            order = np.argsort(problem.blocked_until, kind="stable")
            stage = Stage(
                problem.blocks, problem.jobs, problem.by_submission, problem.blocked[order],
                problem.blocked_until[order],
            )  # fmt: skip
            foresight = ForesightFromNow(seating, stage, 0.0)
            suspension_order = np.arange(random_plans.latest.size)
            for _ in range(12):
                rows = np.array(sorted(random_plans.chosen), dtype=np.int64)
                compared.moves(
                    foresight, Script(random_plans.plans, random_plans.latest.copy(), suspension_order), rows
                )
                random_plans.change()
    assert compared.resumed > 300
    assert compared.with_moves_before > 100
