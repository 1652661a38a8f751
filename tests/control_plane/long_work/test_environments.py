"""A function's requirements are installed from real wheels, or the job fails with the installer's output."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import tarfile
import zipfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from cluster.choices import WorkState
from scheduling.choices import JobState
from scheduling.models import Environment, Job
from scheduling.services.long_work.environments import BUILDS, build_next_environment, open_environment
from scheduling.services.long_work.long_tasks import MOST_ATTEMPTS
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.factories import FunctionVersionFactory

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]


@pytest.fixture
def curves_known() -> bool:
    return False


def requirement(text: str) -> Environment:
    return Environment.objects.create(digest=hashlib.sha256(text.encode()).hexdigest(), requirements=text)


def add_wheel(folder: Path, name: str, version: str, *requirements: str) -> None:
    """Add a wheel of one small module to the index."""
    information = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "SHADOW = 'long'\n")
        wheel.writestr(
            f"{information}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            + "".join(f"Requires-Dist: {requirement}\n" for requirement in requirements),
        )
        wheel.writestr(
            f"{information}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        names = (f"{name}.py", f"{information}/METADATA", f"{information}/WHEEL", f"{information}/RECORD")
        wheel.writestr(f"{information}/RECORD", "".join(f"{file},,\n" for file in names))


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with one small wheel, given to the installer as pip's find-links."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    add_wheel(folder, "sundial", "1.2")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def storage(tmp_path: Path, settings: Any) -> None:
    settings.CHECKPOINT_URL = f"file://{tmp_path}/store"


@pytest.mark.usefixtures("cluster", "storage", "wheels")
def test_a_requirement_is_installed_once_and_packed_for_the_agents() -> None:
    environment = requirement("sundial==1.2\n")
    assert build_next_environment()
    environment.refresh_from_db()
    assert environment.state == WorkState.DONE, environment.log
    archive = open_environment(environment.digest)
    assert archive is not None
    with tarfile.open(fileobj=io.BytesIO(archive.read())) as packed:
        assert "sundial.py" in packed.getnames()
    archive.close()
    assert not build_next_environment(), "once"


@pytest.mark.usefixtures("storage", "wheels")
def test_a_requirement_that_does_not_exist_fails_the_job_with_the_log(submit: Callable[..., Job]) -> None:
    node = SimulatedAgent.enrol("node-1", 4, SPEED)
    environment = requirement("sundial==99.0\n")
    version = FunctionVersionFactory.create(requirements_digest=environment.digest)
    job = submit(seconds=600, version=version)
    settle(node)
    job.refresh_from_db()
    assert job.state == JobState.SUBMITTED, "nothing is measured before the environment is there"
    build_next_environment()
    job.refresh_from_db()
    assert job.state == JobState.FAILED
    assert job.failure is not None
    assert job.failure["reason"] == "environment_failed"
    assert "sundial" in job.failure["traceback"]
    assert not job.generations.exists()


@pytest.mark.usefixtures("cluster", "storage")
def test_package_using_pytorch_installs_beside_the_runtime(wheels: Path) -> None:
    """Servers may have a build of PyTorch that no index holds, such as 2.13.0+cpu."""
    release = importlib.metadata.version("torch").split("+")[0]
    add_wheel(wheels, "sundialtrainer", "3.0", f"torch (=={release})", "numpy (>1.0)", "sundial")
    environment = requirement("sundialtrainer\nnumpy\n")
    build_next_environment()
    environment.refresh_from_db()
    assert environment.state == WorkState.DONE, environment.log
    archive = open_environment(environment.digest)
    assert archive is not None
    with tarfile.open(fileobj=io.BytesIO(archive.read())) as packed:
        tops = {name.split("/")[0] for name in packed.getnames()}
    archive.close()
    assert tops == {
        "sundialtrainer.py",
        "sundialtrainer-3.0.dist-info",
        "sundial.py",
        "sundial-1.2.dist-info",
    }


@pytest.mark.usefixtures("cluster", "storage")
@pytest.mark.parametrize("asked", ["torch<2", "sundialtrainer", "numpy<1.20"])
def test_different_pytorch_or_numpy_is_refused_with_the_reason(wheels: Path, asked: str) -> None:
    add_wheel(wheels, "sundialtrainer", "3.0", "torch (<2)")
    environment = requirement(f"{asked}\n")
    build_next_environment()
    environment.refresh_from_db()
    assert environment.state == WorkState.FAILED
    assert f"The nodes bring torch {importlib.metadata.version('torch')} and numpy" in environment.log


@pytest.mark.usefixtures("cluster", "storage", "wheels")
def test_a_build_whose_worker_died_is_done_by_another_within_a_lease() -> None:
    environment = requirement("sundial==1.2\n")
    dead = BUILDS.attempt(environment.digest)
    assert dead is not None
    assert BUILDS.sweep() == 0, "its lease still runs"
    lose_worker(environment)
    assert BUILDS.sweep() == 1
    assert build_next_environment()
    assert not dead.fail("too late"), "whoever was taken for dead writes nothing"
    environment.refresh_from_db()
    assert (environment.state, environment.attempts) == (WorkState.DONE, 2)


def test_environment_build_lost_three_times_fails_its_waiting_jobs(
    submit: Callable[..., Job],
) -> None:
    SimulatedAgent.enrol("node-1", 4, SPEED)
    environment = requirement("sundial==1.2\n")
    job = submit(seconds=600, version=FunctionVersionFactory.create(requirements_digest=environment.digest))
    for _ in range(MOST_ATTEMPTS):
        assert BUILDS.attempt(environment.digest) is not None
        lose_worker(environment)
        BUILDS.sweep()
    job.refresh_from_db()
    assert job.state == JobState.FAILED
    assert job.failure is not None
    assert job.failure["reason"] == "environment_failed"
    assert "lost 3 times" in job.failure["traceback"]


def lose_worker(environment: Environment) -> None:
    Environment.objects.filter(pk=environment.pk).update(
        lease_expires_at=timezone.now() - timedelta(seconds=1)
    )
