"""Places of workers: best fit, larger workers first, base and flexible apart on loan, and no needless
moves."""

from __future__ import annotations

from scheduling.core.lyra.base_demands import Skip
from scheduling.core.lyra.fleet import BASE, FLEXIBLE, NO_ROLE
from scheduling.core.lyra.tick import TwoPhase
from scheduling.core.lyra.worker_changes import WorkerChange
from tests.core.dividing import Job, division_of, fleet_of, inelastic, linear, places_in, total_of

NO_HOLES = TwoPhase(flexible_in_holes=False)


def lent_elastic(least: int, most: int, *, gpus: int = 1, remaining: float = 1000.0, places=None) -> Job:
    """An elastic job that runs on servers on loan only."""
    return Job(remaining, {}, linear(least, most), gpus, places or {})


def test_larger_workers_first_and_each_where_it_fits_best():
    jobs = [inelastic(9, 2, 4), inelastic(9, 3, 2), inelastic(9, 1, 8), inelastic(9, 5, 1)]
    division = division_of(fleet_of([8, 8, 8, 8]), jobs)
    assert places_in(division.workers, 2) == {0: (1, 0)}
    assert places_in(division.workers, 0) == {1: (2, 0)}
    assert places_in(division.workers, 1) == {2: (3, 0)}
    assert places_in(division.workers, 3) == {2: (2, 0), 3: (3, 0)}


def test_holes_are_filled_before_an_empty_server_is_touched():
    running = [
        inelastic(9, 5, places={0: (5, 0)}), inelastic(9, 3, places={1: (3, 0)}),
        inelastic(9, 6, places={3: (6, 0)})
    ]  # fmt: skip
    division = division_of(fleet_of([8, 8, 8, 8]), [*running, inelastic(9, 3, 2), inelastic(9, 1, 3)])
    assert places_in(division.workers, 4) == {0: (1, 0)}
    assert places_in(division.workers, 3) == {3: (1, 0), 1: (2, 0)}


def test_base_and_flexible_workers_are_kept_apart_on_loan():
    jobs = [lent_elastic(2, 5, gpus=2), lent_elastic(1, 2, gpus=2)]
    division = division_of(fleet_of([], [8, 8, 8]), jobs)
    assert places_in(division.workers, 0) == {0: (2, 0), 1: (0, 3)}
    assert places_in(division.workers, 1) == {0: (1, 0), 1: (0, 1)}
    assert division.role.tolist() == [BASE, FLEXIBLE, NO_ROLE]


def test_naive_placement_groups_workers_on_owned_servers_first():
    both = Job(1000.0, linear(2, 4), linear(2, 4))
    fleet = fleet_of([2], [8])
    assert places_in(division_of(fleet, [both]).workers, 0) == {1: (2, 2)}
    assert set(places_in(division_of(fleet_of([2], [8, 8]), [both]).workers, 0)) == {1, 2}
    naive = TwoPhase(naive=True)
    assert places_in(division_of(fleet, [both], naive).workers, 0) == {0: (2, 0)}
    together = division_of(fleet_of([], [8, 8]), [lent_elastic(2, 4)], naive)
    assert places_in(together.workers, 0) == {0: (2, 2)}


def test_flexible_workers_fill_base_servers_only_as_a_last_resort():
    job = lent_elastic(2, 12)
    fleet = fleet_of([], [8, 8])
    assert places_in(division_of(fleet, [job]).workers, 0) == {0: (2, 2), 1: (0, 8)}
    assert places_in(division_of(fleet, [job], NO_HOLES).workers, 0) == {0: (2, 0), 1: (0, 8)}
    assert division_of(fleet, [job], NO_HOLES).knapsacks[0].capacity == 8


def test_base_workers_prefer_idle_servers_over_flexible_ones():
    grown = lent_elastic(1, 9, places={0: (1, 0), 1: (0, 8)})
    newcomer = inelastic(10, 1, 8, lent=1)
    division = division_of(fleet_of([], [8, 8, 8]), [grown, newcomer])
    assert places_in(division.workers, 1) == {2: (1, 0)}
    assert division.change[0] == WorkerChange.UNCHANGED
    division = division_of(fleet_of([], [8, 8]), [grown, newcomer])
    assert places_in(division.workers, 1) == {1: (1, 0)}
    assert places_in(division.workers, 0) == {0: (1, 7)}
    assert division.role.tolist() == [BASE, BASE]
    assert division.change[0] == WorkerChange.SHRINK


def test_flexible_workers_stay_where_they_are():
    early = lent_elastic(1, 3, places={0: (1, 0), 2: (0, 2)})
    late = lent_elastic(1, 3, places={0: (1, 0)}, remaining=9000.0)
    division = division_of(fleet_of([], [8, 8, 8]), [early, late])
    assert places_in(division.workers, 0) == {0: (1, 0), 2: (0, 2)}
    assert places_in(division.workers, 1) == {0: (1, 0), 2: (0, 2)}
    assert division.change.tolist() == [WorkerChange.UNCHANGED, WorkerChange.GROW]


def test_shrinking_job_leaves_servers_with_fewest_flexible_workers():
    grown = Job(1000.0, linear(2, 7), gpus=1, places={0: (2, 0), 1: (0, 1), 2: (0, 4)})
    keeper = inelastic(9, 8, places={1: (7, 0), 2: (1, 0)})
    division = division_of(fleet_of([2, 8, 5]), [grown, keeper, inelastic(1, 1)])
    assert places_in(division.workers, 0) == {0: (2, 0), 2: (0, 4)}
    assert places_in(division.workers, 2) == {1: (1, 0)}


def test_last_base_worker_leaves_a_freely_returnable_server():
    division = division_of(fleet_of([], [4, 4]), [lent_elastic(2, 4, places={0: (2, 0), 1: (0, 2)})])
    assert division.role.tolist() == [BASE, FLEXIBLE]


def test_fragmented_job_does_not_start_and_reserves_nothing():
    running = [inelastic(9, 5, places={0: (5, 0)}), inelastic(9, 5, places={1: (5, 0)})]
    jobs = [*running, inelastic(5, 1, 4), inelastic(50, 2)]
    division = division_of(fleet_of([8, 8]), jobs)
    assert total_of(division.workers, 2) == (0, 0)
    assert dict(zip(division.skipped.tolist(), division.reason.tolist(), strict=True)) == {2: Skip.FRAGMENTED}
    assert places_in(division.workers, 3) == {0: (2, 0)}


def test_reconsidered_gpus_of_a_fragmented_job_go_to_the_next_job():
    running = [inelastic(9, 5, places={0: (5, 0)}), inelastic(9, 5, places={1: (5, 0)})]
    jobs = [*running, inelastic(5, 1, 4), inelastic(50, 3)]
    division = division_of(fleet_of([8, 8]), jobs)
    assert dict(zip(division.skipped.tolist(), division.reason.tolist(), strict=True)) == {
        2: Skip.FRAGMENTED,
        3: Skip.NO_ROOM,
    }
    division = division_of(fleet_of([8, 8]), jobs, TwoPhase(reconsider=True))
    assert division.admitted.tolist() == [3]
    assert division.skipped.tolist() == [2]


def test_a_scattered_job_is_tried_on_the_other_kind_if_asked():
    running = [inelastic(9, 5, places={0: (5, 0)}), inelastic(9, 5, places={1: (5, 0)})]
    jobs = [*running, inelastic(5, 1, 4, lent=1)]
    assert division_of(fleet_of([8, 8], [8]), jobs).admitted.size == 0
    division = division_of(fleet_of([8, 8], [8]), jobs, TwoPhase(reconsider=True))
    assert places_in(division.workers, 2) == {2: (1, 0)}


def test_a_job_ends_with_a_number_of_workers_it_can_have():
    powers = Job(1000.0, {}, {2: 2.0, 4: 4.0, 8: 8.0}, gpus=2)
    division = division_of(fleet_of([], [4, 6, 3]), [powers], NO_HOLES)
    assert total_of(division.workers, 0) == (2, 2)
    running = Job(1000.0, {}, {2: 2.0, 4: 4.0, 8: 8.0}, gpus=1, places={0: (2, 0), 1: (0, 6)})
    blocked = inelastic(1, 1, lent=1)
    division = division_of(fleet_of([], [2, 6]), [running, blocked])
    assert total_of(division.workers, 0) == (2, 2)


def test_gpus_given_up_by_one_job_serve_a_smaller_one():
    # The first needs six extra workers or none of them; with one GPU lost to a base worker it cannot have
    # them.
    large = Job(9000.0, {}, {2: 2.0, 8: 8.0}, places={0: (2, 0), 1: (0, 5), 2: (0, 1)})
    small = Job(100.0, {}, {1: 1.0, 2: 1.5}, gpus=2, places={0: (1, 0)})
    division = division_of(fleet_of([], [4, 5, 3]), [large, small, inelastic(1, 1, 3, lent=1)])
    assert total_of(division.workers, 0) == (2, 0)
    assert total_of(division.workers, 1) == (1, 1)
