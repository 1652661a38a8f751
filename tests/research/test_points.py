"""Recovery points: sources (G3) and slots; no random sequence of events recovers an incomplete version."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from recovery.placement.strategies import place
from recovery.store import holdings
from recovery.store.memory import Checksums
from research.gemini.points.sources import Tier, choose_sources, copies_to_restore, lost_if_gone
from research.gemini.points.versions import KeptState, Slot, protected_groups, recoverable_version


def everywhere(placement, version):
    """Return kept states in which every copy of this version is complete."""
    return [
        KeptState(owner, holder, (Slot(version, True), Slot()))
        for owner, where in enumerate(placement.holders)
        for holder in where
    ]


def sources(machines, replicas, lost):
    """Return the holder of each owner's state (G3), numbered from 1; None for durable storage."""
    placement = place(machines, replicas)
    choice = choose_sources(placement, everywhere(placement, 7), {machine - 1 for machine in lost}, durable=5)
    if choice.tier is Tier.DURABLE:
        assert {source.tier for source in choice.sources} == {Tier.DURABLE}
        assert choice.version == 5
        return None
    assert choice.version == 7
    return {source.owner + 1: source.holder + 1 for source in choice.sources if source.holder is not None}


@pytest.mark.parametrize(
    ("machines", "replicas", "lost", "expected"),
    [
        (4, 2, {2, 4}, {1: 1, 2: 1, 3: 3, 4: 3}),
        (4, 2, {1, 2}, None),
        (5, 2, {3}, {1: 1, 2: 2, 3: 4, 4: 4, 5: 5}),
        (5, 2, {3, 5}, None),
        (7, 3, {4, 5}, {1: 1, 2: 2, 3: 3, 4: 6, 5: 7, 6: 6, 7: 7}),
        (7, 3, {4, 5, 6}, None),
    ],
)
def test_g3_sources(machines, replicas, lost, expected):
    assert sources(machines, replicas, lost) == expected


def test_five_machines_in_pairs_recover_six_of_ten_pairs():
    placement = place(5, 2)
    pairs = [{first, second} for first in range(5) for second in range(first)]
    states = everywhere(placement, 3)
    assert sum(recoverable_version(states, 5, lost) is not None for lost in pairs) == 6


def test_a_failure_of_processes_moves_no_byte():
    placement = place(6, 2)
    choice = choose_sources(placement, everywhere(placement, 9), (), durable=2)
    assert {source.tier for source in choice.sources} == {Tier.LOCAL}


def test_incomplete_third_checkpoint_resumes_from_the_second():
    """A failure at iteration 310 with a checkpoint every 100 and an incomplete third one resumes from 200."""
    placement = place(2, 2)
    states = [
        KeptState(owner, holder, (Slot(200, True), Slot(300, (owner, holder) != (1, 0))))
        for owner in range(2)
        for holder in range(2)
    ]
    assert choose_sources(placement, states, {1}, durable=100).version == 200
    assert lost_if_gone(placement, states, 310, durable=100) == (10, 110)


def test_before_the_first_commit_there_is_only_what_is_durable():
    placement = place(2, 2)
    empty = [KeptState(owner, holder) for owner in range(2) for holder in range(2)]
    assert choose_sources(placement, empty, (), durable=40).version == 40
    assert choose_sources(placement, empty, (), durable=None).version is None
    assert lost_if_gone(placement, empty, 44, durable=40) == (4, 4)


def test_a_durable_state_that_is_newer_is_used():
    placement = place(2, 2)
    choice = choose_sources(placement, everywhere(placement, 10), (), durable=11)
    assert (choice.version, choice.tier) == (11, Tier.DURABLE)


def test_a_newcomer_receives_again_what_it_is_to_keep_for_others():
    """Of five machines in pairs the fourth keeps the third's state, and loads its own for itself."""
    placement = place(5, 2)
    states = everywhere(placement, 3)
    missing = copies_to_restore(placement, states, 3, {3})
    assert [(copy.owner, copy.holder) for copy in missing] == [(2, 3)]
    assert copies_to_restore(placement, states, 3, ()) == ()


def test_protection_is_full_degraded_or_none_by_group():
    placement = place(5, 2)
    states = everywhere(placement, 3)
    assert protected_groups(placement, states, 3) == ("full", "full")
    assert protected_groups(placement, states, 3, {4}) == ("full", "degraded")
    assert protected_groups(placement, states, 3, {0, 1}) == ("none", "full")
    assert protected_groups(placement, states, 4) == ("none", "none")


# Slots ----------------------------------------------------------------------------------------


def slot_to_write(slots, committed):
    """Return the slot that a store overwrites next."""
    holding_slots = [
        holdings.Slot(
            version=holdings.Version(slot.version, 0, 0, Checksums((), ""), 0.0) if slot.complete else None
        )
        for slot in slots
    ]
    return holdings.Holding(1, holding_slots, committed).oldest()


def may_begin(last_begun, committed):
    """Return whether an owner may send another version: its last one is committed."""
    return last_begun is None or (committed is not None and committed >= last_begun)


def committed_version(done, owners):
    """Return the newest version that every owner has completed; None before that."""
    return min(done.values()) if len(done) == owners else None


def test_the_slot_with_the_committed_version_is_never_written():
    assert slot_to_write((Slot(4, True), Slot(3, True)), 4) == 1
    assert slot_to_write((Slot(4, True), Slot(3, True)), 3) == 0
    assert slot_to_write((Slot(4, True), Slot(5, False)), 4) == 1
    assert slot_to_write((Slot(), Slot()), None) == 0


class Protocol(RuleBasedStateMachine):
    """Owners that send versions at their own pace, copies that arrive late or never, and machines that
    fail."""

    @initialize(machines=st.integers(1, 5), replicas=st.integers(1, 3))
    def begin(self, machines, replicas):
        self.placement = place(machines, min(replicas, machines))
        self.slots = {
            (owner, holder): (Slot(), Slot())
            for owner, where in enumerate(self.placement.holders)
            for holder in where
        }
        self.last_begun = dict.fromkeys(range(machines))
        self.done = {}
        self.truly_complete = set()
        self.dead = set()

    @property
    def committed(self):
        return committed_version(self.done, self.placement.machines)

    def kept(self):
        return [KeptState(owner, holder, slots) for (owner, holder), slots in self.slots.items()]

    def put(self, copy, at, slot):
        first, second = self.slots[copy]
        self.slots[copy] = (slot, second) if at == 0 else (first, slot)

    @rule(data=st.data())
    def owner_begins(self, data):
        owner = data.draw(st.sampled_from(range(self.placement.machines)))
        if owner in self.dead or not may_begin(self.last_begun[owner], self.committed):
            return
        # All owners send the same versions, in order: the next follows the committed version.
        version = (self.committed or 0) + 1
        self.last_begun[owner] = version
        for holder in self.placement.holders[owner]:
            if holder not in self.dead:
                copy = owner, holder
                self.put(copy, slot_to_write(self.slots[copy], self.committed), Slot(version, False))

    @rule(data=st.data())
    def copy_arrives(self, data):
        copy = data.draw(st.sampled_from(sorted(self.slots)))
        owner, holder = copy
        version = self.last_begun[owner]
        if owner in self.dead or holder in self.dead or version is None:
            return
        at = next((at for at, slot in enumerate(self.slots[copy]) if slot == Slot(version, False)), None)
        if at is None:
            return
        self.put(copy, at, Slot(version, True))
        self.truly_complete.add((owner, holder, version))
        if all((owner, keeper, version) in self.truly_complete for keeper in self.placement.holders[owner]):
            self.done[owner] = version

    @precondition(lambda self: len(self.dead) < self.placement.machines)
    @rule(data=st.data())
    def machine_dies(self, data):
        self.dead.add(data.draw(st.sampled_from(sorted(set(range(self.placement.machines)) - self.dead))))

    @invariant()
    def recovers_complete_versions_alone(self):
        version = recoverable_version(self.kept(), self.placement.machines, self.dead)
        whole_set_died = any(held <= self.dead for held in self.placement.replica_sets())
        if whole_set_died:
            assert version is None
        elif self.committed is not None:
            assert version is not None
            assert version >= self.committed
        choice = choose_sources(self.placement, self.kept(), self.dead, durable=0)
        if choice.tier is Tier.DURABLE:
            assert version is None
            assert choice.version == 0
        else:
            for source in choice.sources:
                assert source.holder not in self.dead
                assert (source.owner, source.holder, version) in self.truly_complete


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(stateful_step_count=60)


@given(st.integers(2, 12), st.integers(2, 4), st.data())
def test_newcomers_are_served_by_the_least_loaded(machines, replicas, data):
    replicas = min(replicas, machines)
    placement = place(machines, replicas)
    lost = data.draw(st.sets(st.sampled_from(range(machines)), max_size=replicas - 1))
    choice = choose_sources(placement, everywhere(placement, 1), lost, durable=None)
    peers = [source for source in choice.sources if source.tier is Tier.PEER]
    assert {source.owner for source in peers} == lost
    serving = dict.fromkeys(range(machines), 0)
    for source in peers:
        assert source.holder is not None
        able = [holder for holder in placement.holders[source.owner] if holder not in lost]
        assert serving[source.holder] == min(serving[holder] for holder in able)
        serving[source.holder] += 1
