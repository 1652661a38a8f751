"""Schedules of faults follow from their seed alone and end in time; coverage by the reserve is computed
correctly."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from faults.coverage import Charge, is_covered, stops_training
from faults.schedule import (
    AT_ONCE,
    JUMP_SECONDS,
    KINDS,
    SEVERAL_PROCESSES,
    Fault,
    Kind,
    Part,
    Target,
    schedule,
)

targets = st.builds(
    Target, st.sampled_from(Part), st.sampled_from(("one", "two")), st.sampled_from(("", "node-1", "node-2"))
)
seeds = st.integers(min_value=0, max_value=2**63)
lengths = st.floats(min_value=0.01, max_value=600.0)
CHARGE = Charge(fence_seconds=21.0, lost_seconds=10.0, start_seconds=9.0)
WORKER = Target(Part.WORKER, "worker", "node-1")
WEB = Target(Part.WEB, "web")


@given(seeds, lengths, st.lists(targets, max_size=8))
def test_a_seed_fixes_the_schedule_whatever_the_order_of_the_targets(seed, seconds, processes):
    assert schedule(seed, seconds, processes) == schedule(seed, seconds, reversed(processes))


@given(seeds, lengths, st.lists(targets, min_size=1, max_size=8))
def test_every_fault_ends_within_the_schedule(seed, seconds, processes):
    faults = schedule(seed, seconds, processes)
    assert faults
    assert faults == sorted(faults, key=lambda fault: fault.at_seconds)
    for fault in faults:
        assert 0.0 <= fault.at_seconds <= fault.ends_at <= seconds + 1e-3
        assert (fault.seconds == 0.0) or fault.kind not in AT_ONCE
        assert fault.target in processes
        assert fault.kind in KINDS[fault.target.part]


@given(seeds, lengths, st.lists(targets, min_size=1, max_size=3))
@example(74, 1.0, [Target(part, "one") for part in (Part.AGENT, Part.LAUNCHER, Part.NURSERY)])
def test_two_faults_never_overlap_on_one_target(seed, seconds, processes):
    """The end of one freeze of a process would undo the other."""
    ends: dict[Target, float] = {}
    for fault in schedule(seed, seconds, processes):
        assert fault.at_seconds >= ends.get(fault.target, 0.0) - 1e-3
        ends[fault.target] = fault.ends_at


def test_two_hundred_seeds_cover_every_fault_of_every_part():
    processes = [Target(part, "any") for part in Part]
    met = {(f.target.part, f.kind) for seed in range(200) for f in schedule(seed, 30.0, processes)}
    assert met == {(part, kind) for part, kinds in KINDS.items() for kind in kinds}


def test_neighbouring_seeds_give_different_schedules():
    processes = [Target(part, "any") for part in Part]
    assert len({tuple(schedule(seed, 30.0, processes)) for seed in range(50)}) == 50


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_an_invalid_length_is_refused(seconds):
    with pytest.raises(ValueError, match="positive"):
        schedule(1, seconds, [WEB])


def test_a_reserve_of_one_server_covers_one_lost_worker():
    killed = [Fault(1.0, Kind.KILL, WORKER)]
    assert is_covered(killed, 1, CHARGE)
    assert not is_covered(killed, 0, CHARGE)


def test_losing_two_servers_exceeds_a_reserve_of_one():
    away = [Fault(1.0, Kind.FREEZE, Target(Part.AGENT, "agent", f"node-{n}"), 20.0) for n in (1, 2)]
    assert is_covered(away[:1], 1, CHARGE)
    assert not is_covered(away, 1, CHARGE)
    assert is_covered(away, 2, CHARGE)


def test_a_killed_agent_stops_no_training():
    agent = Target(Part.AGENT, "agent", "node-1")
    assert not stops_training(Fault(1.0, Kind.KILL, agent))
    assert stops_training(Fault(1.0, Kind.FREEZE, agent, 5.0))


@given(st.lists(st.builds(
    Fault, st.floats(0, 30), st.sampled_from(Kind), targets, st.floats(0, 30)
), max_size=6), st.integers(0, 3))  # fmt: skip
def test_coverage_is_monotone_in_faults_and_reserve(faults, reserve):
    if is_covered(faults, reserve, CHARGE):
        assert is_covered(faults[1:], reserve, CHARGE)
        assert is_covered(faults, reserve + 1, CHARGE)


@given(seeds, lengths, st.lists(targets, max_size=4))
def test_adding_clock_jumps_keeps_a_seeds_other_faults(seed, seconds, processes):
    clocks = [Target(Part.CLOCK, "control plane"), Target(Part.CLOCK, "agent-node-1", "node-1")]
    others = [target for target in processes if target.part is not Part.CLOCK]
    with_clocks = schedule(seed, seconds, others, clocks)
    assert [fault for fault in with_clocks if fault.kind is not Kind.JUMP] == schedule(seed, seconds, others)
    assert any(fault.kind is Kind.JUMP for fault in with_clocks)


@given(seeds, lengths, st.lists(targets, max_size=4))
def test_adding_whole_servers_keeps_a_seeds_other_faults(seed, seconds, processes):
    servers = [Target(part, "agent-node-1", "node-1") for part in SEVERAL_PROCESSES]
    others = [target for target in processes if target.part not in SEVERAL_PROCESSES]
    with_servers = schedule(seed, seconds, others, servers=servers)
    assert [fault for fault in with_servers if fault.target not in servers] == schedule(seed, seconds, others)
    assert any(fault.target in servers for fault in with_servers)


def test_a_whole_server_frozen_for_long_counts_as_lost():
    for part in SEVERAL_PROCESSES:
        away = [Fault(1.0, Kind.FREEZE, Target(part, f"agent-{n}", f"node-{n}"), 20.0) for n in (1, 2)]
        assert is_covered(away[:1], 1, CHARGE)
        assert not is_covered(away, 1, CHARGE)


def test_clocks_jump_by_seconds_and_hours_in_both_directions():
    clock = Target(Part.CLOCK, "control plane")
    amounts = [fault.amount for seed in range(50) for fault in schedule(seed, 30.0, [], [clock])]
    assert all(JUMP_SECONDS[0] <= abs(amount) <= JUMP_SECONDS[1] for amount in amounts)
    for least, most in ((-4 * 3600, -3600), (-10, 0), (0, 10), (3600, 4 * 3600)):
        assert any(least <= amount <= most for amount in amounts)


def test_only_clock_jumps_of_the_control_plane_cost_promises_time():
    far = 5 * CHARGE.seconds
    assert is_covered([Fault(1.0, Kind.JUMP, Target(Part.CLOCK, "agent", "node-1"), 5.0, far)], 1, CHARGE)
    own = Target(Part.CLOCK, "control plane")
    for seconds in (far, -far):
        assert not is_covered([Fault(1.0, Kind.JUMP, own, 5.0, seconds)], 1, CHARGE)
    assert is_covered([Fault(1.0, Kind.JUMP, own, 5.0, CHARGE.seconds / 2)], 1, CHARGE)
