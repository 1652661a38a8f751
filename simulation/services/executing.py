"""Execution of a claimed run: from the study's rows to Parquet files and a summary."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog
from django.conf import settings

from scheduling.core.question.snapshot import Fill, Newcomers
from scheduling.services.long_work.long_tasks import TaskAttempt
from simulation import store
from simulation.choices import StudySource
from simulation.engine.asked.pauses import Pauses
from simulation.engine.asked.settings import Imperfections, PoolSize, SimulationSettings
from simulation.engine.beginning import begin_under_way
from simulation.engine.outside.failures import drawn_failures
from simulation.engine.run import Simulation
from simulation.live.state import unpack, workload_of
from simulation.live.under_way import under_way
from simulation.models import SimulationRun, SimulationStudy
from simulation.outcome import RunOutcome
from simulation.reports.parquet import write_parquet
from simulation.reports.summary import summary
from simulation.services.lending import sharing_of
from simulation.services.runs import RUNS
from simulation.workloads.catalogue import load_workload, reference_gpu_type
from simulation.workloads.errors import TraceError
from simulation.workloads.options import WorkloadOptions
from simulation.workloads.workload import Workload

log = structlog.get_logger(__name__)


def execute_run(run_id: int) -> bool:
    """Execute the run if it is queued and no other worker claims it. Return whether results were stored.

    Raises any error of the simulator itself, after the run has been marked as failed.
    """
    return RUNS.work_off(
        run_id,
        _simulate,
        explain=_explained,
        longest_seconds=float(settings.SIMULATION_LIMITS["run_seconds"]),
    )


def _simulate(attempt: TaskAttempt[SimulationRun]) -> bool:
    def told(jobs_ended: int, jobs_total: int, simulated_seconds: float) -> None:
        attempt.told(
            jobs_ended=jobs_ended,
            jobs_total=max(jobs_total, jobs_ended),
            simulated_seconds=simulated_seconds,
        )

    return _store(attempt, simulated(attempt.row.study, attempt.row, told))


def _explained(error: Exception) -> str | None:
    if isinstance(error, MemoryError):
        return "There is not enough memory for it; take fewer jobs or GPUs."
    return str(error) if isinstance(error, (TraceError, ValueError, OSError)) else None


def simulated(
    study: SimulationStudy, run: SimulationRun, told: Callable[[int, int, float], None]
) -> RunOutcome:
    """Simulate one run of a study. ``told`` receives jobs ended, all jobs and the simulated second, and
    raises to stop the run.

    Raises:
        TraceError: the trace cannot be used.
    """
    workload = workload_for(study)
    workload = replace(workload, notes=(*workload.notes, *study.notes))
    limit = int(settings.SIMULATION_LIMITS["jobs"])
    if workload.jobs > limit:
        raise TraceError(f"the trace has more than {limit} jobs; limit them")
    told(0, workload.jobs, 0.0)
    asked = settings_for(study, run, workload)
    # Jobs of the live cluster were submitted before time 0; failures before it are past.
    failures = [
        one for one in drawn_failures(study.failures_per_server_day, asked, workload) if one.at >= 0.0
    ]
    simulation = Simulation(workload, asked, failures, progress=told)
    if study.source == StudySource.LIVE:
        state = unpack(bytes(study.live_state or b""))
        # Servers stay on loan up to the run's inference servers, if its servers have the live ones' size.
        on_loan = min(state.servers_on_loan, run.inference_servers)
        on_loan = on_loan if study.gpus_per_server == state.gpus_per_server else 0
        jobs = under_way(state, run.servers, study.gpus_per_server, lent_servers=on_loan)
        begin_under_way(simulation, jobs[: workload.jobs], on_loan=on_loan)
    return simulation.run()


def workload_for(study: SimulationStudy) -> Workload:
    """Return the study's jobs, the same for each of its runs. Raises TraceError or ValueError if they
    cannot be loaded."""
    if study.source == StudySource.LIVE:
        workload = workload_of(unpack(bytes(study.live_state or b"")))
        return workload if study.limit_jobs is None else workload.first(study.limit_jobs)
    return load_workload(
        study.trace,
        gpu_type=study.gpu_type or None,
        seed=study.seed,
        limit_jobs=study.limit_jobs or int(settings.SIMULATION_LIMITS["jobs"]) + 1,
        options=WorkloadOptions(best_effort_share=study.best_effort_share),
        allow_paths=False,
    )


def settings_for(study: SimulationStudy, run: SimulationRun, workload: Workload) -> SimulationSettings:
    """Return the settings of a run."""
    kind = study.gpu_type or reference_gpu_type(workload)
    return SimulationSettings(
        policy=run.policy,
        pools=(PoolSize(kind, run.servers, study.gpus_per_server),),
        slot_seconds=study.slot_seconds,
        pauses=Pauses(study.pauses),
        fill=Fill(study.fill),
        newcomers=Newcomers(run.newcomers),
        bound=study.bound,
        reserve_servers=study.reserve_servers,
        reserve_slack_seconds=study.reserve_slack_seconds,
        seed=study.seed,
        imperfections=Imperfections(promise_margin=study.promise_margin),
        failures_per_server_day=study.failures_per_server_day,
        sharing=sharing_of(study, run),
    )


def _store(attempt: TaskAttempt[SimulationRun], outcome: RunOutcome) -> bool:
    """Store the files, then the row that points to them; delete the files if the row cannot be stored."""
    run, found = attempt.row, summary(outcome)
    key = f"{store.study_folder(run.study_id)}/run-{run.pk}-{attempt.token[:12]}"
    with tempfile.TemporaryDirectory(prefix="simulation-") as folder:
        store.put(write_parquet(outcome, Path(folder)), key)
    how_far = {
        "jobs_ended": found["jobs"],
        "jobs_total": found["jobs"],
        "simulated_seconds": found["simulated_seconds"],
    }
    if attempt.finish(summary=found, results_key=key, **how_far):
        log.info("simulation run done", run=run.pk, seconds=round(outcome.wall_seconds, 3))
        return True
    store.remove(key)
    return False
