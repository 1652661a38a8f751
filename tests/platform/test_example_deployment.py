"""The example language model is deployed once in the life of the data, when its job has completed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch.folders import Folders
from launch.showing.example_deployment import NAME, deploy_example, submitted_job
from punctual.errors import ConflictError


def platform(
    *, job_state: str = "completed", existing: list[dict[str, Any]] | None = None, **ready: str
) -> tuple[Any, list[str]]:
    """Return a client of a platform with one job, and the list of what it deploys."""
    made: list[str] = []

    def create(job: str, *, name: str) -> dict[str, Any]:
        if ready.get("state") == "taken":
            raise ConflictError(f"There is a deployment called {name}.", status=409)
        made.append(name)
        return {"id": "d1"}

    job = SimpleNamespace(id="j1", state=job_state)
    job.wait = lambda: job
    deployments = SimpleNamespace(
        all=lambda **_: iter(existing or []),
        create=create,
        wait_until_ready=lambda *_, **__: {"state": "ready", "reason": "", **ready},
    )
    return SimpleNamespace(job=lambda _: job, deployments=deployments), made


def test_completed_example_is_deployed() -> None:
    client, made = platform()
    assert f"deployments predict {NAME}" in deploy_example(client, "j1")
    assert made == [NAME]


def test_example_deployed_by_an_earlier_run_is_unchanged() -> None:
    client, made = platform(existing=[{"id": "d0"}])
    deploy_example(client, "j1")
    assert made == []


@pytest.mark.parametrize(
    ("platform_has", "words"),
    [
        ({"job_state": "failed"}, "its job j1 is failed"),
        ({"state": "taken"}, "not deployed: There is a deployment called language-model."),
        ({"state": "failed", "reason": "No replica serves."}, "is failed. No replica serves."),
    ],
)
def test_reason_why_the_example_does_not_answer(platform_has: dict[str, Any], words: str) -> None:
    client, _ = platform(**platform_has)
    assert words in deploy_example(client, "j1")


def test_only_a_submitted_example_is_deployed_and_once(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.prepare()
    assert submitted_job(folders) is None
    folders.examples_submitted.write_text("abc recommender (best_effort)\nxyz language-model (soft)\n")
    assert submitted_job(folders) == "xyz"
    folders.example_deployed.write_text("deleted since\n")
    assert submitted_job(folders) is None
    folders.example_deployed.unlink()
    folders.examples_submitted.write_text("")  # from data of an older version
    assert submitted_job(folders) is None
