"""Whether lossless plans give the sums of all-reduces bit by bit, with gradients of whole numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.gradients.measuring import Plan, measure, plans
from benchmarks.gradients.scene import Scene
from communication.profiles.model import ModelProfile
from workers.runtime.at_home.local_agent import LocalAgent

ITERATIONS = 12
#: Seconds of the backward pass and of all else; this is no measurement of time.
SECONDS = 0.02
#: The function with an option for gradients of whole numbers.
COUNTS = "popular:Popular"


def counting(scene: Scene) -> Scene:
    """Return the same table, placement and links, with gradients that count how often a row was seen."""
    setting = scene.setting
    shape = setting.hyperparameters
    elements = np.array([shape["width"], shape["items"] * shape["width"]])
    model = ModelProfile("counting", ("bias", "items.weight"), elements, np.array([0.0, SECONDS]), SECONDS)
    counted = replace(scene, setting=replace(setting, hyperparameters={**shape, "whole": True}, model=model))
    # Keep the original links, not those on which this model would scale as published.
    return replace(counted, link_factor=scene.link_factor * scene.network / counted.network)


def sums_are_equal(agent: LocalAgent, scene: Scene) -> dict[str, bool]:
    """Return, by planner, whether all parameters are bitwise equal to those without a plan after each of a
    dozen steps. The plans are made for these gradients."""
    scene = counting(scene)
    made = plans(scene, measure(agent, scene, None, 0.5).profile)
    reference = _bits(agent, scene, None)
    if len(set(reference)) < ITERATIONS:
        raise RuntimeError(f"parameters did not change in each of {ITERATIONS} steps: {reference}")
    return {
        name: _bits(agent, scene, plan) == reference
        for name, plan in made.items()
        if plan.candidate.lossless and name != "dense"
    }


def _bits(agent: LocalAgent, scene: Scene, plan: Plan | None) -> list[float]:
    """Return the checksum of the parameters at the beginning of each iteration but the first."""
    told: dict[str, Any] = scene.assignment(0.5)
    for key in ("purpose", "profile"):
        del told[key]
    told["termination"] = {"max_iterations": ITERATIONS + 1, "target": None}
    if plan is not None:
        told["runtime_plan"] = plan.runtime_plan
    generation = agent.start_generation(
        scene.setting.source, told, scene.placement.workers, seconds=300
    ).wait_until_ready(300)
    report = generation.train_from_nothing().report(600)
    generation.stop()
    return [point["values"]["bits"] for point in report["history"]][1:]
