"""The scheduler tick on the worked examples: which jobs start, grow and shrink, by which rule."""

from __future__ import annotations

import numpy as np
import pytest

from scheduling.core.lyra.base_and_flexible import demands_of
from scheduling.core.lyra.base_demands import BaseOrder, Skip
from scheduling.core.lyra.flexible_demands import Growth
from scheduling.core.lyra.tick import TwoPhase
from scheduling.core.lyra.worker_changes import WorkerChange
from tests.core.dividing import (
    Job,
    demands_for,
    division_of,
    fleet_of,
    inelastic,
    linear,
    places_in,
    speeds_of,
    total_of,
)

QUEUE = [inelastic(100, 4), inelastic(50, 8), inelastic(60, 4), inelastic(200, 2)]
FIRST_COME = TwoPhase(order=BaseOrder.FIRST_COME)
BACKFILLING = TwoPhase(order=BaseOrder.BACKFILLING)
IN_TURN = TwoPhase(order=BaseOrder.FIRST_COME, growth=Growth.ROUND_ROBIN)


def skips(division):
    """Reason by job passed over."""
    return dict(zip(division.skipped.tolist(), division.reason.tolist(), strict=True))


@pytest.mark.parametrize(
    ("options", "admitted"), [(TwoPhase(), [1, 3]), (FIRST_COME, [0]), (BACKFILLING, [0, 2, 3])]
)
def test_queue_orders_admit_different_jobs(options, admitted):
    assert division_of(fleet_of([10]), QUEUE, options).admitted.tolist() == admitted


def test_jobs_behind_the_head_of_a_strict_queue_wait():
    assert skips(division_of(fleet_of([10]), QUEUE, FIRST_COME)) == {
        1: Skip.NO_ROOM,
        2: Skip.HELD_UP,
        3: Skip.HELD_UP,
    }
    scattered = [inelastic(9, 5, places={0: (5, 0)}), inelastic(9, 5, places={1: (5, 0)})]
    division = division_of(fleet_of([8, 8]), [*scattered, inelastic(9, 1, 4), inelastic(9, 1)], FIRST_COME)
    assert skips(division) == {2: Skip.FRAGMENTED, 3: Skip.HELD_UP}


def test_unschedulable_job_is_flagged_and_delays_no_other():
    jobs = [inelastic(9, 11), inelastic(9, 1, 11), inelastic(9, 10)]
    for options in (TwoPhase(), FIRST_COME, BACKFILLING, IN_TURN):
        division = division_of(fleet_of([10]), jobs, options)
        assert skips(division) == {0: Skip.UNSCHEDULABLE, 1: Skip.UNSCHEDULABLE}
        assert division.admitted.tolist() == [2]


def test_a_newcomers_base_takes_gpus_of_flexible_workers():
    jobs = [Job(1000.0, linear(4, 10), places={0: (4, 6)}), inelastic(50, 3)]
    division = division_of(fleet_of([10]), jobs)
    assert total_of(division.workers, 0) == (4, 3)
    assert division.change.tolist() == [WorkerChange.SHRINK, WorkerChange.START]
    assert division.rate.tolist() == [7.0, 1.0]
    assert division.knapsacks[0].capacity == 3


def test_each_kind_of_servers_has_its_own_knapsack():
    on_owned = Job(600.0, linear(2, 4))
    on_loan = Job(600.0, {}, linear(3, 6, 1 / 3))
    division = division_of(fleet_of([3], [5]), [on_owned, on_loan])
    assert total_of(division.workers, 0) == (2, 1)
    assert total_of(division.workers, 1) == (3, 2)
    assert [knapsack.value for knapsack in division.knapsacks] == [pytest.approx(100), pytest.approx(240)]


def test_knapsack_beyond_the_work_limit_is_marked_as_inexact():
    jobs = [Job(600.0, linear(2, 4)), Job(600.0, linear(2, 4))]
    assert division_of(fleet_of([6]), jobs).knapsacks[0].exact
    division = division_of(fleet_of([6]), jobs, TwoPhase(work_limit=1))
    assert not division.knapsacks[0].exact
    assert [sum(total_of(division.workers, job)) for job in (0, 1)] == [3, 3]


def test_estimates_decide_the_order_in_which_jobs_start():
    assert division_of(fleet_of([1]), [inelastic(125, 1), inelastic(99, 1)]).admitted.tolist() == [1]
    assert division_of(fleet_of([1]), [inelastic(100, 1), inelastic(110, 1)]).admitted.tolist() == [0]


def test_elastic_job_is_ordered_by_time_at_base_or_maximum_demand():
    jobs = [Job(200.0, linear(1, 4)), inelastic(100, 1)]
    assert division_of(fleet_of([1]), jobs).admitted.tolist() == [1]
    at_most = TwoPhase(order=BaseOrder.SHORTEST_AT_MOST)
    assert division_of(fleet_of([1]), jobs, at_most).admitted.tolist() == [0]


def test_waiting_makes_up_for_length_only_with_an_ageing_weight():
    jobs = [Job(200.0, {1: 1.0}, waiting_seconds=300.0), inelastic(100, 1)]
    assert division_of(fleet_of([1]), jobs).admitted.tolist() == [1]
    assert division_of(fleet_of([1]), jobs, TwoPhase(ageing_weight=0.5)).admitted.tolist() == [0]


def test_inelastic_jobs_prefer_owned_servers_and_elastic_ones_loans():
    fixed, growing, bound = inelastic(9, 2, lent=2), Job(9.0, linear(1, 2), linear(1, 2)), inelastic(9, 2)
    fleet = fleet_of([4], [4, 4])
    division = division_of(fleet, [fixed, growing, bound])
    assert set(places_in(division.workers, 0)) == {0}
    assert set(places_in(division.workers, 1)) == {1, 2}
    assert set(places_in(division.workers, 2)) == {0}
    crowded = [inelastic(99, 4, places={0: (4, 0)}), fixed, bound]
    division = division_of(fleet, crowded)
    assert set(places_in(division.workers, 1)) == {1}
    assert skips(division) == {2: Skip.NO_ROOM}


def test_without_growth_no_job_has_flexible_workers():
    jobs = [Job(1000.0, linear(4, 10), places={0: (4, 6)})]
    division = division_of(fleet_of([10]), jobs, TwoPhase(growth=Growth.NONE))
    assert total_of(division.workers, 0) == (4, 0)


def test_one_knapsack_over_both_kinds_counts_an_owned_gpu_as_three():
    jobs = [Job(600.0, linear(2, 4)), Job(900.0, {}, linear(3, 6, 1 / 3))]
    single = TwoPhase(growth=Growth.SINGLE_KNAPSACK)
    division = division_of(fleet_of([3], [5]), jobs, single)
    (knapsack,) = division.knapsacks
    assert (knapsack.capacity, knapsack.items, knapsack.weight) == (1 * 3 + 2, 4, 3 + 2)
    assert (total_of(division.workers, 0), total_of(division.workers, 1)) == ((2, 1), (3, 2))
    # What it takes for interchangeable may not be: nothing is left on loan, and the owned GPU stays idle.
    division = division_of(fleet_of([3], [3]), jobs, single)
    assert division.knapsacks[0].value == pytest.approx(450.0)
    assert (total_of(division.workers, 0), total_of(division.workers, 1)) == ((2, 0), (3, 0))


def test_running_jobs_are_not_resized_for_less_than_a_change_costs():
    jobs = [Job(100.0, linear(1, 2), places={0: (1, 1)}), Job(103.0, linear(1, 2), places={0: (1, 0)})]
    fleet = fleet_of([3])
    assert total_of(division_of(fleet, jobs).workers, 1) == (1, 1), "1.5 seconds more are saved"
    assert total_of(division_of(fleet, jobs, TwoPhase(change_seconds=0.7)).workers, 1) == (1, 1)
    assert total_of(division_of(fleet, jobs, TwoPhase(change_seconds=0.8)).workers, 1) == (1, 0)
    idle = division_of(fleet_of([4]), jobs, TwoPhase(change_seconds=60.0))
    assert total_of(idle.workers, 1) == (1, 0), "it would save 51.5 seconds and cost 60"
    newcomer = division_of(fleet_of([4]), [jobs[0], Job(103.0, linear(1, 2))], TwoPhase(change_seconds=60.0))
    assert total_of(newcomer.workers, 1) == (1, 1), "a start costs the same with any number of workers"


def test_the_greatest_gain_rule_prefers_small_work():
    small, large = Job(100.0, linear(1, 4)), Job(9000.0, linear(1, 4))
    jobs = [large, small]
    greatest_gain = TwoPhase(growth=Growth.GREATEST_GAIN)
    division = division_of(fleet_of([6]), jobs, greatest_gain)
    assert [sum(total_of(division.workers, job)) for job in (0, 1)] == [2, 4]
    assert [sum(total_of(division_of(fleet_of([6]), jobs).workers, job)) for job in (0, 1)] == [4, 2]


def test_the_greatest_gain_rule_counts_gain_per_gpu():
    jobs = [Job(100.0, linear(1, 2), gpus=2), Job(150.0, linear(1, 3))]
    division = division_of(fleet_of([5]), jobs, TwoPhase(growth=Growth.GREATEST_GAIN))
    assert [sum(total_of(division.workers, job)) for job in (0, 1)] == [1, 3]


def test_in_turn_growth_is_by_one_in_place_while_queue_is_empty():
    jobs = [Job(9.0, linear(1, 9), places={0: (1, 0)}), Job(9.0, linear(1, 3), places={0: (1, 0)})]
    division = division_of(fleet_of([8, 8]), jobs, IN_TURN)
    assert places_in(division.workers, 0) == {0: (1, 4)}
    assert places_in(division.workers, 1) == {0: (1, 2)}
    division = division_of(fleet_of([8, 8]), [*jobs, inelastic(9, 2, 8), inelastic(9, 1, 8)], IN_TURN)
    assert total_of(division.workers, 0) == (1, 0), "somebody waits"


def test_in_turn_the_job_that_grew_last_gives_back_just_enough():
    first = Job(9.0, linear(1, 5), places={0: (1, 4)}, grown_at=10.0)
    last = Job(9.0, linear(1, 3), places={0: (1, 2)}, grown_at=20.0)
    division = division_of(fleet_of([8]), [first, last, inelastic(9, 3)], IN_TURN)
    assert total_of(division.workers, 0) == (1, 3)
    assert total_of(division.workers, 1) == (1, 0)
    assert total_of(division.workers, 2) == (3, 0)
    division = division_of(fleet_of([8]), [first, last, inelastic(9, 7)], IN_TURN)
    assert division.change.tolist() == [WorkerChange.UNCHANGED] * 3, "shrinking would not help"


def test_a_mixing_job_may_split_its_base_and_runs_less_efficiently():
    jobs = [inelastic(99, 6, places={0: (6, 0)}), Job(1000.0, {4: 4.0}, {12: 4.0}, mixes=True)]
    division = division_of(fleet_of([8], [8]), jobs)
    assert places_in(division.workers, 1) == {0: (2, 0), 1: (6, 0)}
    assert division.rate[1] == pytest.approx(0.7 * 4.0)
    ideal = division_of(fleet_of([8], [8]), jobs, TwoPhase(efficiency=1.0))
    assert ideal.rate[1] == pytest.approx(4.0)
    assert skips(division_of(fleet_of([8], [5]), jobs)) == {1: Skip.NO_ROOM}


def test_mixing_jobs_come_last_and_grow_onto_servers_on_loan_first():
    mixing = Job(10.0, linear(2, 4), linear(6, 12, 1 / 3), mixes=True)
    jobs = [mixing, inelastic(1000, 2)]
    assert division_of(fleet_of([2]), jobs).admitted.tolist() == [1]
    division = division_of(fleet_of([8], [8, 8]), jobs, TwoPhase(efficiency=1.0))
    assert places_in(division.workers, 0) == {0: (2, 0), 1: (0, 6)}
    assert division.rate[0] == pytest.approx(4.0)
    division = division_of(fleet_of([8], [3]), jobs, TwoPhase(efficiency=1.0))
    assert places_in(division.workers, 0) == {0: (2, 1), 1: (0, 3)}
    assert division.rate[0] == pytest.approx(4.0)


def test_a_mix_that_would_slow_a_job_down_is_not_made():
    mixing = Job(10.0, linear(2, 4), linear(6, 12, 1 / 3), mixes=True)
    division = division_of(fleet_of([4], [1]), [mixing])
    assert places_in(division.workers, 0) == {0: (2, 2)}
    assert division.rate[0] == pytest.approx(4.0)


def test_powers_of_two_are_respected_throughout():
    powers = {2: 2.0, 4: 3.5, 8: 6.0}
    jobs = [Job(1000.0, powers), Job(1000.0, powers)]
    division = division_of(fleet_of([8, 3]), jobs)
    assert sorted(sum(total_of(division.workers, job)) for job in (0, 1)) == [4, 4]
    division = division_of(fleet_of([8, 7]), jobs)
    assert sorted(sum(total_of(division.workers, job)) for job in (0, 1)) == [4, 8]


def test_columns_of_other_lengths_are_refused():
    speeds = speeds_of([{1: 1.0}])
    with pytest.raises(ValueError, match="one row a job"):
        demands_of([1], [1.0, 2.0], speeds, speeds)
    assert demands_for([inelastic(1, 1)]).work.tolist() == [1.0]


def test_division_of_no_jobs_is_empty():
    division = division_of(fleet_of([8], [8]), [])
    assert division.workers.server.size == 0
    assert np.all(division.role == 0)
