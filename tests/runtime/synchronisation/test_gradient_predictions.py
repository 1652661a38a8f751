"""Predictions come from profiling's measurements, so they follow undeclared changes of links and codecs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gradients.measuring import Measured, Plan, measure, plans
from benchmarks.gradients.scene import FUNCTIONS, Scene, Setting
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape
from workers.runtime.at_home.local_agent import LocalAgent

ELEMENTS = [20_000, 60_000, 1_000, 200_000]
#: A backward pass of 0.2 s. Encoding and decoding by OneBit take a fifth of an iteration under its plan.
SETTING = Setting(
    name="four tensors",
    source=FUNCTIONS / "shape.py",
    entry="shape:Shape",
    hyperparameters={"elements": ELEMENTS},
    samples=2,
    model=ModelProfile(
        "four tensors",
        tuple(f"tensors.t{place:03d}" for place in range(4)),
        np.array(ELEMENTS),
        np.array([0.02, 0.06, 0.02, 0.10]),
        0.1,
    ),
    codec="onebit",
    scaling=0.3,
    planner="cupcake",
    aim=1.0,
)
#: Codecs take 12 times the published times.
SCENE = Scene(SETTING, PlacementShape(2, 1), codec_factor=12.0)
CLOSE = 0.1
TRIES = 3


def _measured(agent: LocalAgent, scene: Scene, plan: Plan | None = None) -> Measured:
    for _ in range(TRIES):
        measured = measure(agent, scene, plan, 1.0)
        if not measured.void:
            return measured
    pytest.skip(f"this machine is too slow for the pace: it overran by {measured.overrun:.0%}")


def _close(plan: Plan, measured: Measured) -> bool:
    return abs(plan.predicted_seconds / measured.iteration_seconds - 1.0) <= CLOSE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "planner"),
    [
        (replace(SCENE, link_factor=0.5), "dense"),
        (replace(SCENE, codec_factor=24.0), "cupcake"),
    ],
    ids=["half the link", "twice the codec"],
)
def test_a_prediction_changes_after_a_new_measurement(
    agent: LocalAgent, changed: Scene, planner: str
) -> None:
    before = _measured(agent, SCENE)
    known = plans(SCENE, before.profile)
    assert _close(known["dense"], before)
    after = _measured(agent, changed)
    anew = plans(changed, after.profile)
    assert _close(anew["dense"], after)
    followed = after if planner == "dense" else _measured(agent, changed, anew[planner])
    assert _close(anew[planner], followed)
    # Earlier measurements say nothing about it.
    stale = known[planner]
    assert not _close(stale, followed)
    assert anew[planner].predicted_seconds > (1.0 + CLOSE) * stale.predicted_seconds
