"""Reports of NaN or infinite losses and weights, and their effect on the job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from cluster.models import Server
from scheduling.choices import JobState
from scheduling.models import Checkpoint, Generation, Job
from scheduling.selectors.jobs.nonfinite import warning_of
from scheduling.services.long_work.housekeeping import delete_old_checkpoints
from tests.control_plane.agent_api import busy_server, event, send, training_job

pytestmark = [pytest.mark.django_db, pytest.mark.urls("config.urls_agents")]


@pytest.fixture
def server() -> Server:
    return busy_server("node-a")


@pytest.fixture
def generation(server: Server) -> Generation:
    return training_job(server)[1]


def send_event(server: Server, generation: Generation, **fields: Any) -> Job:
    """Send an event and return the refreshed job."""
    report = event(generation, fields.pop("kind", "nonfinite"), **fields)
    answer = send(server, {"events": [report]})
    assert (answer.status_code, answer.json()["refused"]) == (200, [])
    return Job.objects.get(pk=generation.job_id)


def history(job: Job) -> list[str]:
    return [line.message for line in job.events.filter(kind="nonfinite").order_by("id")]


def test_a_run_of_bad_losses_is_in_history_and_headline(server: Server, generation: Generation) -> None:
    job = send_event(server, generation, what="loss_began", iteration=3, since=3)
    assert warning_of(job) == "The loss is NaN or infinite since iteration 3."
    send_event(server, generation, what="loss_began", iteration=3, since=3)
    job = send_event(server, generation, what="loss_ended", iteration=7, since=3)
    assert warning_of(job) == ""
    first, second = history(job)
    assert first.endswith("After 100 such iterations in a row the job stops.")
    assert second == "The loss is finite again at iteration 7."


def test_a_worker_cannot_fill_the_history(server: Server, generation: Generation) -> None:
    reports = [event(generation, "nonfinite", what="loss_began", iteration=n, since=n) for n in range(1, 80)]
    assert send(server, {"events": reports}).json()["refused"] == []
    assert len(history(generation.job)) == 20


def test_completed_job_warns_of_nonfinite_weights(server: Server, generation: Generation) -> None:
    names = ["0.weight", "b\u202eias"]
    send_event(server, generation, what="final_weights", iteration=9, tensors=3, of=4, names=names)
    job = send_event(server, generation, kind="completed", iteration=9)
    assert job.state == JobState.COMPLETED
    assert warning_of(job) == (
        "The final weights are useless: 3 of 4 tensors hold NaN or infinite values (0.weight, b\ufffdias, …)."
    )


def test_going_back_to_before_the_run_forgets_it(server: Server, generation: Generation) -> None:
    Job.objects.filter(pk=generation.job_id).update(nonfinite={"since": 40}, state=JobState.SUSPENDED)
    Generation.objects.filter(pk=generation.pk).update(state="handover")
    job = send_event(server, generation, kind="first_iteration", iteration=31, pause_seconds=1.0)
    assert warning_of(job) == ""


def state(generation: Generation, iteration: int) -> Checkpoint:
    return Checkpoint.objects.create(
        job=generation.job,
        generation=generation.number,
        iteration=iteration,
        uri=f"memory://states/{iteration}",
        reason="periodic",
        complete_at=timezone.now(),
    )


def fail(server: Server, generation: Generation, iteration: int) -> Job:
    message = "the loss was NaN or infinite in 100 iterations in a row"
    return send_event(
        server, generation, kind="failed", reason="nonfinite", message=message, iteration=iteration
    )


def test_a_stop_fails_the_job_and_names_the_last_good_state(server: Server, generation: Generation) -> None:
    """Another attempt would end in the same way."""
    good, bad = state(generation, 20), state(generation, 70)
    Job.objects.filter(pk=generation.job_id).update(checkpoint=bad, iterations_done=110)
    job = fail(server, generation, 120)
    assert job.state == JobState.FAILED
    assert job.failure is not None
    assert "The last state from before is that of iteration 20; it is kept" in job.failure["message"]
    assert job.checkpoint == good
    Job.objects.filter(pk=job.pk).update(finished_at=timezone.now() - timedelta(days=6))
    delete_old_checkpoints(timezone.now())
    assert list(Checkpoint.objects.filter(deleted_at__isnull=True)) == [good]
    delete_old_checkpoints(timezone.now() + timedelta(days=2))
    assert not Checkpoint.objects.filter(deleted_at__isnull=True).exists()


def test_failure_without_a_good_state_names_that(server: Server, generation: Generation) -> None:
    state(generation, 70)
    job = fail(server, generation, 120)
    assert job.failure is not None
    assert job.failure["message"].endswith("in a row. No state from before was stored.")


def test_a_late_stop_of_a_generation_that_was_replaced_moves_no_state(
    server: Server, generation: Generation
) -> None:
    newest = state(generation, 70)
    Job.objects.filter(pk=generation.job_id).update(checkpoint=newest, last_generation=2)
    Generation.objects.filter(pk=generation.pk).update(state="retired", retired_because="taken_over")
    job = fail(server, generation, 120)
    assert (job.state, job.checkpoint) == (JobState.RUNNING, newest)


@pytest.mark.parametrize(("iteration", "is_news"), [(40, True), (41, False)])
def test_a_late_report_counts_up_to_the_iteration_of_its_successor(
    server: Server, generation: Generation, iteration: int, is_news: bool
) -> None:
    """The successor began after iteration 40 and reports what it repeats itself."""
    Generation.objects.filter(pk=generation.pk).update(state="retired", retired_because="lost")
    generation.pk, generation.number = None, generation.number + 1
    generation.start_iteration, generation.live_at = 40, timezone.now()
    generation.save()
    generation.number -= 1
    job = send_event(server, generation, what="loss_began", iteration=iteration, since=iteration)
    assert (warning_of(job) != "") == is_news
