"""Points that Lyra leaves open about its tick, each with both choices: A10, A17, A18 and A19 of its
specification."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scheduling.core.lyra.base_demands import Skip
from scheduling.core.lyra.tick import TwoPhase, divide
from scheduling.core.lyra.worker_changes import WorkerChange
from tests.core.dividing import (
    Job,
    demands_for,
    division_of,
    fleet_of,
    inelastic,
    linear,
    map_of,
    places_in,
    total_of,
)

MOVES = TwoPhase(elastic_moves=True)


def test_flexible_workers_go_by_time_saved_of_remaining_or_total_work():
    nearly_done = Job(10.0, linear(1, 2), work=1000.0, places={0: (1, 0)})
    begun = Job(100.0, linear(1, 2), places={0: (1, 0)})
    fleet, jobs = fleet_of([3]), [nearly_done, begun]
    assert [total_of(division_of(fleet, jobs).workers, job) for job in (0, 1)] == [(1, 0), (1, 1)]
    whole = division_of(fleet, jobs, TwoPhase(value_total_work=True))
    assert [total_of(whole.workers, job) for job in (0, 1)] == [(1, 1), (1, 0)]
    assert whole.knapsacks[0].value == 500.0


def test_base_workers_avoid_flexible_servers_unless_counted_as_idle():
    grown = Job(1000.0, {}, linear(1, 5), places={3: (1, 0), 1: (0, 4)})
    newcomer = Job(50.0, {}, {4: 1.0})
    fleet, jobs = fleet_of([1], [8, 8, 1]), [grown, newcomer]
    division = division_of(fleet, jobs)
    assert places_in(division.workers, 1) == {2: (4, 0)}
    assert division.change.tolist() == [WorkerChange.UNCHANGED, WorkerChange.START]
    division = division_of(fleet, jobs, TwoPhase(emptied_as_idle=True))
    assert places_in(division.workers, 1) == {1: (4, 0)}
    assert places_in(division.workers, 0) == {3: (1, 0), 1: (0, 4)}, "in what the base leaves free"
    apart = TwoPhase(emptied_as_idle=True, flexible_in_holes=False)
    division = division_of(fleet, jobs, apart)
    assert places_in(division.workers, 0) == {3: (1, 0), 2: (0, 4)}
    assert division.change.tolist() == [WorkerChange.MOVE, WorkerChange.START]


ON_OWNED = Job(600.0, linear(2, 4), linear(6, 12, 1 / 3), places={0: (2, 2)})


def test_running_elastic_job_moves_to_loaned_servers_only_if_chosen():
    fleet = fleet_of([4], [8])
    assert places_in(division_of(fleet, [ON_OWNED]).workers, 0) == {0: (2, 2)}
    division = division_of(fleet, [ON_OWNED], MOVES)
    assert places_in(division.workers, 0) == {1: (6, 2)}
    assert division.admitted.size == 0
    moved = replace(ON_OWNED, places={1: (6, 2)})
    assert division_of(fleet, [moved], MOVES).change.tolist() == [WorkerChange.UNCHANGED]
    assert places_in(division_of(fleet_of([4], [5]), [ON_OWNED], MOVES).workers, 0) == {0: (2, 2)}


def test_job_marked_to_stay_does_not_move():
    question = (fleet_of([4], [8]), map_of([ON_OWNED.places]), demands_for([ON_OWNED]), MOVES)
    assert places_in(divide(*question, not_moved=np.array([True])).workers, 0) == {0: (2, 2)}


def test_gpus_left_by_a_move_go_to_waiting_jobs_at_once():
    bound = inelastic(50, 3)
    fleet, jobs = fleet_of([4], [6]), [ON_OWNED, bound]
    assert division_of(fleet, jobs).reason.tolist() == [Skip.NO_ROOM]
    division = division_of(fleet, jobs, MOVES)
    assert division.admitted.tolist() == [1]
    assert division.skipped.size == 0
    assert places_in(division.workers, 0) == {1: (6, 0)}
    assert places_in(division.workers, 1) == {0: (3, 0)}


def test_a_move_takes_nothing_from_a_job_that_starts():
    newcomer = Job(900.0, {}, {6: 1.0})
    division = division_of(fleet_of([4], [8]), [ON_OWNED, newcomer], MOVES)
    assert division.admitted.tolist() == [1]
    assert places_in(division.workers, 0) == {0: (2, 2)}


def test_inelastic_mixing_and_slowed_jobs_do_not_move():
    fixed = inelastic(600, 2, places={0: (2, 0)}, lent=6)
    slower = Job(600.0, linear(2, 4), linear(4, 8, 1 / 3), places={0: (2, 0)})
    mixing = replace(ON_OWNED, places={0: (2, 0)}, mixes=True)
    jobs = [fixed, slower, mixing]
    division = division_of(fleet_of([6], [8, 8, 8]), jobs, MOVES)
    for number, job in enumerate(jobs):
        assert places_in(division.workers, number)[0][0] == job.places[0][0]
    naive = replace(MOVES, naive=True)
    assert places_in(division_of(fleet_of([4], [8]), [ON_OWNED], naive).workers, 0) == {0: (2, 2)}


def test_untried_job_stays_pending_as_fragmented_and_reserves_nothing():
    busy = [inelastic(99, 5, places={0: (5, 0)}), inelastic(99, 5, places={1: (5, 0)})]
    jobs = [*busy, inelastic(1, 1, 4), inelastic(9, 6)]
    fleet = fleet_of([8, 8])
    tried = division_of(fleet, jobs)
    assert tried.admitted.size == 0, "four GPUs are counted for the shorter job, and then it finds no room"
    assert tried.reason.tolist() == [Skip.FRAGMENTED, Skip.NO_ROOM]
    left_out = np.array([False, False, True, False])
    division = divide(
        fleet, map_of([job.places for job in jobs]), demands_for(jobs), TwoPhase(), not_tried=left_out
    )
    assert division.admitted.tolist() == [3]
    assert (division.skipped.tolist(), division.reason.tolist()) == ([2], [Skip.FRAGMENTED])
