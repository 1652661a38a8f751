"""Worked examples of the pause model and the failure reserve: V7, V21, V22."""

from __future__ import annotations

import pytest

from scheduling.core.elasticflow.pause_budget import published_pause_seconds
from scheduling.core.plans.reserve import reserved_gpus


def test_v7_vgg16_keeps_three_quarters_of_linear_speed_on_eight_gpus():
    assert pytest.approx(76.07, abs=0.1) == 100 * 7.996428 / (8 * 1.313656)


@pytest.mark.parametrize(
    ("gpus", "facts", "seconds"),
    [
        (1, {}, 4),
        (8, {}, 10),
        (64, {}, 16),
        (8, {"cached": True}, 2),
        (8, {"trainers_restart": True}, 37),
        (8, {"cluster_gpus": 256}, 15),
        (8, {"cluster_gpus": 256, "trainers_restart": True}, 62),
    ],
)
def test_v21_the_published_pause(gpus, facts, seconds):
    assert published_pause_seconds(gpus, **facts) == pytest.approx(seconds)


def test_v22_the_reserve_takes_whole_servers_from_the_promises():
    assert 16 * 8 - reserved_gpus([8] * 16, 2) == 112


def test_the_reserve_is_what_the_largest_servers_have():
    assert reserved_gpus([4, 8, 2], 1) == 8
    assert reserved_gpus([8] * 16, 0) == 0


def test_standby_servers_count_towards_the_reserve():
    assert reserved_gpus([8] * 7, 1, standby_gpus=[8]) == 0
    assert reserved_gpus([8] * 7, 2, standby_gpus=[8]) == 8
    assert reserved_gpus([8] * 7, 1, standby_gpus=[4]) == 4
    assert reserved_gpus([8] * 6, 0, standby_gpus=[8, 8]) == 0
    assert reserved_gpus([8, 4], 1, standby_gpus=[4, 4]) == 4, "one lost server, one that takes its place"
