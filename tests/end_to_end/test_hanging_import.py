"""A function that hangs in its import: its measurement is killed at its bound, the job fails, and no other
job is delayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from punctual.client import Client, Job
from tests.end_to_end.conftest import EXAMPLES, GLOBAL_BATCH_SIZE, nothing_is_wrong, wait_for, wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

Rows = Callable[..., list[dict[str, Any]]]
#: The limit of a measurement in this test.
MEASURING_SECONDS = 10.0
#: Seconds from the order to end until GPUs are confirmed free, with the time between two reports
#: (`scheduling/core/plans/release.py`).
CONFIRMING_SECONDS = 7.0
#: The most that a start or a change takes on a busy machine with two cores, beyond the planned pause.
SPARE_SECONDS = 15.0
HANGING = """
import time

from punctual import TrainingFunction

time.sleep(3600)


class Hanging(TrainingFunction):
    def init_model(self):
        return None

    def init_dataset(self):
        return None

    def init_optimizer(self, model):
        return None

    def train(self, batch, model):
        return None
"""


@pytest.fixture
def known(person: Client) -> Job:
    """Return a job of an example whose speed is known."""
    job = submit(person, "known", 10)
    return wait_for(job, lambda job: job.state == "completed", "completed", seconds=180)


@pytest.fixture
def short_bound(known: Job, rows: Rows) -> Iterator[None]:
    """Set a short bound for measurements from here on."""
    before = rows("select profile_maximum_seconds from cluster_cluster")[0]["profile_maximum_seconds"]
    change = "update cluster_cluster set profile_maximum_seconds = %s returning id"
    rows(change, MEASURING_SECONDS)
    try:
        yield
    finally:
        rows(change, before)


def submit(person: Client, name: str, iterations: int, deadline: float | None = None) -> Job:
    return person.submit(
        EXAMPLES / "image_classifier.py",
        name=name,
        batch_size=GLOBAL_BATCH_SIZE,
        max_iterations=iterations,
        deadline=deadline,
    )


def measurements(rows: Rows, job: Job) -> list[dict[str, Any]]:
    return rows(
        "select state, retired_because, extract(epoch from retired_at - held_at) as held_seconds from "
        "scheduling_generation where job_id = %s and purpose = 'profiling' order by number",
        job.id,
    )


def test_a_hanging_import_fails_its_job_while_promises_are_kept(
    person: Client, rows: Rows, known: Job, short_bound: None, tmp_path: Path
) -> None:
    code = tmp_path / "hanging.py"
    code.write_text(HANGING)
    hanging = person.submit(
        code, name="hangs at import", batch_size=GLOBAL_BATCH_SIZE, max_iterations=100, deadline=3600.0
    )
    wait_until(lambda: measurements(rows, hanging), "it is being measured", seconds=60)

    # A job submitted meanwhile is promised what the bound allows, and no more.
    level = next(level for level in known.curve()["levels"] if level["gpus"] == 4)
    iterations = int(5 * level["iterations_per_second"])
    work = iterations / (0.95 * level["iterations_per_second"]) + 2 * level["pause_seconds"]
    beside = submit(
        person, "beside it", iterations, MEASURING_SECONDS + CONFIRMING_SECONDS + work + SPARE_SECONDS
    )
    assert beside.promised, beside.verdict

    wait_for(beside, lambda job: job.state == "completed", "completed", seconds=180)
    assert (beside.promise_outcome, beside.late) == ("met", False)
    wait_for(hanging, lambda job: job.state == "failed", "refused", seconds=120)
    assert hanging.failure is not None
    assert hanging.failure["message"] == (
        "measuring its function took longer than 10 s 2 times, imports included"
    )
    ended = measurements(rows, hanging)
    assert [each["retired_because"] for each in ended] == ["measuring_timeout"] * 2
    for each in ended:
        assert float(each["held_seconds"]) < MEASURING_SECONDS + CONFIRMING_SECONDS
    wait_until(
        lambda: not rows("select 1 from scheduling_assignment where state <> 'released'"),
        "GPUs are free",
        seconds=30,
    )
    nothing_is_wrong(rows)
