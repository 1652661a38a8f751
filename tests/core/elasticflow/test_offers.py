"""Offers are verified by admission, held against other jobs, and kept once accepted."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.decide import admit, find_offer, replan, what_if
from scheduling.core.question.decision import ReasonCode
from scheduling.core.question.snapshot import HeldOffer
from tests.core.building import C3, C4, UNIT_SLOTS, after, job, sizes, snapshot, verdicts
from tests.core.executing import Cluster
from tests.core.workloads import random_workload

HOLD = replace(UNIT_SLOTS, offer_hold_seconds=3.0)
ONE = {1: 1.0}


def crowded():
    """Return two jobs that are promised one GPU each until 8 s."""
    jobs = [job("A", 8, 8, ONE), job("B", 8, 8, ONE)]
    first = replan(snapshot(2, *jobs, settings=HOLD))
    return [after(promised, first, remaining=8) for promised in jobs]


def test_an_offer_is_found_where_every_start_costs_a_pause():
    asking = job("C", 40, 5, C3, pause=1.5)
    verdict, offer = what_if(snapshot(2, settings=HOLD), asking)
    assert verdict.reason_code is ReasonCode.TOO_SLOW_ALONE
    assert offer is not None
    accepted = replace(asking, deadline_at=offer.deadline_at)
    assert verdicts(admit(snapshot(2, accepted, settings=HOLD))) == {"C": True}


def test_an_offer_is_a_later_deadline_that_admission_accepts():
    asking = job("C", 4, 5, C3, submitted_at=1.0)
    verdict, offer = what_if(snapshot(2, *crowded(), settings=HOLD), asking)
    assert verdict.reason_code is ReasonCode.WOULD_BREAK_PROMISE
    assert offer is not None
    assert offer.deadline_at > asking.deadline_at
    assert offer.plan.finish_at <= offer.deadline_at
    assert (
        min(float(start) for start, gpus in zip(offer.plan.start, offer.plan.gpus, strict=True) if gpus)
        >= 3.0
    )

    again = replace(asking, deadline_at=offer.deadline_at)
    assert verdicts(admit(snapshot(2, *crowded(), again, settings=HOLD))) == {"C": True}


def test_held_capacity_is_not_promised_to_others_before_the_hold_ends():
    base = crowded()
    asking = job("C", 4, 5, ONE, submitted_at=1.0)
    offer = find_offer(snapshot(2, *base, settings=HOLD), asking)
    assert offer is not None
    held = HeldOffer("offer", offer.plan, valid_until=3.0, job=replace(asking, deadline_at=offer.deadline_at))
    rival = job("R", 8, 16, ONE, submitted_at=2.0)
    other = job("Q", 8, 16, ONE, submitted_at=2.5)

    free = admit(snapshot(2, *base, rival, other, settings=HOLD))
    assert verdicts(free) == {"R": True, "Q": True}
    beside = admit(snapshot(2, *base, rival, other, settings=HOLD, held_offers=(held,)))
    assert verdicts(beside) == {"R": True, "Q": False}
    run_out = replace(held, valid_until=0.0)
    assert verdicts(admit(snapshot(2, *base, rival, other, settings=HOLD, held_offers=(run_out,)))) == {
        "R": True, "Q": True,
    }  # fmt: skip


def held_for(asking, gpus, settings):
    """Return an offer held for a job that an empty cluster declines."""
    offer = find_offer(snapshot(gpus, settings=settings), asking)
    assert offer is not None
    promised = replace(asking, deadline_at=offer.deadline_at, newcomer=False)
    return HeldOffer("offer", offer.plan, valid_until=settings.offer_hold_seconds, job=promised)


@pytest.mark.parametrize("slower", [1.0, 0.9], ids=["speed as believed", "slower than believed"])
def test_gpus_not_needed_by_a_held_offer_are_used(slower: float):
    # From second 60 on the offered job holds all GPUs, until it ends within a slot.
    settings = replace(UNIT_SLOTS, slot_seconds=5.0, offer_hold_seconds=60.0)
    held = held_for(job("C", 101.3, 5, C4, pause=1.5), 4, settings)
    assert held.job is not None
    measured = {gpus: slower * rate for gpus, rate in C4.items()}
    held = replace(held, job=replace(held.job, curve=job("C", 1, 5, measured, pause=1.5).curve))
    alone = job(
        "A", 500, measured=C4, pause=1.5, newcomer=False, gpus_now=1, placement=(0,), submitted_at=-5.0
    )
    tight = job("T", 20, 45, C4, pause=1.5)
    decision = replan(snapshot(4, alone, tight, settings=settings, held_offers=(held,)))
    assert verdicts(decision) == {"T": True}
    assert decision.notes == ()
    assert sum(sizes(decision).values()) == 4, "nothing is idle before the offer begins"
    full = job("F", 130, 100, C4, pause=1.5)
    assert verdicts(admit(snapshot(4, full, settings=settings, held_offers=(held,)))) == {"F": False}


def test_what_if_offers_nothing_when_the_job_fits():
    verdict, offer = what_if(snapshot(2), job("A", 2, 4, ONE))
    assert verdict.promised
    assert offer is None


def test_no_offer_is_made_where_no_deadline_can_be_kept():
    assert find_offer(snapshot(2), job("A", 2, 4, {8: 1.0})) is None


@given(seed=st.integers(min_value=0, max_value=2**32 - 1))
def test_accepted_offers_are_kept_like_any_promise(seed: int):
    """Declined jobs accept their offers at some time of the hold; all jobs are on time."""
    workload = random_workload(seed, most_jobs=9, best_effort=0.1, tightness=(0.9, 1.8))
    slot = workload.settings.slot_seconds
    cluster = Cluster(workload.servers, replace(workload.settings, offer_hold_seconds=2.5 * slot))
    rng = Random(seed)
    last = max(arrival.submitted_at for arrival in workload.jobs)
    cluster.run(workload.jobs, until=last + 1e-3)
    for declined in [arrival for arrival in workload.jobs if arrival.id in cluster.declined]:
        present = cluster.snapshot((), cluster.frozen_until())
        offer = find_offer(present, declined)
        if offer is None or cluster.offers:
            continue
        accepted = replace(declined, id=f"{declined.id}-accepted", deadline_at=offer.deadline_at)
        cluster.offers = (
            HeldOffer(
                accepted.id, offer.plan, cluster.now + 2.5 * slot, job=replace(accepted, newcomer=False)
            ),
        )
        cluster.run([], until=cluster.now + rng.choice([0.4, 1.3, 2.3]) * slot)
        cluster.offers = ()
        cluster.accept(accepted, offer.plan)
    cluster.run([])
    assert cluster.late() == {}
    assert cluster.at_risk == set()


@pytest.mark.parametrize("hold", [0.0, 2.0])
def test_an_offer_starts_after_its_hold(hold):
    offer = find_offer(snapshot(2, settings=replace(HOLD, offer_hold_seconds=hold)), job("A", 2, 0.5, ONE))
    assert offer is not None
    assert offer.deadline_at == pytest.approx(hold + 2.0)
