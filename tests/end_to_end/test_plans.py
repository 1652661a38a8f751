"""A communication plan on a whole platform with slow links: a job that needs the plan for its deadline is
trained under it, rescaled and killed, and on time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from launch import Platform
from launch.emulating.emulated_link import emulated_link
from punctual.client import Client, Job
from tests.end_to_end.conftest import logged_in, nothing_is_wrong, rows_of, started_platform, wait_for
from tests.end_to_end.test_kills import kill_a_worker, wait_for_progress

pytestmark = [pytest.mark.live, pytest.mark.timeout(1500)]

Rows = Callable[..., list[dict[str, Any]]]
FUNCTION = Path(__file__).parent / "functions" / "wide.py"
#: Without compression, a gradient of two megabytes takes a second over this link.
LINK = "16Mbps"
DEVICE_MODEL = {"fixed_seconds": 0.1, "seconds_per_sample": 0.02}
BATCH_SIZE = 32
#: One GPU computes an iteration in 0.74 s; two compute it in 0.42 s and exchange whole gradients in a second.
ITERATIONS = 900
#: Less than one GPU takes, or two without a plan, with room for measuring two GPUs under a plan.
DEADLINE_SECONDS = 640.0
CODEC = "onebit"
FAMILY = f"lossy({CODEC})"


@pytest.fixture(scope="module")
def running_platform() -> Iterator[Platform]:
    """Yield a platform of two servers with one GPU each."""
    yield from started_platform(
        agents=2, slots=1, warm_workers=1, device_model=DEVICE_MODEL, links=emulated_link(LINK)
    )


@pytest.fixture(scope="module")
def person(running_platform: Platform) -> Iterator[Client]:
    with logged_in(running_platform, *running_platform.demo_login) as client:
        yield client


@pytest.fixture(scope="module")
def rows(running_platform: Platform) -> Rows:
    return rows_of(running_platform)


def submit(person: Client, name: str, iterations: int, **options: Any) -> Job:
    return person.submit(
        FUNCTION, name=name, batch_size=BATCH_SIZE, max_iterations=iterations, checkpoint_seconds=5.0,
        project="demo", **options,
    )  # fmt: skip


def world_sizes(rows: Rows, job: Job) -> set[int]:
    generations = rows(
        "select world_size from scheduling_generation where job_id = %s and purpose = 'training' and live_at "
        "is not null",
        job.id,
    )
    return {row["world_size"] for row in generations}


def test_a_deadline_only_a_plan_can_meet_is_met(
    running_platform: Platform, person: Client, rows: Rows, tmp_path: Path
) -> None:
    refused = submit(person, "without a plan", ITERATIONS, deadline=DEADLINE_SECONDS)
    refused.wait_for_verdict(timeout_seconds=240)
    assert refused.state == "declined", refused.verdict
    if refused.offer is not None:
        refused.decline_offer()

    job = submit(
        person, "under a plan", ITERATIONS, deadline=DEADLINE_SECONDS, lossy="allowed", codecs=[CODEC]
    )
    job.wait_for_verdict(timeout_seconds=240)
    assert job.promised, job.verdict
    wait_for(job, lambda job: job.gpus == 2 and job.iterations_done > 5, "training on all GPUs")
    assert job.communication()["family"] == FAMILY

    other = submit(person, "makes it move", 5, deadline=120.0)
    wait_for(other, lambda other: other.state == "completed", "completed")
    kill_a_worker(running_platform, job)
    wait_for_progress(job)
    wait_for(job, lambda job: job.state == "completed", "completed", seconds=700)
    assert job.promise_outcome == "met"
    assert world_sizes(rows, job) == {1, 2}, "it made room by shrinking"
    assert other.refresh().promise_outcome == "met"
    (stored,) = [artifact for artifact in job.artifacts() if artifact.name == "weights.pt"]
    weights = torch.load(job.download(stored, tmp_path), weights_only=True)
    assert sorted(weights) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert all(value.isfinite().all() for value in weights.values())
    nothing_is_wrong(rows)
