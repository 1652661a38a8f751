"""State that Pollux's search carries from one minute to the next."""

from __future__ import annotations

import numpy as np

from simulation.baselines.against_lyra.pollux_memory import PolluxMemory, entries_of

MEMBERS = np.array([[[1, 0], [0, 2]], [[0, 3], [0, 0]]], dtype=np.int16)
NUMBERS, SERVERS = np.array([7, 5]), np.array([1, 4])


def memory() -> PolluxMemory:
    return PolluxMemory(90.0, 60.0, 7, 2, 16, 5, entries_of(MEMBERS, NUMBERS, SERVERS))


def test_placements_are_the_same_after_a_minute() -> None:
    again = PolluxMemory.recalled(memory().noted())
    assert (again.searched_at, again.rest_seconds, again.numbered, again.jobs, again.gpus) == (
        90.0,
        60.0,
        7,
        2,
        16,
    )
    assert again.members(NUMBERS, SERVERS, 5).tolist() == MEMBERS.tolist()


def test_jobs_that_ended_are_left_out_and_new_ones_have_no_workers() -> None:
    """Number 5 ended, number 8 is new, and number 7 is now in the second column."""
    members = memory().members(np.array([8, 7]), SERVERS, 5)
    assert members.tolist() == [[[0, 1], [0, 0]], [[0, 0], [0, 0]]]


def test_a_server_that_may_not_be_used_any_more_is_left_out() -> None:
    assert memory().members(NUMBERS, np.array([4]), 5).tolist() == [[[0, 2]], [[0, 0]]]


def test_in_another_fleet_no_placement_is_known() -> None:
    assert memory().members(NUMBERS, SERVERS, 6).shape == (0, 2, 2)


def test_nothing_was_searched_yet() -> None:
    fresh = PolluxMemory.recalled(np.zeros(0))
    assert (fresh.searched_at, fresh.rest_seconds) == (0.0, 0.0)
    assert np.isfinite(fresh.noted()).all(), "the live platform keeps it as JSON"
    assert fresh.members(NUMBERS, SERVERS, 5).shape[0] == 0
