"""Ageing under `punctual`: a long job without a deadline is served in bounded time beside a stream of short
jobs."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.question.snapshot import JobSnapshot, PlannerSettings
from simulation.policies import policy_named
from tests.core.building import job, servers
from tests.core.executing import Cluster
from tests.plugins.examples import examples

SLOT = 60.0
GPUS = 4


@dataclass(frozen=True)
class Stream:
    """A long job, a stream of short jobs that need all GPUs, and some jobs with deadlines."""

    long: JobSnapshot
    gpus: int
    short: list[JobSnapshot]
    short_gpus: dict[str, int]
    promised: list[JobSnapshot]

    def served_by(self, weight: float) -> float:
        """Return the latest time at which the long job may end.

        While it waits, at least ``GPUS - gpus + 1`` GPUs do work that comes before it: promises, and short
        jobs submitted before the long job's weighted waiting time reached its running time.
        """
        until = self.long.remaining_iterations / weight
        before = [item for item in self.short if item.submitted_at <= until]
        seconds = sum(self.short_gpus[item.id] * item.remaining_iterations for item in before)
        seconds += sum(item.remaining_iterations for item in self.promised)
        return seconds / (GPUS - self.gpus + 1) + self.long.remaining_iterations


def stream(seed: int, weight: float) -> Stream:
    """Return a random stream; all durations are whole slots."""
    draw = Random(seed)
    gpus = draw.choice([1, 2, 4])
    length = draw.randint(4, 7)
    long = job("long", length * SLOT, measured={gpus: 1.0})
    short: list[JobSnapshot] = []
    sizes: dict[str, int] = {}

    def add(slot: int) -> None:
        free = GPUS
        while free:
            size = draw.choice([size for size in (1, 2, 4) if size <= free])
            free -= size
            work = SLOT * draw.choice([1, 1, 2])
            arrival = job(f"short{len(short):04d}", work, measured={size: 1.0}, submitted_at=slot * SLOT)
            sizes[arrival.id] = size
            short.append(arrival)

    promised = [
        job(
            f"promised{number}", work * SLOT, (at + work + draw.randint(0, 4)) * SLOT, {1: 1.0},
            submitted_at=at * SLOT,
        )
        for number, at, work in (
            (number, draw.randint(0, 10), draw.randint(1, 5)) for number in range(draw.randint(0, 3))
        )
    ]  # fmt: skip
    slot = 0
    while True:
        add(slot)
        slot += 1
        so_far = Stream(long, gpus, short, sizes, promised)
        # Short jobs arrive until well after the long job must have been served.
        if slot * SLOT > long.remaining_iterations / weight and slot * SLOT > so_far.served_by(weight) + SLOT:
            return so_far


def executed(work: Stream, weight: float) -> Cluster:
    rules = PlannerSettings(slot_seconds=SLOT, ageing_weight=weight)
    cluster = Cluster(servers(GPUS), rules, policy=policy_named("punctual"))
    last = max(arrival.submitted_at for arrival in work.short)
    cluster.run([work.long, *work.short, *work.promised], until=last)
    return cluster


@settings(max_examples=examples(0.4))
@given(seed=st.integers(min_value=0, max_value=2**32 - 1), weight=st.sampled_from([0.5, 1.0, 2.0]))
def test_long_job_is_served_in_bounded_time_and_promises_are_kept(seed: int, weight: float) -> None:
    work = stream(seed, weight)
    cluster = executed(work, weight)
    assert cluster.completed_at["long"] <= work.served_by(weight) + 1e-6
    # The run may end before some deadlines.
    assert [job_id for job_id in cluster.late() if cluster.promised[job_id] <= cluster.now] == []
    assert cluster.at_risk == set()


def test_without_ageing_a_long_job_waits_while_short_ones_arrive() -> None:
    work = stream(3, 1.0)
    assert "long" in executed(work, 1.0).completed_at
    assert "long" not in executed(work, 0.0).completed_at


@pytest.mark.parametrize(("policy", "first"), [("punctual", "long"), ("elasticflow", "short")])
def test_published_policies_stay_as_published(policy: str, first: str) -> None:
    """The long job has waited for more than its running time; the short one has just arrived."""
    rules = PlannerSettings(slot_seconds=SLOT, ageing_weight=1.0)
    waited = job("long", 1000.0, measured={4: 1.0}, newcomer=False, submitted_at=-2000.0)
    short = job("short", 100.0, measured={4: 1.0}, submitted_at=0.0)
    cluster = Cluster(servers(GPUS), rules, policy=policy_named(policy))
    decision = policy_named(policy).replan(cluster.snapshot((waited, short), 0.0))
    assert [name for name, gpus in decision.placements.items() if gpus] == [first]
