"""The life cycle of a recovery: each step in order, resumable, and restarted by another failure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.life_cycle.facts import PHASES, RecoveryBounds, RecoveryFacts, RecoveryPhase
from recovery.life_cycle.steps import (
    AskForServers,
    BeginAnew,
    ChooseSources,
    MoveTo,
    RecoveryInstruction,
    StopWorkers,
    TrainOn,
    next_step,
)

BOUNDS = RecoveryBounds(freeze_seconds=30.0, prepare_seconds=50.0, load_seconds=60.0, start_seconds=90.0)


FRESH = RecoveryFacts(RecoveryPhase.DETECTED, generation=4, ranks=3, phase_since=0.0)


def facts(**known: Any) -> RecoveryFacts:
    return replace(FRESH, **known)


def carried_out(before, step, now):
    """Return the facts after an instruction was carried out successfully."""
    if isinstance(step, MoveTo):
        return replace(before, phase=step.phase, phase_since=now)
    if isinstance(step, StopWorkers):
        return replace(before, stopped=before.stopped | step.ranks)
    if isinstance(step, AskForServers):
        return replace(before, resourced=before.resourced | step.ranks)
    if isinstance(step, ChooseSources):
        return replace(before, sources_chosen=True)
    if isinstance(step, TrainOn):
        return replace(before, training=True)
    return replace(
        before, phase=RecoveryPhase.DETECTED, generation=before.generation + 1, failed=step.failed,
        newly_failed=frozenset(), stopped=frozenset(), resourced=frozenset(), sources_chosen=False,
        started=frozenset(), loaded=(), phase_since=now,
    )  # fmt: skip


def run(state, *, load=7, now=1.0):
    """Run every phase and instruction until none is due."""
    phases = [state.phase]
    steps: list[RecoveryInstruction] = []
    for _ in range(100):
        step = next_step(state, BOUNDS, now)
        if step is None:
            if state.phase is RecoveryPhase.DETECTED and state.failed - state.fenced:
                state = replace(state, fenced=state.failed)
            elif state.phase is RecoveryPhase.STARTING and len(state.started) < state.ranks:
                state = replace(state, started=frozenset(range(state.ranks)))
            elif state.phase is RecoveryPhase.LOADING and len(state.loaded) < state.ranks:
                state = replace(state, loaded=tuple((rank, load) for rank in range(state.ranks)))
            else:
                return state, phases, steps
            continue
        steps.append(step)
        state = carried_out(state, step, now)
        if isinstance(step, MoveTo):
            phases.append(step.phase)
    raise AssertionError("the recovery does not come to an end")


def test_a_lost_machine_goes_through_every_phase():
    state, phases, steps = run(facts(failed=frozenset({1})))
    assert phases == list(PHASES)
    assert state.phase is RecoveryPhase.RUNNING
    assert StopWorkers(4, frozenset({0, 2})) in steps
    assert AskForServers(frozenset({1})) in steps
    assert steps.count(ChooseSources(4)) == 1


def test_failed_processes_need_no_server():
    state, phases, steps = run(facts())
    assert state.phase is RecoveryPhase.RUNNING
    assert not any(isinstance(step, AskForServers) for step in steps)
    assert not facts().hardware


def test_a_lost_server_is_fenced_before_its_rank_moves():
    """Its workers might still train."""
    waiting = facts(failed=frozenset({1}), stopped=frozenset({0, 2}))
    assert next_step(waiting, BOUNDS, 1000.0) is None
    assert next_step(replace(waiting, fenced=frozenset({1})), BOUNDS, 0.0) == MoveTo(RecoveryPhase.FROZEN)


def test_a_second_failure_restarts_the_recovery_for_both():
    for phase in PHASES[:-1]:
        state = facts(phase=phase, failed=frozenset({1}), newly_failed=frozenset({1, 2}))
        assert next_step(state, BOUNDS, 0.0) == BeginAnew(frozenset({1, 2}), "another machine failed")


def test_a_known_failure_changes_no_step():
    state = facts(failed=frozenset({1}), newly_failed=frozenset({1}))
    assert next_step(state, BOUNDS, 0.0) == StopWorkers(4, frozenset({0, 2}))


def test_a_replacement_server_may_die_while_it_loads():
    state = facts(
        phase=RecoveryPhase.LOADING,
        failed=frozenset({1}),
        newly_failed=frozenset({1}),
        resourced=frozenset({1}),
    )
    assert next_step(state, BOUNDS, 0.0) == BeginAnew(frozenset({1}), "another machine failed")


def test_ranks_with_different_versions_all_load_the_durable_state():
    state = facts(phase=RecoveryPhase.LOADING, loaded=((0, 6), (1, 7)))
    step = next_step(state, BOUNDS, 0.0)
    assert isinstance(step, BeginAnew)
    assert step.durable
    assert step.reason == "ranks loaded different versions"


def test_loading_begins_once_all_workers_have_started():
    state = facts(phase=RecoveryPhase.STARTING, started=frozenset({0, 1}))
    assert next_step(state, BOUNDS, 49.0) is None
    due = MoveTo(RecoveryPhase.LOADING)
    assert next_step(replace(state, started=frozenset({0, 1, 2})), BOUNDS, 0.0) == due
    assert next_step(replace(state, readers=2), BOUNDS, 0.0) == due, "fewer ranks go on"
    assert next_step(replace(state, loaded=((2, 7),)), BOUNDS, 0.0) == due, "who has loaded has started"


def test_nothing_trains_before_every_rank_has_loaded():
    state = facts(phase=RecoveryPhase.LOADING, loaded=((0, 7), (1, 7)))
    assert next_step(state, BOUNDS, 59.0) is None


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (facts(), "workers did not stop in time"),
        (facts(phase=RecoveryPhase.STARTING), "a worker did not start in time"),
        (facts(phase=RecoveryPhase.LOADING), "a rank did not load its state in time"),
        (facts(phase=RecoveryPhase.VERIFIED), "training did not go on in time"),
    ],
)
def test_a_phase_beyond_its_bound_restarts_the_recovery(state, reason):
    step = next_step(state, BOUNDS, 91.0)
    assert isinstance(step, BeginAnew)
    assert step.reason == reason
    assert not step.durable


def test_a_survivor_that_does_not_stop_counts_as_failed():
    step = next_step(facts(failed=frozenset({1}), stopped=frozenset({0})), BOUNDS, 31.0)
    assert step == BeginAnew(frozenset({1, 2}), "workers did not stop in time")


def test_a_peer_that_failed_twice_is_not_asked_again():
    step = next_step(facts(phase=RecoveryPhase.LOADING, attempts=1), BOUNDS, 61.0)
    assert isinstance(step, BeginAnew)
    assert step.durable


def test_moved_survivors_wait_for_their_servers_too():
    state = facts(phase=RecoveryPhase.FROZEN, failed=frozenset({1}), placed_anew=True)
    assert next_step(state, BOUNDS, 0.0) == AskForServers(frozenset({0, 1, 2}))
    placed = replace(state, resourced=frozenset({0, 1, 2}))
    assert next_step(placed, BOUNDS, 0.0) == MoveTo(RecoveryPhase.RESOURCED)


def test_fewer_ranks_than_before_may_load_the_state():
    state = facts(phase=RecoveryPhase.LOADING, readers=2, loaded=((0, 7),))
    assert next_step(state, BOUNDS, 0.0) is None
    assert next_step(replace(state, loaded=((0, 7), (1, 7))), BOUNDS, 0.0) == MoveTo(RecoveryPhase.VERIFIED)


@pytest.mark.parametrize("phase", PHASES[:-1])
def test_a_training_job_has_recovered_from_any_phase(phase):
    assert next_step(facts(phase=phase, training=True), BOUNDS, 0.0) == MoveTo(RecoveryPhase.RUNNING)


@pytest.mark.parametrize("phase", PHASES[:-1])
def test_ranks_stopped_before_training_restart_the_recovery(phase):
    step = next_step(facts(phase=phase, failed=frozenset({1}), given_up=True), BOUNDS, 0.0)
    assert isinstance(step, BeginAnew)
    assert (step.failed, step.durable) == (frozenset({1}), False)


def test_without_a_freeze_bound_stopping_workers_are_waited_for():
    unbounded = replace(BOUNDS, freeze_seconds=None)
    assert next_step(facts(), unbounded, 1e9) == StopWorkers(4, frozenset({0, 1, 2}))


rank_sets = st.frozensets(st.integers(0, 2))


@given(
    phase=st.sampled_from(PHASES), failed=rank_sets, newly_failed=rank_sets, stopped=rank_sets,
    fenced=rank_sets, resourced=rank_sets, chosen=st.booleans(), training=st.booleans(),
    loaded=st.dictionaries(st.integers(0, 2), st.sampled_from([6, 7])), now=st.floats(0.0, 200.0),
)  # fmt: skip
def test_recovery_ends_in_training_with_one_version_from_any_facts(
    phase, failed, newly_failed, stopped, fenced, resourced, chosen, training, loaded, now
):
    state = facts(
        phase=phase, failed=failed, newly_failed=newly_failed, stopped=stopped, fenced=fenced,
        resourced=resourced, sources_chosen=chosen, training=training, loaded=tuple(sorted(loaded.items())),
    )  # fmt: skip
    step = next_step(state, BOUNDS, now)
    assert step == next_step(state, BOUNDS, now)
    if step == MoveTo(RecoveryPhase.FROZEN):
        assert failed <= fenced
        assert frozenset(range(3)) - failed <= stopped
    if step == MoveTo(RecoveryPhase.RESOURCED):
        assert failed <= resourced
    if step == MoveTo(RecoveryPhase.VERIFIED):
        assert len(loaded) == 3
        assert len(set(loaded.values())) == 1
    ended, _, _ = run(state, now=now)
    assert ended.phase is RecoveryPhase.RUNNING
