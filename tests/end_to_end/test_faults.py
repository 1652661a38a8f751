"""Two short schedules of faults on the platform that these tests share; `make chaos` runs two hundred."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.injecting import Means
from faults.processes import find
from launch import Platform
from punctual.client import Client
from tests.faults.run import measure, run_schedule
from tests.faults.scene import Scene, upload

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

#: Two that meet agents, workers and the control plane within so short a time.
SEEDS = (20, 41)
SECONDS = 9.0


@pytest.fixture(scope="module")
def scene(running_platform: Platform, person: Client) -> Scene:
    """The shared platform: processes alone, as neither its links nor its disks are its own."""
    upload(person)
    return Scene(running_platform, person, Means(find=lambda: find(running_platform.folders)), [])


@pytest.fixture(scope="module")
def speed(scene: Scene) -> float:
    """Iterations a second at two GPUs. Once measured, the function can be promised deadlines."""
    return measure(scene)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_short_schedule_of_faults_breaks_nothing(
    scene: Scene, speed: float, seed: int, tmp_path: Path
) -> None:
    entry = run_schedule(scene, seed, SECONDS, speed, evidence_folder=tmp_path, say=print)
    assert entry.carried_out > 0
    assert entry.violations == []
