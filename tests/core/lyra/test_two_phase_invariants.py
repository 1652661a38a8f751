"""Every division keeps Lyra's invariants over random jobs, fleets, options and events."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.lyra.base_demands import BaseOrder, Skip
from scheduling.core.lyra.fleet import BASE, FLEXIBLE, NO_ROLE, Fleet
from scheduling.core.lyra.flexible_demands import Growth
from scheduling.core.lyra.tick import Division, TwoPhase
from scheduling.core.lyra.worker_changes import WorkerChange
from tests.core.dividing import Job, division_of, fleet_of, places_in

OPTIONS = st.builds(
    TwoPhase,
    order=st.sampled_from(list(BaseOrder)),
    growth=st.sampled_from([Growth.KNAPSACK, Growth.KNAPSACK, *Growth]),
    change_seconds=st.sampled_from([0.0, 0.0, 20.0]),
    ageing_weight=st.sampled_from([0.0, 1.0]),
    flexible_in_holes=st.booleans(),
    naive=st.booleans(),
    efficiency=st.sampled_from([0.7, 1.0]),
    reconsider=st.booleans(),
    value_total_work=st.booleans(),
    emptied_as_idle=st.booleans(),
    elastic_moves=st.booleans(),
)
SIZES = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), max_size=5)


@st.composite
def jobs_to_come(draw):
    """Draw a pending job of any existing shape, with values that often tie."""
    base = draw(st.integers(1, 4))
    expansion = draw(st.sampled_from([1, 3]))
    shape = draw(st.sampled_from(["fixed", "linear", "powers"]))
    most = 1 if shape == "fixed" else draw(st.integers(2, 5))
    if shape == "powers":
        base = 2 ** draw(st.integers(0, 2))
        numbers = [base * 2**step for step in range(min(most, 3))]
    else:
        numbers = list(range(base, base + most))
    owned = {number: float(number) for number in numbers}
    if shape == "linear":
        lent = {number: number / expansion for number in range(expansion * base, expansion * numbers[-1] + 1)}
    else:
        lent = {number * expansion: float(number) for number in numbers}
    kinds = draw(st.sampled_from(["owned", "both", "both", "lent"]))
    return Job(
        draw(st.sampled_from([10.0, 60.0, 60.0, 333.0, 1000.0])),
        {} if kinds == "lent" else owned,
        {} if kinds == "owned" else lent,
        draw(st.sampled_from([1, 1, 2, 4, 8])),
        mixes=kinds == "both" and draw(st.booleans()),
        work=draw(st.sampled_from([None, 1000.0])),
        waiting_seconds=draw(st.sampled_from([0.0, 30.0])),
        grown_at=draw(st.sampled_from([0.0, 5.0, 9.0])),
    )


@st.composite
def stories(draw):
    """Draw the GPUs of owned servers, those of loaned servers, and steps. A step: the jobs that arrive, the
    running jobs that end, and a loaned server that leaves or returns."""
    owned, lent = draw(SIZES), draw(SIZES)
    steps = [
        (
            draw(st.lists(jobs_to_come(), max_size=6)),
            draw(st.sets(st.integers(0, 11), max_size=3)),
            draw(st.one_of(st.none(), st.integers(0, 4))),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    return owned, lent, steps


@given(stories(), OPTIONS)
def test_every_division_keeps_its_rules_and_is_repeatable(story, options):
    owned, lent, steps = story
    present = [True] * len(lent)
    jobs: list[Job] = []
    for arrivals, ended, switched in steps:
        jobs = [job for number, job in enumerate(jobs) if number not in ended or not job.places]
        jobs += arrivals
        if switched is not None and switched < len(lent):
            present[switched] = not present[switched]
            if not present[switched]:
                jobs = [without_server(job, len(owned) + switched) for job in jobs]
        fleet = fleet_of(owned, [gpus * there for gpus, there in zip(lent, present, strict=True)])
        division = division_of(fleet, jobs, options)
        check_capacity(fleet, jobs, division)
        check_kinds(fleet, jobs, division)
        check_bases(fleet, jobs, division, options)
        check_roles(fleet, division, options)
        check_skips(fleet, jobs, division, options)
        jobs = settled(jobs, division)
        if any(jobs[number].mixes for number in division.admitted):
            # A mixing job may have taken GPUs for which flexible workers were too large: divide once more.
            division = division_of(fleet, jobs, options)
            jobs = settled(jobs, division)
        again = division_of(fleet, jobs, options)
        assert np.all(again.change == WorkerChange.UNCHANGED), "nothing happened in between"
        assert again.admitted.size == 0
        assert again.role.tolist() == division.role.tolist()
        assert again.rate.tolist() == division.rate.tolist()


@given(
    st.lists(jobs_to_come(), min_size=1, max_size=6),
    SIZES,
    SIZES,
    st.lists(jobs_to_come(), max_size=3),
    OPTIONS,
)
def test_movable_jobs_move_once_when_servers_arrive(jobs, owned, lent, arrivals, options):
    options = replace(options, elastic_moves=True)
    jobs = [job for job in jobs if not job.mixes]
    jobs = settled(jobs, division_of(fleet_of(owned, [0] * len(lent)), jobs, options))
    jobs += [job for job in arrivals if not job.mixes]
    fleet = fleet_of(owned, lent)
    division = division_of(fleet, jobs, options)
    check_capacity(fleet, jobs, division)
    check_kinds(fleet, jobs, division)
    check_bases(fleet, jobs, division, options)
    check_roles(fleet, division, options)
    check_skips(fleet, jobs, division, options)
    again = division_of(fleet, settled(jobs, division), options)
    assert np.all(again.change == WorkerChange.UNCHANGED), "nothing happened in between"


def settled(jobs: list[Job], division: Division) -> list[Job]:
    """Return the jobs with the workers that they received."""
    return [replace(job, places=places_in(division.workers, number)) for number, job in enumerate(jobs)]


def without_server(job: Job, server: int) -> Job:
    """Return the job after a server was taken back: stopped if it had a base worker there, else smaller."""
    base, _ = job.places.get(server, (0, 0))
    if base:
        return replace(job, places={})
    return replace(job, places={other: workers for other, workers in job.places.items() if other != server})


def check_capacity(fleet: Fleet, jobs: list[Job], division: Division) -> None:
    used = np.zeros(fleet.gpus.size, dtype=np.int64)
    for number, job in enumerate(jobs):
        for server, (base, flexible) in places_in(division.workers, number).items():
            assert base >= 0
            assert flexible >= 0
            assert base + flexible > 0
            used[server] += (base + flexible) * job.gpus
    assert np.all(used <= fleet.gpus)


def check_kinds(fleet: Fleet, jobs: list[Job], division: Division) -> None:
    """Check that a job runs on one kind unless it mixes, on an allowed number of workers, at their rate."""
    for number, job in enumerate(jobs):
        totals = [0, 0]
        for server, workers in places_in(division.workers, number).items():
            totals[int(fleet.on_loan[server])] += sum(workers)
        assert job.owned or totals[0] == 0
        assert job.lent or totals[1] == 0
        if totals[0] and totals[1]:
            assert job.mixes
            worth = totals[0] / max(job.owned) + totals[1] / max(job.lent)
            assert worth <= 1 + 1e-9
            worth = totals[0] / min(job.owned) + totals[1] / min(job.lent)
            assert worth >= 1 - 1e-9
            assert division.rate[number] > 0
        elif sum(totals):
            listed = job.lent if totals[1] else job.owned
            assert division.rate[number] == listed[sum(totals)]
        else:
            assert division.rate[number] == 0


def check_bases(fleet: Fleet, jobs: list[Job], division: Division, options: TwoPhase) -> None:
    """Check that base workers never stop and never move, except all together onto loan with
    ``elastic_moves``; a started job has all of its base workers, a skipped job has no workers."""
    for number, job in enumerate(jobs):
        bases = {server: base for server, (base, _) in places_in(division.workers, number).items() if base}
        before = {server: base for server, (base, _) in job.places.items() if base}
        if job.places and options.elastic_moves and bases != before:
            assert len(job.owned) > 1 or len(job.lent) > 1
            assert not job.mixes
            assert not any(fleet.on_loan[server] for server in before)
            assert all(fleet.on_loan[server] for server in bases)
            assert sum(bases.values()) == min(job.lent)
        elif job.places:
            assert bases == before
        elif number in division.admitted:
            assert division.change[number] == WorkerChange.START
            assert sum(bases.values()) >= min([*job.owned, *job.lent])
        else:
            assert number in division.skipped
            assert not places_in(division.workers, number)


def check_roles(fleet: Fleet, division: Division, options: TwoPhase) -> None:
    base = np.bincount(division.workers.server, division.workers.base, fleet.gpus.size)
    flexible = np.bincount(division.workers.server, division.workers.flexible, fleet.gpus.size)
    expected = np.where(base > 0, BASE, np.where(flexible > 0, FLEXIBLE, NO_ROLE))
    assert division.role.tolist() == np.where(fleet.on_loan, expected, NO_ROLE).tolist()
    if not options.naive and not options.flexible_in_holes and options.growth is not Growth.ROUND_ROBIN:
        assert not np.any(fleet.on_loan & (base > 0) & (flexible > 0))


def check_skips(fleet: Fleet, jobs: list[Job], division: Division, options: TwoPhase) -> None:
    """Check that flexible workers delay no job: a job without room could not start without them either."""
    free = fleet.gpus.copy()
    for number, job in enumerate(jobs):
        for server, (base, _) in places_in(division.workers, number).items():
            free[server] -= base * job.gpus
    gpus_left = [int(free[fleet.on_loan == lent].sum()) for lent in (False, True)]
    for number, reason in zip(division.skipped.tolist(), division.reason.tolist(), strict=True):
        job = jobs[number]
        demands = [min(rates) * job.gpus if rates else None for rates in (job.owned, job.lent)]
        if reason == Skip.HELD_UP:
            assert options.order is BaseOrder.FIRST_COME
        if reason == Skip.NO_ROOM and not job.mixes and holds_no_gpus_back(division, options):
            assert all(
                demand is None or demand > gpus for demand, gpus in zip(demands, gpus_left, strict=True)
            )


def holds_no_gpus_back(division: Division, options: TwoPhase) -> bool:
    """Return whether no GPUs are held back for a fragmented job."""
    return options.reconsider or Skip.FRAGMENTED not in division.reason
