"""A communication plan on a whole platform with slow links: what only a plan can promise is trained under it,
rescaled and killed, and on time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from launch import Platform
from launch.emulated_link import emulated_link
from punctual.client import Client, Job
from tests.end_to_end.conftest import nothing_is_wrong, started_platform, wait_for, wait_until
from tests.end_to_end.test_kills import goes_on, kill_a_worker

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

Rows = Callable[..., list[dict[str, Any]]]
FUNCTION = Path(__file__).parent / "functions" / "wide.py"
#: Sent whole, a gradient of two megabytes takes a second over this link; one GPU computes it in less.
LINK = "16Mbps"
DEVICE_MODEL = {"fixed_seconds": 0.1, "seconds_per_sample": 0.02}
BATCH_SIZE = 32
ITERATIONS = 250
CODEC = "onebit"
FAMILY = f"lossy({CODEC})"


@pytest.fixture(scope="package")
def running_platform() -> Iterator[Platform]:
    """Two servers with one GPU each."""
    yield from started_platform(
        agents=2, slots=1, warm_workers=1, device_model=DEVICE_MODEL, links=emulated_link(LINK)
    )


def submit(person: Client, name: str, iterations: int, **options: Any) -> Job:
    return person.submit(
        FUNCTION, name=name, batch_size=BATCH_SIZE, max_iterations=iterations, checkpoint_seconds=5.0,
        project="demo", **options,
    )  # fmt: skip


def measured(person: Client, name: str, **options: Any) -> float:
    """The most iterations a second that were measured for a job of this kind, once it is done."""
    job = submit(person, name, 2, **options)
    wait_for(job, lambda job: job.state == "completed", "completed", seconds=300)
    return max(float(level["iterations_per_second"]) for level in job.curve()["levels"])


def world_sizes(rows: Rows, job: Job) -> set[int]:
    found = rows(
        "select world_size from scheduling_generation where job_id = %s and purpose = 'training' and live_at "
        "is not null",
        job.id,
    )
    return {row["world_size"] for row in found}


def test_what_a_plan_alone_can_promise_is_on_time(
    running_platform: Platform, person: Client, rows: Rows, tmp_path: Path
) -> None:
    allowed = {"lossy": "allowed", "codecs": [CODEC]}
    whole = measured(person, "measured without a plan")
    # Codecs are planned for once a job names them, and measured with the next.
    measured(person, "names a codec", **allowed)
    wait_until(
        lambda: rows("select 1 from scheduling_gradientplan where family = %s", FAMILY), "plans", seconds=180
    )
    compressed = measured(person, "measured under a plan", **allowed)
    assert compressed > 1.3 * whole

    seconds = 0.95 * ITERATIONS / whole
    refused = submit(person, "without a plan", ITERATIONS, deadline=seconds)
    refused.wait_for_verdict(timeout_seconds=120)
    assert refused.state == "declined", refused.verdict
    if refused.offer is not None:
        refused.decline_offer()

    job = submit(person, "under a plan", ITERATIONS, deadline=seconds, **allowed)
    job.wait_for_verdict(timeout_seconds=120)
    assert job.promised, job.verdict
    wait_for(job, lambda job: job.gpus == 2 and job.iterations_done > 5, "training on all GPUs")
    assert job.communication()["family"] == FAMILY

    other = submit(person, "makes it move", 5, deadline=120.0)
    wait_for(other, lambda other: other.state == "completed", "completed")
    kill_a_worker(running_platform, job)
    goes_on(job)
    wait_for(job, lambda job: job.state == "completed", "completed", seconds=300)
    assert job.promise_outcome == "met"
    assert world_sizes(rows, job) == {1, 2}, "it made room by shrinking"
    assert other.refresh().promise_outcome == "met"
    (stored,) = [artifact for artifact in job.artifacts() if artifact.name == "weights.pt"]
    weights = torch.load(job.download(stored, tmp_path), weights_only=True)
    assert sorted(weights) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert all(value.isfinite().all() for value in weights.values())
    nothing_is_wrong(rows)
