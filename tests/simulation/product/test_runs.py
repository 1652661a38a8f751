"""The life of a run: claimed, in progress, cancelled, lost with its worker, and done."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from cluster.choices import WorkState
from scheduling.models import OutboxMessage
from scheduling.services.long_work import long_tasks
from simulation.engine.run import Simulation
from simulation.models import SimulationRun, SimulationStudy
from simulation.reports.parquet import read_parquet
from simulation.selectors.studies import COMPARISON_FIGURES, comparison_of, report_open, study_get
from simulation.services import executing, runs
from simulation.services.comparing import refresh_comparison
from simulation.services.ending_studies import run_cancel, study_cancel, study_delete
from simulation.services.executing import execute_run, workload_for
from tests.dashboard.waiting import wait_until
from tests.factories import SimulationRunFactory, SimulationStudyFactory
from tests.simulation.product.conftest import runs_of

pytestmark = pytest.mark.django_db(transaction=True)
Start = Callable[..., SimulationStudy]


def fresh(run: SimulationRun) -> SimulationRun:
    return SimulationRun.objects.get(pk=run.pk)


def expire(run: SimulationRun) -> None:
    """Let the lease of the run's worker expire."""
    SimulationRun.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))


def messages(topic: str) -> list[dict[str, Any]]:
    """Return the wake-ups that were recorded and not sent."""
    return list(OutboxMessage.objects.filter(topic=topic).values_list("payload", flat=True))


@pytest.fixture
def undelivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep wake-ups in the outbox, as without a broker."""
    monkeypatch.setattr("scheduling.services.rows.wakeups._deliver_or_log", lambda topic, payload: False)


def test_a_run_leaves_a_summary_and_files_that_hold_the_same(start: Start, store: Path) -> None:
    run = runs_of(start())[0]
    assert execute_run(run.pk)
    run = fresh(run)
    assert run.state == WorkState.DONE
    assert run.progress() == 1.0
    assert run.summary is not None
    assert run.summary["policy"] == "punctual"
    assert run.summary["jobs"] == 20
    assert run.summary["admitted_late"] == 0
    assert read_parquet(store / run.results_key).jobs.job_id == workload_for(run.study).job_id


def test_a_run_is_executed_once_whatever_number_of_messages_names_it(start: Start) -> None:
    run = runs_of(start())[0]
    assert execute_run(run.pk)
    finished_at = fresh(run).finished_at
    assert not execute_run(run.pk)
    assert fresh(run).finished_at == finished_at
    assert fresh(run).attempts == 1


def test_two_workers_never_hold_one_run(start: Start) -> None:
    run = runs_of(start())[0]
    assert runs.RUNS.attempt(run.pk) is not None
    assert runs.RUNS.attempt(run.pk) is None


def test_runs_of_one_study_are_compared_when_they_end(start: Start, store: Path) -> None:
    study = start()
    first, second = runs_of(study)
    execute_run(first.pk)
    assert refresh_comparison(study.pk)
    alone = comparison_of(study_get(study.pk))
    assert alone is not None
    assert [run["label"] for run in alone["runs"]] == ["punctual"]
    execute_run(second.pk)
    assert refresh_comparison(study.pk)
    assert not refresh_comparison(study.pk), "nothing has ended since"
    compared = comparison_of(study_get(study.pk))
    assert compared is not None
    assert [run["label"] for run in compared["runs"]] == ["punctual", "edf"]
    assert compared["warnings"] == []
    assert list(compared["figures"]) == list(COMPARISON_FIGURES)
    for name, figure in compared["figures"].items():
        assert figure["layout"]["meta"]["title"] == COMPARISON_FIGURES[name]
    assert b"<!doctype html>" in report_open(study_get(study.pk))[:40].lower()
    folder = store / "simulations" / str(study.pk)
    assert folder.is_dir()
    study_delete(study=study)
    assert not folder.exists(), "the files of a study are deleted with it"
    assert not SimulationRun.objects.exists()


def test_progress_is_written_during_the_run(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_tasks, "BEAT_SECONDS", 0.005)
    run = runs_of(start(limit_jobs=40))[0]
    progress: list[tuple[int, int, float]] = []
    renewed = long_tasks.TaskAttempt.renew

    def renew(attempt: long_tasks.TaskAttempt[SimulationRun], **how_far: Any) -> bool | None:
        answer = renewed(attempt, **how_far)
        row = fresh(run)
        progress.append((row.jobs_ended, row.jobs_total, row.simulated_seconds))
        return answer

    monkeypatch.setattr(long_tasks.TaskAttempt, "renew", renew)
    slowed(monkeypatch, lambda: len(progress) >= 3)
    execute_run(run.pk)
    assert progress == sorted(progress)
    assert any(0 < ended <= total == 40 and seconds > 0 for ended, total, seconds in progress)


def slowed(monkeypatch: pytest.MonkeyPatch, condition: Callable[[], bool]) -> None:
    """Make the simulation wait once, half way, for a condition."""
    original = Simulation._step
    waited: list[float] = []

    def step(self: Simulation, at: float) -> None:
        original(self, at)
        if not waited and self._ended * 2 >= self.workload.jobs > 12:
            waited.append(at)
            wait_until(condition, "what the test waits for happens beside the simulation")

    monkeypatch.setattr(Simulation, "_step", step)


def test_a_running_run_stops_when_it_is_cancelled(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_tasks, "BEAT_SECONDS", 0.005)
    study = start()
    run = runs_of(study)[0]
    original = long_tasks.TaskAttempt._renew
    stops: list[Any] = []

    def renew(self: long_tasks.TaskAttempt[SimulationRun]) -> None:
        if self._progress.get("jobs_ended") and not fresh(run).cancel_requested:
            run_cancel(run=run)
        original(self)
        if self._stop is not None:
            stops.append(self._stop)

    monkeypatch.setattr(long_tasks.TaskAttempt, "_renew", renew)
    slowed(monkeypatch, lambda: bool(stops))
    assert not execute_run(run.pk)
    run = fresh(run)
    assert run.state == WorkState.CANCELLED
    assert run.summary is None
    assert run.error == ""


def test_a_queued_run_is_cancelled_at_once_and_never_begun(start: Start) -> None:
    study = start()
    assert study_cancel(study=study) == 2
    assert {run.state for run in runs_of(study)} == {WorkState.CANCELLED}
    assert not execute_run(runs_of(study)[0].pk)


def test_run_of_a_dead_worker_is_requeued_and_finished(start: Start) -> None:
    run = runs_of(start())[0]
    dead = runs.RUNS.attempt(run.pk)
    assert dead is not None
    assert runs.sweep_runs() == 0, "its lease still runs"
    expire(run)
    assert runs.sweep_runs() == 1
    assert fresh(run).state == WorkState.QUEUED
    assert execute_run(run.pk)
    run = fresh(run)
    assert (run.state, run.attempts) == (WorkState.DONE, 2)


def test_a_worker_that_was_taken_for_dead_leaves_nothing(start: Start, store: Path) -> None:
    run = runs_of(start())[0]
    slow = runs.RUNS.attempt(run.pk)
    assert slow is not None
    expire(run)
    runs.sweep_runs()
    assert slow.renew(jobs_ended=1, jobs_total=2, simulated_seconds=3.0) is None
    assert execute_run(run.pk)
    done = fresh(run)
    assert not slow.finish(summary={"jobs": 1, "simulated_seconds": 1.0}, results_key="elsewhere")
    assert not slow.fail("too late")
    assert fresh(run).results_key == done.results_key


def test_a_run_that_takes_every_worker_with_it_is_given_up(start: Start) -> None:
    run = runs_of(start())[0]
    for _ in range(long_tasks.MOST_ATTEMPTS):
        assert runs.RUNS.attempt(run.pk) is not None
        expire(run)
        runs.sweep_runs()
    run = fresh(run)
    assert run.state == WorkState.FAILED
    assert "lost 3 times" in run.error


def test_run_cancelled_while_its_worker_died_stays_cancelled(start: Start) -> None:
    run = runs_of(start())[0]
    runs.RUNS.attempt(run.pk)
    run_cancel(run=run)
    expire(run)
    runs.sweep_runs()
    assert fresh(run).state == WorkState.CANCELLED


@pytest.mark.usefixtures("undelivered")
def test_a_lost_message_is_sent_again(start: Start) -> None:
    run = runs_of(start(policies=("punctual",)))[0]
    assert messages("simulate_run") == [{"run_id": run.pk}]
    OutboxMessage.objects.all().delete()
    assert runs.sweep_runs() == 0, "its message may still be on its way"
    SimulationRun.objects.update(wake_at=timezone.now() - timedelta(seconds=1))
    assert runs.sweep_runs() == 1
    assert runs.sweep_runs() == 0, "one message at a time"
    assert messages("simulate_run") == [{"run_id": run.pk}]


@pytest.mark.usefixtures("undelivered")
def test_a_long_queue_does_not_fill_the_broker(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_tasks, "MOST_MESSAGES", 2)
    start(policies=("punctual", "edf", "themis"))
    OutboxMessage.objects.all().delete()
    SimulationRun.objects.update(wake_at=timezone.now() - timedelta(seconds=1))
    assert runs.sweep_runs() == 2
    assert runs.sweep_runs() == 0, "the third waits until one of the two is taken"


@pytest.mark.usefixtures("undelivered")
def test_a_comparison_that_was_lost_with_its_worker_is_asked_for(start: Start) -> None:
    study = start(policies=("punctual",))
    execute_run(runs_of(study)[0].pk)
    assert runs.sweep_runs() == 0
    SimulationRun.objects.update(finished_at=timezone.now() - timedelta(minutes=5))
    assert runs.sweep_runs() == 1
    assert messages("compare_runs") == [{"study_id": study.pk}]
    assert refresh_comparison(study.pk)
    assert runs.sweep_runs() == 0


def test_a_trace_that_cannot_be_used_fails_the_run_with_one_line(start: Start) -> None:
    run = runs_of(start(gpu_type="abacus"))[0]
    assert not execute_run(run.pk)
    run = fresh(run)
    assert run.state == WorkState.FAILED
    assert "abacus" in run.error
    assert "\n" not in run.error


def test_a_defect_of_the_simulator_fails_the_run_and_is_not_hidden(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("the clock went backwards")

    monkeypatch.setattr(executing, "simulated", broken)
    run = runs_of(start())[0]
    with pytest.raises(RuntimeError):
        execute_run(run.pk)
    assert "the clock went backwards" in fresh(run).error


def test_a_run_that_takes_too_long_ends_itself(
    start: Start, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SIMULATION_LIMITS = {**settings.SIMULATION_LIMITS, "run_seconds": 0}
    monkeypatch.setattr(long_tasks, "BEAT_SECONDS", 0.005)
    run = runs_of(start())[0]
    beats: list[long_tasks.TaskAttempt[SimulationRun]] = []
    renew = long_tasks.TaskAttempt._renew

    def noted(self: long_tasks.TaskAttempt[SimulationRun]) -> None:
        renew(self)
        beats.append(self)

    monkeypatch.setattr(long_tasks.TaskAttempt, "_renew", noted)
    slowed(monkeypatch, lambda: any(beat._stop for beat in beats))
    assert not execute_run(run.pk)
    assert "longer than it may" in fresh(run).error


def test_a_worker_on_a_deleted_study_leaves_no_files(
    start: Start, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = start()
    run = runs_of(study)[0]
    simulated = executing.simulated

    def deleted_meanwhile(*of_run: Any) -> Any:
        outcome = simulated(*of_run)
        study_delete(study=SimulationStudy.objects.get(pk=study.pk))
        return outcome

    monkeypatch.setattr(executing, "simulated", deleted_meanwhile)
    assert not execute_run(run.pk)
    assert list(store.rglob("*.parquet")) == []


def test_files_that_outlived_their_study_are_swept_up(start: Start, store: Path) -> None:
    study = start()
    execute_run(runs_of(study)[0].pk)
    orphan = store / "simulations" / "999999"
    orphan.mkdir()
    (orphan / "jobs.parquet").write_bytes(b"PAR1")
    assert runs.delete_orphans() == 1
    assert not orphan.exists()
    assert (store / "simulations" / str(study.pk)).is_dir()


@pytest.mark.parametrize(
    "impossible",
    [
        {"state": "running", "lease_token": ""},
        {"state": "running", "lease_expires_at": None},
        {"state": "queued", "lease_token": "held", "lease_expires_at": timezone.now()},
        {"state": "done", "summary": None},
        {"state": "done", "results_key": ""},
        {"state": "cancelled", "finished_at": None},
        {"state": "failed", "error": ""},
        {"state": "queued", "jobs_total": 3, "jobs_ended": 4},
        {"servers": 0},
    ],
)
def test_the_database_refuses_runs_that_cannot_be(impossible: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        SimulationRunFactory.create(**impossible)


def test_the_database_refuses_a_study_of_nothing_and_of_two_things() -> None:
    for impossible in ({"trace": ""}, {"live_state": b"x"}, {"source": "live"}):
        with pytest.raises(IntegrityError), transaction.atomic():
            SimulationStudyFactory.create(**impossible)
