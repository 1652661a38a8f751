"""Placement: worked examples (G1), failure domains and host memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.placement.domains import FailureDomains, fatal_domains, order_by_domains
from recovery.placement.memory import Machine, memory_needed, placed_on, protect
from recovery.placement.strategies import Strategy, place

GB = 10**9


def groups(machines, replicas):
    return [[member + 1 for member in group.members] for group in place(machines, replicas).groups]


def sets(machines, replicas):
    return [{holder + 1 for holder in where} for where in place(machines, replicas).holders]


@pytest.mark.parametrize(
    ("machines", "replicas", "expected"),
    [
        (4, 2, [[1, 2], [3, 4]]),
        (5, 2, [[1, 2], [3, 4, 5]]),
        (7, 3, [[1, 2, 3], [4, 5, 6, 7]]),
        (3, 2, [[1, 2, 3]]),
        (6, 3, [[1, 2, 3], [4, 5, 6]]),
        (5, 1, [[1], [2], [3], [4], [5]]),
    ],
)
def test_groups_follow_algorithm_6_1(machines, replicas, expected):
    assert groups(machines, replicas) == expected


def test_replica_sets_in_a_ring_go_to_the_next_members():
    assert sets(7, 3)[3:] == [{4, 5, 6}, {5, 6, 7}, {6, 7, 4}, {7, 4, 5}]
    assert sets(5, 2)[2:] == [{3, 4}, {4, 5}, {5, 3}]


def test_the_strategy_used_is_reported():
    assert place(5, 2).strategy is Strategy.MIXED
    assert place(6, 2).strategy is Strategy.GROUP
    assert place(6, 2, Strategy.RING).groups[0].ring
    with pytest.raises(ValueError, match="leave 1 of 5 machines over"):
        place(5, 2, Strategy.GROUP)


def test_fewer_machines_than_replicas_are_refused_with_an_alternative():
    with pytest.raises(ValueError, match="3 replicas need 3 machines; with 2, 2 can be"):
        place(2, 3)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        place(2, 0)
    with pytest.raises(ValueError, match="at least one machine"):
        place(0, 1)


def kept_on(placement, machine):
    """Return the machines whose state a machine holds, itself included."""
    return [owner for owner, where in enumerate(placement.holders) if machine in where]


@given(st.integers(1, 40), st.integers(1, 5), st.sampled_from([Strategy.MIXED, Strategy.RING]))
def test_every_machine_sends_and_receives_as_much_as_any_other(machines, replicas, strategy):
    replicas = min(replicas, machines)
    placement = place(machines, replicas, strategy)
    for machine in range(machines):
        assert placement.holders[machine][0] == machine
        assert len(set(placement.holders[machine])) == replicas
        assert len(kept_on(placement, machine)) == replicas
        group = next(group for group in placement.groups if machine in group.members)
        assert set(placement.holders[machine]) <= set(group.members)
    assert sorted(machine for group in placement.groups for machine in group.members) == list(range(machines))


# Failure domains ------------------------------------------------------------------------------


def in_racks(*sizes):
    return [FailureDomains(rack=f"r{number}") for number, size in enumerate(sizes) for _ in range(size)]


def spread(domains, replicas):
    """Return the placement on positions that stand for these machines."""
    return placed_on([Machine(str(at), GB, 1, domain) for at, domain in enumerate(domains)], replicas)


@given(st.lists(st.integers(1, 6), min_size=2, max_size=6), st.integers(2, 3))
def test_no_group_lies_in_one_rack_if_avoidable(sizes, replicas):
    """With whole groups it is avoidable if no rack has more machines than there are groups."""
    machines = sum(sizes)
    if replicas > machines or machines % replicas or max(sizes) > machines // replicas:
        return
    placement = spread(in_racks(*sizes), replicas)
    racks = [rack for rack, size in enumerate(sizes) for _ in range(size)]
    for group in placement.groups:
        assert len({racks[machine] for machine in group.members}) == replicas


def test_one_large_rack_is_divided_among_the_groups():
    """Six of eight machines in one rack: two of four pairs can span racks, and do."""
    domains = in_racks(6, 1, 1)
    placement = spread(domains, 2)
    alike = [group for group in placement.groups if all(member < 6 for member in group.members)]
    assert len(alike) == 2
    assert fatal_domains(domains, placement) == ("rack r0",)


def test_racks_and_power_domains_are_both_avoided():
    """Two racks of four, each crossed by two power domains."""
    domains = [FailureDomains(f"r{at // 4}", f"p{at % 2}") for at in range(8)]
    placement = spread(domains, 2)
    assert fatal_domains(domains, placement) == ()
    for group in placement.groups:
        first, second = (domains[member] for member in group.members)
        assert first.rack != second.rack
        assert first.power != second.power


def test_a_ring_of_three_machines_in_two_racks_keeps_a_pair_together():
    """In a ring of three all are neighbours, so two of one rack always are."""
    domains = in_racks(2, 1)
    assert fatal_domains(domains, spread(domains, 2)) == ("rack r0",)


@given(
    st.lists(st.builds(FailureDomains, st.sampled_from(["", "a", "b", "c"]), st.sampled_from(["", "x", "y"])),
             min_size=1, max_size=20),
    st.integers(1, 4),
)  # fmt: skip
def test_the_order_is_a_deterministic_permutation(domains, replicas):
    replicas = min(replicas, len(domains))
    order = order_by_domains(domains, replicas)
    assert sorted(order) == list(range(len(domains)))
    assert order == order_by_domains(domains, replicas)


# Memory ---------------------------------------------------------------------------------------


def machines(*free_gb, shard_gb=30):
    return [Machine(f"server {at}", free * GB, shard_gb * GB) for at, free in enumerate(free_gb)]


def test_two_slots_for_each_copy_are_set_aside_on_each_machine():
    """GPT-2 100B on 16 machines: 75 GB a machine, so 300 GB of 1152 GB."""
    granted = protect(machines(*[1152] * 16, shard_gb=75), 2)
    assert granted.replicas == 2
    assert set(granted.memory_bytes) == {300 * GB}
    assert granted.reason == ""


def test_short_memory_lowers_the_replicas_with_a_reason():
    granted = protect(machines(130, 130, 130, 110), 2)
    assert granted.replicas == 1
    assert set(granted.memory_bytes) == {60 * GB}
    assert granted.reason == (
        "server 3 has 110.0 GB of host memory free, and 2 replicas need 120.0 GB there: one replica is kept, "
        "which covers failures of processes and not of machines"
    )


def test_three_replicas_become_two_before_one():
    assert protect(machines(*[130] * 6), 3).replicas == 2


def test_without_memory_for_one_replica_none_is_granted_with_a_reason():
    refused = protect(machines(130, 50), 2)
    assert (refused.replicas, refused.placement, refused.memory_bytes) == (0, None, (0, 0))
    assert refused.reason.startswith(
        "server 1 has 50.0 GB of host memory free, and one replica needs 60.0 GB"
    )
    assert "last durable state" in refused.reason


def test_a_job_on_one_machine_keeps_its_state_there_with_a_reason():
    granted = protect(machines(1000), 2)
    assert granted.replicas == 1
    assert "2 replicas need 2 machines, and the job runs on one machine" in granted.reason


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 60)), min_size=1, max_size=12), st.integers(1, 4)
)
def test_memory_is_never_overcommitted(sizes, replicas):
    given_machines = [Machine(str(at), free, shard) for at, (free, shard) in enumerate(sizes)]
    granted = protect(given_machines, replicas)
    assert granted.replicas <= min(replicas, len(sizes))
    for machine, needed in zip(given_machines, granted.memory_bytes, strict=True):
        assert needed <= machine.free_memory_bytes
    if granted.placement is not None:
        assert granted.memory_bytes == memory_needed(granted.placement, [shard for _, shard in sizes])
        for at, needed in enumerate(granted.memory_bytes):
            owners = kept_on(granted.placement, at)
            assert needed == 2 * sum(sizes[owner][1] for owner in owners)
    assert bool(granted.reason) == (granted.replicas < replicas)
