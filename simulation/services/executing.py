"""Running a claimed run: from the study's rows to Parquet files and a summary."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import structlog
from django.conf import settings
from django.db import OperationalError

from scheduling.core.question.snapshot import Fill, Newcomers
from simulation import store
from simulation.choices import StudySource
from simulation.engine.beginning import begin_under_way
from simulation.engine.failures import drawn_failures
from simulation.engine.run import Simulation
from simulation.engine.settings import Imperfections, Pauses, PoolSize, SimulationSettings
from simulation.live.state import unpack, workload_of
from simulation.live.under_way import under_way
from simulation.models import SimulationRun, SimulationStudy
from simulation.outcome import Outcome
from simulation.reports.parquet import write_parquet
from simulation.reports.summary import summary
from simulation.services.heartbeat import CancelledByOperator, Heartbeat, LeaseLost, TookTooLong
from simulation.services.lending import sharing_of
from simulation.services.runs import ClaimedRun, run_claim, run_fail, run_finish, run_stop
from simulation.workloads.catalogue import load_workload, reference_gpu_type
from simulation.workloads.errors import TraceError
from simulation.workloads.options import WorkloadOptions
from simulation.workloads.workload import Workload

log = structlog.get_logger(__name__)


def execute_run(run_id: int) -> bool:
    """Run it, if it is queued and nobody else takes it. Returns whether results were stored.

    Raises whatever is wrong with the simulator itself, after the run has been marked as failed.
    """
    claimed = run_claim(run_id)
    if claimed is None:
        return False
    try:
        with Heartbeat(
            claimed, longest_seconds=float(settings.SIMULATION_LIMITS["run_seconds"])
        ) as heartbeat:
            outcome = simulated(claimed.study, claimed.run, heartbeat)
            return _store(claimed, outcome)
    except CancelledByOperator:
        run_stop(claimed)
    except LeaseLost:
        log.warning("simulation run was given to another worker", run=run_id)
    except (TookTooLong, TraceError, ValueError, OSError) as error:
        run_fail(claimed, str(error))
        log.warning("simulation run failed", run=run_id, error=str(error))
    except MemoryError:
        run_fail(claimed, "There is not enough memory for it; take fewer jobs or GPUs.")
    except OperationalError:
        raise  # the database is away: the lease runs out, and another attempt follows
    except Exception as error:
        run_fail(
            claimed,
            f"The simulator stopped with {type(error).__name__}: {error}. The log of the worker says more.",
        )
        raise
    return False


def simulated(study: SimulationStudy, run: SimulationRun, heartbeat: Heartbeat) -> Outcome:
    """One run of a study. Raises RunStopped when it shall not go on, TraceError for a trace that cannot be
    used."""
    workload = workload_for(study)
    workload = replace(workload, notes=(*workload.notes, *study.notes))
    limit = int(settings.SIMULATION_LIMITS["jobs"])
    if workload.jobs > limit:
        raise TraceError(f"the trace has more than {limit} jobs; limit them")
    heartbeat.told(0, workload.jobs, 0.0)
    asked = settings_for(study, run, workload)
    # Jobs of the live cluster were submitted before time 0, when nothing fails any more.
    failures = [
        one for one in drawn_failures(study.failures_per_server_day, asked, workload) if one.at >= 0.0
    ]
    simulation = Simulation(workload, asked, failures, progress=heartbeat.told)
    if study.source == StudySource.LIVE:
        state = unpack(bytes(study.live_state or b""))
        # Of the servers on loan those stay so that the run has, where its servers are like the live ones.
        on_loan = min(state.servers_on_loan, run.inference_servers)
        on_loan = on_loan if study.gpus_per_server == state.gpus_per_server else 0
        jobs = under_way(state, run.servers, study.gpus_per_server, lent_servers=on_loan)
        begin_under_way(simulation, jobs[: workload.jobs], on_loan=on_loan)
    return simulation.run()


def workload_for(study: SimulationStudy) -> Workload:
    """The study's jobs, the same for each of its runs. Raises TraceError or ValueError where they cannot be
    had."""
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
    """What the run is run with."""
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
        sharing=sharing_of(study, run),
    )


def _store(claimed: ClaimedRun, outcome: Outcome) -> bool:
    """Files first, then the row that points to them; without the row the files go again."""
    key = f"{store.study_folder(claimed.study.pk)}/run-{claimed.run.pk}-{claimed.token[:12]}"
    with tempfile.TemporaryDirectory(prefix="simulation-") as folder:
        store.put(write_parquet(outcome, Path(folder)), key)
    if run_finish(claimed, summary=summary(outcome), results_key=key):
        log.info("simulation run done", run=claimed.run.pk, seconds=round(outcome.wall_seconds, 3))
        return True
    store.remove(key)
    raise LeaseLost
