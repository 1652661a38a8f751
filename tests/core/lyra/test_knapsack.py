"""The knapsack solves the worked examples, keeps held items where values tie, and reports greedy
solutions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from scheduling.core.lyra.knapsack import NO_ITEM, Choice, ItemGroups, choose_items

TABLE_32 = [[(1, 50.0), (2, 75.0), (3, 90.0), (4, 100.0)], [(1, 20.0), (2, 30.0), (3, 36.0), (4, 40.0)]]
TABLE_34 = [[(1, 50.0)], [(1, 20.0), (2, 30.0), (3, 36.0), (4, 40.0)]]
FIGURE_36 = [[(2, 50.0)], TABLE_34[1]]
MIXED_SIZES = [[(3, 30.0)], [(2, 18.0), (4, 24.0)], [(2, 18.0), (4, 24.0)]]


def groups_of(
    items: Sequence[Sequence[tuple[int, float]]], present: Sequence[int] | None = None
) -> ItemGroups:
    """Groups of (weight, value); ``present``: which item of its group is held, counted from 1, 0 for none."""
    offsets = np.concatenate(([0], np.cumsum([len(group) for group in items]))).astype(np.int64)
    held = np.array([0] * len(items) if present is None else present, dtype=np.int64)
    return ItemGroups(
        offsets,
        np.array([weight for group in items for weight, _ in group], dtype=np.int64),
        np.array([value for group in items for _, value in group], dtype=np.float64),
        np.where(held > 0, offsets[:-1] + held - 1, NO_ITEM),
    )


def taken_in(choice: Choice, groups: ItemGroups) -> list[int]:
    """Which item of each group was chosen, counted from 1, 0 for none."""
    return np.where(choice.chosen == NO_ITEM, 0, choice.chosen - groups.offsets[:-1] + 1).tolist()


@pytest.mark.parametrize(
    ("capacity", "value", "extra"),
    [
        (0, 0, [0, 0]),
        (1, 20, [0, 1]),
        (2, 50, [1, 0]),
        (3, 70, [1, 1]),
        (4, 80, [1, 2]),
        (5, 86, [1, 3]),
        (6, 90, [1, 4]),
        (60, 90, [1, 4]),
    ],
)
def test_figure_3_6_with_workers_of_one_and_two_gpus(capacity, value, extra):
    groups = groups_of(FIGURE_36)
    choice = choose_items(groups, capacity)
    assert choice.value == value
    assert taken_in(choice, groups) == extra


def test_tables_3_2_and_3_4_with_single_gpu_workers():
    table = groups_of(TABLE_34)
    choice = choose_items(table, 4)
    assert (choice.value, taken_in(choice, table)) == (86, [1, 3])
    table = groups_of(TABLE_32)
    choice = choose_items(table, 4)
    assert (choice.value, taken_in(choice, table)) == (110, [3, 1])
    values = [choose_items(table, capacity).value for capacity in range(9)]
    assert values == [0, 50, 75, 95, 110, 120, 130, 136, 140]


def test_value_per_gpu_is_not_enough_when_workers_differ_in_size():
    groups = groups_of(MIXED_SIZES)
    assert [choose_items(groups, capacity).value for capacity in range(9)] == [
        0,
        0,
        18,
        30,
        36,
        48,
        48,
        66,
        66,
    ]
    greedy = choose_items(groups, 4, work_limit=0)
    assert greedy.value == 30
    assert not greedy.exact


def test_greedy_changes_a_group_to_a_better_item_that_fits_afterwards():
    groups = groups_of([[(1, 10.0), (4, 12.0)], [(3, 9.0)]])
    choice = choose_items(groups, 5, work_limit=0)
    assert taken_in(choice, groups) == [1, 1]
    groups = groups_of([[(1, 10.0), (3, 11.0)], [(4, 8.0)]])
    choice = choose_items(groups, 3, work_limit=0)
    assert taken_in(choice, groups) == [2, 0]
    assert choice.weight == 3


def test_equal_values_keep_what_is_held():
    twins = [[(1, 10.0)], [(1, 10.0)]]
    for present in ([1, 0], [0, 1]):
        groups = groups_of(twins, present)
        assert taken_in(choose_items(groups, 1), groups) == present


def test_equal_values_otherwise_take_fewer_workers():
    flat = groups_of([[(1, 10.0), (2, 10.0)], [(1, 0.0)]])
    assert taken_in(choose_items(flat, 2), flat) == [1, 0]
    assert taken_in(choose_items(flat, 3), flat) == [1, 0]


def test_a_common_unit_of_weights_does_not_change_the_choice():
    eights = [[(8 * weight, value) for weight, value in group] for group in TABLE_32]
    groups = groups_of(eights)
    for spare in (0, 7):
        choice = choose_items(groups, 32 + spare)
        assert taken_in(choice, groups) == [3, 1]
        assert choice.weight == 32


def test_all_jobs_get_their_maximum_where_it_fits_at_any_work_limit():
    groups = groups_of(TABLE_32)
    choice = choose_items(groups, 8, work_limit=0)
    assert choice.exact
    assert taken_in(choice, groups) == [4, 4]


def test_no_groups_and_groups_without_items_are_fine():
    assert choose_items(groups_of([]), 5).value == 0
    groups = groups_of([[], [(2, 3.0)], []])
    assert taken_in(choose_items(groups, 1), groups) == [0, 0, 0]
    assert taken_in(choose_items(groups, 2), groups) == [0, 1, 0]


@pytest.mark.parametrize("weights", [[0], [2, 2], [3, 1]])
def test_weights_must_ascend_from_one(weights):
    with pytest.raises(ValueError, match="ascend"):
        choose_items(groups_of([[(weight, 1.0) for weight in weights]]), 5)
