"""One life cycle on a whole running platform: the only test of `make test` that needs one.

Two agents with one emulated GPU each. Every wait is for a condition, and its limit only detects a hang.
Nothing depends on the machine's speed: the job that is rescaled and killed never completes, and the promised
one has half an hour for a few seconds of work.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from launch import Platform
from launch.settings import DEFAULT_DEVICE_MODEL
from punctual.client import Client, Job
from tests.end_to_end.conftest import (
    EXAMPLES,
    GLOBAL_BATCH_SIZE,
    nothing_is_wrong,
    started_platform,
    wait_for,
    wait_until,
)
from tests.end_to_end.test_kills import (
    RARELY_SECONDS,
    iteration_in_memory,
    kill_a_worker,
    live_generation,
    stored_iteration,
    submit,
    wait_for_progress,
)

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(1800)]

Rows = Callable[..., list[dict[str, Any]]]
HANG_SECONDS = 600.0


@pytest.fixture(scope="package")
def running_platform() -> Iterator[Platform]:
    yield from started_platform(slots=1, warm_workers=1, device_model=DEFAULT_DEVICE_MODEL)


def test_a_promise_is_kept_while_jobs_rescale_and_recover(
    running_platform: Platform, person: Client, rows: Rows, tmp_path: Path
) -> None:
    endless = submit(person, "endless", 100_000, checkpoint_seconds=RARELY_SECONDS)
    wait_for(endless, lambda job: job.gpus == 2 and job.iterations_done > 5, "all GPUs", seconds=HANG_SECONDS)

    promised = submit(person, "promised", 20, deadline=1800.0)
    promised.wait_for_verdict(timeout_seconds=HANG_SECONDS)
    assert promised.promised, promised.verdict
    wait_for(promised, lambda job: job.state == "completed", "completed", seconds=HANG_SECONDS)
    assert (promised.iterations_done, promised.promise_outcome) == (20, "met")
    assert len([metric for metric in promised.metrics() if "loss" in metric.values]) > 1
    _weights_can_be_loaded(promised, tmp_path)

    wait_for(endless, lambda job: job.gpus == 2, "all GPUs again", seconds=HANG_SECONDS)
    sizes = rows(
        "select world_size from scheduling_generation where job_id = %s and purpose = 'training' and live_at "
        "is not null order by number",
        endless.id,
    )
    assert min(row["world_size"] for row in sizes[1:]) < 2, f"it made room by shrinking: {sizes}"

    wait_until(
        lambda: iteration_in_memory(rows, endless) > stored_iteration(endless),
        "the state in memory is newer than the stored one",
        seconds=HANG_SECONDS,
    )
    killed = live_generation(rows, endless)
    kill_a_worker(running_platform, endless)
    wait_until(lambda: live_generation(rows, endless) not in (None, killed), "recovery", seconds=HANG_SECONDS)
    wait_for_progress(endless, seconds=HANG_SECONDS)
    (recovery,) = [one for one in endless.recoveries() if one.failed_generation == killed]
    assert (recovery.outcome, recovery.source) == ("recovered", "own_memory")

    endless.cancel()
    nothing_is_wrong(rows)


def _weights_can_be_loaded(job: Job, folder: Path) -> None:
    (weights,) = [artifact for artifact in job.artifacts() if artifact.name == "weights.pt"]
    job.download(weights, folder)
    example = runpy.run_path(str(EXAMPLES / "image_classifier.py"))
    model = example["ImageClassifier"]({"global_batch_size": GLOBAL_BATCH_SIZE}).init_model()
    model.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
