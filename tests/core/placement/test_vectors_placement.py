"""Worked examples of placement: V8, V19, V20."""

from __future__ import annotations

from scheduling.core.decide import replan
from scheduling.core.placement.buddy_blocks import blocks_of
from scheduling.core.question.curves import curve_from_measurements
from scheduling.core.question.decision import ChangeKind
from scheduling.core.question.snapshot import JobSnapshot
from tests.core.building import after, job, servers, snapshot

FIXED = 1e6


def only(gpus):
    """A curve with one level, so that the wanted size is certain."""
    return {gpus: 1.0}


def place(cluster, *jobs):
    return replan(snapshot(cluster, *jobs))


def standing(name, placement, submitted_at=0.0):
    return job(
        name,
        FIXED,
        measured=only(len(placement)),
        newcomer=False,
        gpus_now=len(placement),
        placement=placement,
        submitted_at=submitted_at,
    )


def test_v8_counts_that_are_no_powers_of_two_are_no_levels():
    assert curve_from_measurements({7: 5.0, 8: 6.0}).levels.tolist() == [8]


def test_v19_arrivals_fill_the_tightest_free_block():
    arrivals = [("a1", 1), ("a2", 2), ("a3", 1), ("a4", 2), ("a5", 2)]
    placed: list[JobSnapshot] = []
    for number, (name, gpus) in enumerate(arrivals):
        newcomer = job(name, FIXED, measured=only(gpus), submitted_at=float(number))
        decision = place((4, 4), *placed, newcomer)
        placed = [after(item, decision, remaining=FIXED) for item in [*placed, newcomer]]
    assert {item.id: item.placement for item in placed} == {
        "a1": (0,), "a2": (2, 3), "a3": (1,), "a4": (4, 5), "a5": (6, 7),
    }  # fmt: skip


def test_v19_defragmentation_moves_as_few_jobs_as_possible():
    stay = [standing("a1", (0,), 1), standing("a3", (1,), 3), standing("a5", (6, 7), 5)]
    decision = place((4, 4), *stay, job("e", FIXED, measured=only(4), submitted_at=9.0))
    assert decision.placements == {"a1": (0,), "a3": (1,), "a5": (2, 3), "e": (4, 5, 6, 7)}
    moved = [change for change in decision.changes if change.kind is ChangeKind.MIGRATE]
    assert [(change.job_id, change.gpus_after) for change in moved] == [("a5", 2)]


def test_v20_a_growing_job_moves_rather_than_displace_its_neighbour():
    u = job("u", FIXED, measured=only(4), newcomer=False, gpus_now=2, placement=(0, 1))
    decision = place((4, 4), u, standing("v", (2, 3)))
    assert decision.placements == {"u": (4, 5, 6, 7), "v": (2, 3)}
    assert [change.job_id for change in decision.changes] == ["u"]


def test_a_job_larger_than_a_server_takes_whole_servers_even_apart():
    small = [standing("s", (2,))]
    decision = place((2, 2, 2), *small, job("large", FIXED, measured=only(4), submitted_at=1.0))
    assert decision.placements == {"s": (2,), "large": (0, 1, 4, 5)}


def test_servers_of_any_size_are_cut_into_aligned_blocks():
    blocks = blocks_of(servers(6, 3, 8))
    assert list(zip(blocks.base.tolist(), blocks.size.tolist(), strict=True)) == [
        (0, 4), (4, 2), (6, 2), (8, 1), (9, 8),
    ]  # fmt: skip
