"""Chronus: acceptance by packing into the latest leases, the program for the next lease, best effort on the
rest."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from simulation.baselines.against_elasticflow.chronus import ACCEPTED, LEASE_SECONDS, OPPORTUNISTIC
from simulation.baselines.against_elasticflow.chronus_kernels import EVERYBODY_FITS, pack_latest
from simulation.baselines.against_elasticflow.chronus_program import first_lease
from tests.core.building import job, sizes, snapshot
from tests.policies.asking import FLAT, go_on, replanned, slots

LEASE = slots(LEASE_SECONDS)


def due(id: str, seconds: float, leases: float, gpus: int = 1, **facts):
    """A job of ``seconds`` on ``gpus`` GPUs that is due in so many leases."""
    facts.setdefault("submitted_at", 0.0)
    deadline = facts["submitted_at"] + leases * LEASE_SECONDS
    return job(id, seconds * gpus, deadline, FLAT, requested_gpus=gpus, **facts)


def standing(decision) -> dict[str, float]:
    return {id: memory[0] for id, memory in decision.job_memory.items()}


def pack(jobs, gpus):
    """Pack (size, leases needed, leases until due) in the given order."""
    sizes, needed, until_due = (np.array(column, dtype=np.int64) for column in zip(*jobs, strict=True))
    failing, first = pack_latest(np.arange(len(jobs)), sizes, needed, until_due, gpus)
    return int(failing), first.tolist()


def test_jobs_are_packed_as_late_as_possible():
    assert pack([(1, 1, 3), (1, 2, 3)], 1) == (EVERYBODY_FITS, [False, True])
    assert pack([(1, 1, 3), (1, 1, 3)], 2) == (EVERYBODY_FITS, [False, False])


def test_packing_names_the_first_that_does_not_fit():
    assert pack([(2, 2, 2), (1, 1, 2)], 2)[0] == 1
    assert pack([(1, 3, 2)], 2)[0] == 0


def test_a_job_is_accepted_as_long_as_all_can_be_packed():
    jobs = [due("a", 200, 2), due("b", 200, 2), due("c", 200, 2)]
    decision = replanned("chronus", snapshot(1, *jobs, settings=LEASE))
    assert standing(decision) == {"a": ACCEPTED, "b": ACCEPTED, "c": OPPORTUNISTIC}
    assert all(verdict.admitted and not verdict.promised for verdict in decision.verdicts)


def test_an_estimate_carries_a_margin():
    tight = due("tight", 239, 1)
    assert standing(replanned("chronus", snapshot(1, tight, settings=LEASE))) == {"tight": OPPORTUNISTIC}


def test_accepted_jobs_run_in_their_leases_and_end_in_time():
    asked = snapshot(1, due("a", 200, 2), due("b", 200, 2), due("c", 200, 2), settings=LEASE)
    first, asked = go_on("chronus", asked, LEASE_SECONDS)
    ran_first = {id for id, gpus in sizes(first).items() if gpus}
    left = tuple(job_snapshot for job_snapshot in asked.jobs if job_snapshot.id not in ran_first)
    second = replanned("chronus", replace(asked, jobs=left))
    ran_second = {id for id, gpus in sizes(second).items() if gpus}
    assert ran_first | ran_second == {"a", "b"}


def test_best_effort_runs_on_what_leases_leave():
    accepted, free = due("accepted", 200, 1, gpus=2), job("free", 1000, measured=FLAT, requested_gpus=1)
    assert sizes(replanned("chronus", snapshot(2, accepted, free, settings=LEASE))) == {
        "accepted": 2,
        "free": 0,
    }
    assert sizes(replanned("chronus", snapshot(4, accepted, free, settings=LEASE))) == {
        "accepted": 2,
        "free": 1,
    }


def test_a_lease_is_not_taken_away_before_it_ends():
    asked = snapshot(1, due("holder", 2000, 20), settings=slots(60.0))
    running, asked = go_on("chronus", asked, 60.0, due("urgent", 100, 1.5, submitted_at=60.0))
    assert sizes(running) == {"holder": 1}
    assert sizes(replanned("chronus", asked)) == {"holder": 1, "urgent": 0}


def test_jobs_that_cannot_be_on_time_any_more_come_last():
    hopeless = due("hopeless", 500, 1)
    patient = job("patient", 900, measured=FLAT, requested_gpus=1, submitted_at=1.0)
    assert sizes(replanned("chronus", snapshot(1, hopeless, patient, settings=LEASE))) == {
        "hopeless": 0,
        "patient": 1,
    }


def test_notes_name_the_method_that_chose_the_lease():
    everybody = replanned("chronus", snapshot(4, due("a", 200, 2), settings=LEASE))
    assert everybody.notes == ("lease to every accepted job",)
    contended = [due("a", 200, 2), due("b", 200, 2), due("c", 200, 2)]
    assert replanned("chronus", snapshot(1, *contended, settings=LEASE)).notes == (
        "lease by the 0/1 program",
    )


def brute_force(jobs, gpus, most):
    """The best first lease over all ways to place every job's leases."""
    horizon = max(until for _, _, until in jobs)
    ways = []
    for _, needed, until in jobs:
        ways.append([way for way in product((0, 1), repeat=until) if sum(way) == needed])
    best = None
    for choice in product(*ways):
        used = [
            sum(
                size * way[lease] for (size, _, until), way in zip(jobs, choice, strict=True) if lease < until
            )
            for lease in range(horizon)
        ]
        if max(used, default=0) <= gpus and (best is None or (used[0] > best if most else used[0] < best)):
            best = used[0]
    return best


@drawn(
    st.lists(
        st.tuples(st.sampled_from([1, 2]), st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=4
    ),
    st.booleans(),
)
def test_the_program_finds_the_best_first_lease(jobs, most):
    """Against exhaustive search: it never uses more than needed or less than possible."""
    gpus = 2
    expected = brute_force(jobs, gpus, most)
    columns = [np.array(column, dtype=np.int64) for column in zip(*jobs, strict=True)]
    chosen = first_lease(columns[0], columns[1], columns[2], gpus, most_gpus=most)
    if expected is None:
        return
    assert chosen is not None
    used = int(columns[0][chosen].sum())
    assert used >= expected if most else used <= expected
    assert used <= gpus


@pytest.mark.parametrize(("most", "used"), [(True, 2), (False, 1)])
def test_the_program_uses_as_many_or_as_few_gpus_as_it_is_asked_to(most, used):
    """Two jobs of one GPU: one is due in this lease, the other in the next."""
    sizes_, needed, until = (np.array(column) for column in ([1, 1], [1, 1], [1, 2]))
    chosen = first_lease(sizes_, needed, until, 2, most_gpus=most)
    assert chosen is not None
    assert int(chosen.sum()) == used
