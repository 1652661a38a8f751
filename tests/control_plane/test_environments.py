"""A function's requirements: installed for real, from wheels, or the job fails with the installer's own words."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduling.choices import EnvironmentState, JobState
from scheduling.models import Environment, Job
from scheduling.services.environments import build_environments, open_environment
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.factories import FunctionVersionFactory

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]


def requirement(text: str) -> Environment:
    return Environment.objects.create(digest=hashlib.sha256(text.encode()).hexdigest(), requirements=text)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one small wheel, known to the installer as pip's find-links are."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "sundial-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("sundial.py", "SHADOW = 'long'\n")
        wheel.writestr(
            "sundial-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: sundial\nVersion: 1.2\n"
        )
        wheel.writestr(
            "sundial-1.2.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(
            "sundial-1.2.dist-info/RECORD",
            "sundial.py,,\nsundial-1.2.dist-info/METADATA,,\nsundial-1.2.dist-info/WHEEL,,\nsundial-1.2.dist-info/RECORD,,\n",
        )
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def storage(tmp_path: Path, settings: Any) -> None:
    settings.CHECKPOINT_URL = f"file://{tmp_path}/store"


@pytest.mark.usefixtures("cluster", "storage", "wheels")
def test_a_requirement_is_installed_once_and_packed_for_the_agents() -> None:
    environment = requirement("sundial==1.2\n")
    assert build_environments() == 1
    environment.refresh_from_db()
    assert environment.state == EnvironmentState.READY, environment.log
    archive = open_environment(environment.digest)
    assert archive is not None
    with tarfile.open(fileobj=io.BytesIO(archive.read())) as packed:
        assert "sundial.py" in packed.getnames()
    archive.close()
    assert build_environments() == 0


@pytest.mark.usefixtures("storage", "wheels")
def test_a_requirement_that_does_not_exist_fails_the_job_with_the_log(submit: Callable[..., Job]) -> None:
    node = SimulatedAgent.enrol("node-1", 4, SPEED)
    environment = requirement("sundial==99.0\n")
    version = FunctionVersionFactory.create(requirements_digest=environment.digest)
    job = submit(seconds=600, version=version)
    settle(node)
    job.refresh_from_db()
    assert job.state == JobState.SUBMITTED, "nothing is measured before the environment is there"
    build_environments()
    job.refresh_from_db()
    assert job.state == JobState.FAILED
    assert job.failure is not None
    assert job.failure["reason"] == "environment_failed"
    assert "sundial" in job.failure["traceback"]
    assert not job.generations.exists()
