"""The scheduler of one device: what it launches, for any order of submissions and ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe.lina.micro_operations import MicroOperation, Traffic
from moe.lina.scheduler import Mode, PriorityScheduler

A2A, AR = Traffic.ALL_TO_ALL, Traffic.ALL_REDUCE


def operation(traffic: Traffic, number: int) -> MicroOperation:
    return MicroOperation(traffic, f"{traffic.name} {number}")


def test_all_to_all_of_the_same_instant_goes_first():
    scheduler = PriorityScheduler(Mode.STRICT)
    scheduler.submit([operation(AR, 0), operation(A2A, 0)])
    assert scheduler.launch() == [operation(A2A, 0)]
    assert scheduler.launch() == []
    scheduler.end(operation(A2A, 0))
    assert scheduler.launch() == [operation(AR, 0)]


@pytest.mark.parametrize("mode", Mode)
def test_hold_keeps_all_reduces_back(mode):
    scheduler = PriorityScheduler(mode)
    scheduler.hold = True
    scheduler.submit([operation(AR, 0)])
    assert scheduler.launch() == []
    scheduler.hold = False
    assert scheduler.launch() == [operation(AR, 0)]


def test_all_to_all_overlaps_one_all_reduce_and_no_more():
    scheduler = PriorityScheduler()
    scheduler.submit([operation(AR, 0), operation(AR, 1)])
    assert scheduler.launch() == [operation(AR, 0)]
    scheduler.submit([operation(A2A, 0), operation(A2A, 1)])
    assert scheduler.launch() == [operation(A2A, 0), operation(A2A, 1)]
    for ended in (operation(AR, 0), operation(A2A, 0)):
        scheduler.end(ended)
        assert scheduler.launch() == []
    scheduler.end(operation(A2A, 1))
    assert scheduler.launch() == [operation(AR, 1)]


def test_all_reduces_of_other_lanes_do_not_wait_for_each_other():
    first, second = (MicroOperation(AR, f"AR {number}", lane="experts") for number in range(2))
    scheduler = PriorityScheduler()
    scheduler.submit([operation(AR, 0), operation(AR, 1), first, second])
    assert scheduler.launch() == [operation(AR, 0), first]
    assert scheduler.launch() == []
    scheduler.end(first)
    assert scheduler.launch() == [second]


def test_baseline_runs_each_class_as_a_stream():
    scheduler = PriorityScheduler(Mode.TWO_STREAMS)
    scheduler.submit([operation(AR, 0), operation(AR, 1), operation(A2A, 0), operation(A2A, 1)])
    assert scheduler.launch() == [operation(A2A, 0), operation(AR, 0)]
    assert scheduler.launch() == []
    scheduler.end(operation(AR, 0))
    assert scheduler.launch() == [operation(AR, 1)]


def test_followers_launch_in_the_order_of_the_leader():
    leader, follower = PriorityScheduler(Mode.LEADER), PriorityScheduler(Mode.LEADER, is_leader=False)
    leader.submit([operation(AR, 0)])
    follower.submit([operation(A2A, 0)])
    (decided,) = leader.launch()
    follower.follow(decided)
    assert follower.launch() == []
    follower.submit([operation(AR, 0)])
    assert follower.launch() == [operation(AR, 0)]


def run_two_ranks(mode: Mode, *arrivals: list[MicroOperation]) -> bool:
    """Return whether two ranks end all operations, which each submits one by one in its own order.

    An operation is collective: it ends once it runs on both ranks.
    """
    ranks = [PriorityScheduler(mode), PriorityScheduler(mode, is_leader=False)]
    waiting = [list(arrival) for arrival in arrivals]
    while True:
        progressed = any(waiting)
        for rank, arrival in zip(ranks, waiting, strict=True):
            rank.submit(arrival[:1])
            del arrival[:1]
            for launched in rank.launch():
                progressed = True
                if rank is ranks[0]:
                    ranks[1].follow(launched)
        for ended in [
            micro_operation for micro_operation in ranks[0].running if micro_operation in ranks[1].running
        ]:
            for rank in ranks:
                rank.end(ended)
            progressed = True
        if not progressed:
            return all(rank.is_idle for rank in ranks)


def test_opposite_orders_deadlock_strict_ranks_alone():
    arrivals = [operation(A2A, 0), operation(AR, 0)], [operation(AR, 0), operation(A2A, 0)]
    finished = {mode: run_two_ranks(mode, *arrivals) for mode in Mode}
    assert finished == {mode: mode is not Mode.STRICT for mode in Mode}


@given(st.sampled_from([Mode.BOUNDED_OVERLAP, Mode.LEADER]), st.data())
def test_ranks_finish_however_the_classes_interleave(mode, data):
    arrivals: list[list[MicroOperation]] = []
    for _ in range(2):
        numbers = {A2A: 0, AR: 0}
        arrivals.append([])
        for traffic in data.draw(st.permutations([A2A] * 4 + [AR] * 4)):
            arrivals[-1].append(operation(traffic, numbers[traffic]))
            numbers[traffic] += 1
    assert run_two_ranks(mode, *arrivals)


def test_operation_that_does_not_run_cannot_end():
    with pytest.raises(ValueError, match="piece 0 of 'ALL_TO_ALL 1' is not running"):
        PriorityScheduler().end(operation(A2A, 1))


class Checked:
    """A scheduler whose launches are checked against the rules."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.scheduler = PriorityScheduler(mode)
        self.submitted: dict[Traffic, list[MicroOperation]] = {A2A: [], AR: []}
        self.launched: dict[Traffic, list[MicroOperation]] = {A2A: [], AR: []}

    def act(self, action: str) -> None:
        scheduler = self.scheduler
        if action == "end":
            for ended in scheduler.running[:1]:
                scheduler.end(ended)
        elif action in ("hold", "clear"):
            scheduler.hold = action == "hold"
        else:
            traffic = A2A if action == "all-to-all" else AR
            self.submitted[traffic].append(operation(traffic, len(self.submitted[traffic])))
            scheduler.submit(self.submitted[traffic][-1:])
        self.launch()

    def launch(self) -> None:
        scheduler = self.scheduler
        before, waited = list(scheduler.running), scheduler.waiting(A2A)
        now = scheduler.launch()
        for micro_operation in now:
            self.launched[micro_operation.traffic].append(micro_operation)
        if AR in {micro_operation.traffic for micro_operation in now}:
            assert len(now) == 1
            assert not before
            assert not waited
            assert not scheduler.hold
        if waited and (self.mode is Mode.BOUNDED_OVERLAP or not before):
            assert now[0] == waited[0]
        running = [micro_operation.traffic for micro_operation in scheduler.running]
        assert running.count(AR) <= 1
        assert self.mode is Mode.BOUNDED_OVERLAP or len(running) <= 1
        # Work conserving: the link is idle only if nothing may be launched.
        assert running or not scheduler.waiting(A2A)
        assert running or scheduler.hold or not scheduler.waiting(AR)


@given(
    st.sampled_from([Mode.STRICT, Mode.BOUNDED_OVERLAP, Mode.LEADER]),
    st.lists(st.sampled_from(["all-to-all", "all-reduce", "end", "hold", "clear"]), max_size=60),
)
def test_random_arrivals_keep_every_rule(mode, actions):
    checked = Checked(mode)
    for action in [*actions, "clear"]:
        checked.act(action)
    while checked.scheduler.running:
        checked.act("end")
    assert checked.scheduler.is_idle
    assert checked.launched == checked.submitted
