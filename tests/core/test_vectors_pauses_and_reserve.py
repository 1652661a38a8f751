"""Worked examples of the pause model and the failure reserve: V7, V21, V22 of the specification."""

from __future__ import annotations

import pytest

from scheduling.core.elasticflow.pause_budget import published_pause_seconds
from scheduling.core.plans.reserve import probability_of_more_failures, reserved_gpus, servers_to_reserve


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


def test_v22_the_reserve_covers_all_but_the_accepted_risk():
    assert probability_of_more_failures(16, 0.01, 0) == pytest.approx(0.14854, abs=5e-6)
    assert probability_of_more_failures(16, 0.01, 1) == pytest.approx(0.01093, abs=5e-6)
    assert probability_of_more_failures(16, 0.01, 2) == pytest.approx(0.000508, abs=5e-7)
    assert servers_to_reserve(16, 0.01, 0.05) == 1
    assert servers_to_reserve(16, 0.01, 0.01) == 2
    assert 16 * 8 - reserved_gpus([8] * 16, 2) == 112
    assert servers_to_reserve(16, 0.0, 0.0) == 0


def test_the_reserve_is_what_the_largest_servers_have():
    assert reserved_gpus([4, 8, 2], 1) == 8
    assert reserved_gpus([8] * 16, 0) == 0


def test_a_probability_outside_its_range_is_refused():
    with pytest.raises(ValueError, match="failure_probability"):
        servers_to_reserve(16, 1.5, 0.01)
