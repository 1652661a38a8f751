"""A working day of a small cluster, on real parts: promises, growth, shrinking, preemption, offers, results.

Two agents with four emulated GPUs each. Deadlines are derived from the curves that the platform itself
measured at the start of the day, so that the machine's speed does not decide the outcome.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from punctual.client import Client, Job
from simulation.replay import differences, replay
from tests.end_to_end.conftest import EXAMPLES, GLOBAL_BATCH_SIZE, nothing_is_wrong, wait_for

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

#: The most that a start or a change takes on a busy machine with two cores, beyond the planned pause.
SPARE_SECONDS = 10.0


@dataclass(frozen=True)
class Calibration:
    """Iterations a second by GPUs of the day's example, as the platform measured them."""

    speed: dict[int, float]
    pause_seconds: float

    def seconds(self, iterations: int, gpus: int) -> float:
        return iterations / (0.95 * self.speed[gpus])

    def deadline(self, iterations: int, gpus: int) -> float:
        """Return a deadline that ``gpus`` GPUs can meet with room for starts and changes."""
        return self.seconds(iterations, gpus) + 2 * self.pause_seconds + SPARE_SECONDS

    def iterations_that_need(self, gpus: int, *, rather_than: int) -> int:
        """Return an amount of work for which the deadline of ``gpus`` GPUs cannot be met by fewer."""
        gained = self.seconds(1, rather_than) - self.seconds(1, gpus)
        return int(1.3 * (2 * self.pause_seconds + SPARE_SECONDS) / gained)


def submit(person: Client, name: str, iterations: int, deadline: float | None = None, **options: Any) -> Job:
    options.setdefault("example", "image_classifier")
    return person.submit(
        EXAMPLES / f"{options.pop('example')}.py",
        name=name,
        batch_size=GLOBAL_BATCH_SIZE,
        max_iterations=iterations,
        deadline=deadline,
        checkpoint_seconds=5.0,
        **options,
    )


@pytest.fixture(scope="module")
def calibration(person: Client) -> Calibration:
    """Run one short job of each example and read the measured curve."""
    jobs = [
        submit(person, f"calibrate-{name}", 10, example=name)
        for name in ("image_classifier", "character_model", "recommender")
    ]
    for job in jobs:
        wait_for(job, lambda job: job.state == "completed", "completed", seconds=240)
    curve = jobs[0].curve()
    levels = {level["gpus"]: level for level in curve["levels"]}
    assert sorted(levels) == [1, 2, 4, 8], "the largest free block was measured"
    return Calibration(
        {gpus: level["iterations_per_second"] for gpus, level in levels.items()},
        max(level["pause_seconds"] for level in levels.values()),
    )


@dataclass
class Day:
    """The jobs of the day by their roles."""

    yielding: Job
    wide: Job
    declined: Job
    accepted: Job
    cancelled: Job
    roomy: Job
    tight: Job
    soft: Job


@pytest.fixture(scope="module")
def day(person: Client, calibration: Calibration, rows: Callable[..., list[dict[str, Any]]]) -> Day:
    """Run the day. Its intermediate states are asserted on the way."""
    yielding = submit(person, "yielding", int(20 * calibration.speed[8]))
    wait_for(yielding, lambda job: job.state == "running" and job.gpus == 8, "all GPUs while it is alone")

    # More than four GPUs can do, so all eight are needed: best effort is preempted and the job spans both
    # agents.
    iterations = calibration.iterations_that_need(8, rather_than=4)
    wide = submit(person, "wide", iterations, calibration.deadline(iterations, 8))
    assert (wide.state, wide.promised) in (("admitted", True), ("running", True)), wide.verdict
    wait_for(yielding, lambda job: job.state == "suspended" and job.gpus == 0, "yields to zero GPUs")
    wait_for(wide, lambda job: job.gpus == 8, "spans both agents")

    declined = submit(person, "impossible", int(20 * calibration.speed[8]), 5.0)
    assert declined.state == "declined"
    assert declined.offer is not None, declined.verdict
    accepted = declined.accept_offer()
    assert accepted.promised

    cancelled = submit(person, "changed my mind", 10_000)
    cancelled.cancel()

    wait_for(wide, lambda job: job.state == "completed", "completed", seconds=240)
    wait_for(yielding, lambda job: job.gpus > 0, "comes back", seconds=120)
    wait_for(accepted, lambda job: job.state == "completed", "completed", seconds=300)
    wait_for(yielding, lambda job: job.state == "completed", "completed", seconds=300)

    # The cluster is empty: a job with a late deadline gets all GPUs until another one needs them.
    roomy_iterations = int(20 * calibration.speed[8])
    roomy = submit(person, "roomy", roomy_iterations, 3 * calibration.deadline(roomy_iterations, 2), seed=7)
    wait_for(roomy, lambda job: job.gpus == 8, "scaled up on an empty cluster")
    tight_iterations = int(12 * calibration.speed[4])
    tight = submit(person, "tight", tight_iterations, calibration.deadline(tight_iterations, 4))
    assert tight.promised, tight.verdict
    wait_for(roomy, lambda job: 0 < job.gpus < 8, "scaled down for the tight one")
    soft = submit(person, "wish", 100, 60.0, service_class="soft", example="character_model")
    for job in (tight, roomy, soft):
        wait_for(job, lambda job: job.state == "completed", "completed", seconds=400)
    nothing_is_wrong(rows)
    return Day(yielding, wide, declined, accepted, cancelled, roomy, tight, soft)


def test_every_promise_of_the_day_is_met(day: Day) -> None:
    for job in (day.wide, day.accepted, day.roomy, day.tight):
        job.refresh()
        assert (job.state, job.promise_outcome, job.late) == ("completed", "met", False), job.name


def test_the_decline_names_numbers_and_its_offer_was_later(day: Day) -> None:
    assert day.declined.verdict is not None
    assert any(character.isdigit() for character in day.declined.verdict.reason)
    assert day.accepted.resubmission_of == day.declined.id
    assert day.accepted.deadline_at is not None
    assert day.declined.deadline_at is not None
    assert day.accepted.deadline_at > day.declined.deadline_at


def test_the_cancelled_job_is_final_and_holds_nothing(day: Day) -> None:
    assert day.cancelled.refresh().state == "cancelled"
    assert day.cancelled.gpus == 0


def test_the_wide_job_trained_on_both_agents(day: Day, rows: Callable[..., list[dict[str, Any]]]) -> None:
    servers = rows(
        "select distinct s.name from scheduling_assignment a join scheduling_generation g on g.id = "
        "a.generation_id join cluster_gpu p on p.id = a.gpu_id join cluster_server s on s.id = p.server_id "
        "where a.job_id = %s and g.purpose = 'training' and g.world_size = 8",
        day.wide.id,
    )
    assert len(servers) == 2


def test_the_best_effort_job_lost_no_iteration_when_preempted(
    day: Day, rows: Callable[..., list[dict[str, Any]]]
) -> None:
    generations = rows(
        "select number, start, start_iteration from scheduling_generation where job_id = %s and purpose = "
        "'training' and live_at is not null order by number",
        day.yielding.id,
    )
    suspended = {
        row["iteration"]
        for row in rows(
            "select iteration from scheduling_checkpoint where job_id = %s and reason = 'suspend'",
            day.yielding.id,
        )
    }
    assert suspended, "it yielded"
    # Its last state is in storage and, while the room is not needed, in memory.
    resumed = {
        generation["start_iteration"]
        for generation in generations
        if (generation["start"] or {}).get("from") in ("checkpoint", "memory")
    }
    assert resumed, "it came back from the state that it left"
    assert resumed <= suspended


def test_every_decision_of_the_day_replays_identically(
    day: Day, rows: Callable[..., list[dict[str, Any]]]
) -> None:
    recorded = rows(
        "select id, kind, policy, summary, snapshot from scheduling_decision where snapshot is not null"
    )
    moved = {change["job"] for row in recorded for change in row["summary"]["changes"]}
    trained = (day.yielding, day.wide, day.accepted, day.roomy, day.tight, day.soft)
    assert {job.id for job in trained} <= moved, "every job was started by a recorded decision"
    for row in recorded:
        replayed = replay(bytes(row["snapshot"]), policy=row["policy"], kind=row["kind"])
        assert differences(row["summary"], replayed) == [], f"decision {row['id']}"


def test_the_losses_of_the_day_fall(day: Day) -> None:
    for job in (day.wide, day.roomy, day.tight, day.yielding, day.soft):
        losses = [metric.values["loss"] for metric in job.metrics() if "loss" in metric.values]
        tenth = max(1, len(losses) // 10)
        first, last = sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth
        assert last < first, f"{job.name}: {first} to {last}"


def test_the_weights_load_and_predict(day: Day, tmp_path: Path) -> None:
    (weights,) = [artifact for artifact in day.wide.artifacts() if artifact.name == "weights.pt"]
    day.wide.download(weights, tmp_path)
    example = runpy.run_path(str(EXAMPLES / "image_classifier.py"))
    function = example["ImageClassifier"]({"global_batch_size": GLOBAL_BATCH_SIZE})
    model = function.init_model()
    model.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    measured = function.evaluate(model)
    assert measured["validation_accuracy"] > 2 / len(example["SHAPES"]), "far better than guessing"


def test_a_rescaled_run_ends_like_an_undisturbed_one(
    person: Client, day: Day, rows: Callable[..., list[dict[str, Any]]]
) -> None:
    rescaled = day.roomy.refresh()
    undisturbed = submit(person, "undisturbed", rescaled.max_iterations, seed=7)
    wait_for(undisturbed, lambda job: job.state == "completed", "completed", seconds=300)
    same, other = rescaled.final_metrics or {}, undisturbed.final_metrics or {}
    digests = rows(
        "select distinct sample_order_digest from scheduling_job where id in (%s, %s)",
        rescaled.id,
        undisturbed.id,
    )
    assert [len(row["sample_order_digest"]) for row in digests] == [64], "every sample, in the same order"
    assert same["loss"] == pytest.approx(other["loss"], rel=0.02, abs=0.01)
