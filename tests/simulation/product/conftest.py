"""An operator, a store in a folder, and studies that take little time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from projects.models import User
from simulation.models import SimulationRun, SimulationStudy
from simulation.services.asking import StudyRequest
from simulation.services.studies import study_start
from tests.factories import UserFactory


@pytest.fixture
def store(settings: Any, tmp_path: Path) -> Path:
    """The folder of the durable store."""
    settings.CHECKPOINT_URL = f"file://{tmp_path}/store"
    return tmp_path / "store"


@pytest.fixture
def operator(db: None) -> User:
    user: User = UserFactory.create(username="olga", is_operator=True)
    return user


@pytest.fixture
def start(operator: User, store: Path) -> Callable[..., SimulationStudy]:
    """Return a function that starts a study, by default of twenty synthetic jobs. No worker executes it."""

    def start_one(**fields: Any) -> SimulationStudy:
        usual: dict[str, Any] = {
            "source": "trace",
            "trace": "elasticflow",
            "policies": ("punctual", "edf"),
            "servers": (4,),
            "gpus_per_server": 4,
            "limit_jobs": 20,
        }
        return study_start(actor=operator, request=StudyRequest(**{**usual, **fields}))

    return start_one


def runs_of(study: SimulationStudy) -> list[SimulationRun]:
    """Return the study's present runs in the order of the request."""
    return list(SimulationRun.objects.filter(study=study).order_by("id"))
