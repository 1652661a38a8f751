"""Small clusters beside small inference clusters, for runs that can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lending.forecasting.registry import NO_FORECASTER
from scheduling.core.lyra.reclaiming.methods import ReclaimMethod
from simulation.engine.asked.lending import Lending
from simulation.engine.asked.pauses import Pauses
from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.engine.asked.sharing import SharingSettings
from simulation.engine.run import Simulation
from simulation.inference.usage import UsageSeries
from simulation.outcome import RunOutcome
from simulation.workloads.linear import TRAINING_GPU, linear_workload
from simulation.workloads.scenarios import WorkerRanges
from simulation.workloads.workload import Workload


@dataclass(frozen=True)
class Job:
    """A job that takes ``seconds`` on ``most`` workers, and may run on ``base`` of them."""

    seconds: float
    base: int
    most: int
    gpus_per_worker: int = 1
    submitted_at: float = 0.0
    fungible: bool = False
    mixes: bool = False
    keeps_progress: bool = False
    estimate_factor: float = 1.0


def workload_of(jobs: Sequence[Job]) -> Workload:
    """The jobs, in order of submission."""
    return linear_workload(
        "small",
        "worked out by hand",
        np.array([job.submitted_at for job in jobs]),
        np.array([job.most * job.gpus_per_worker for job in jobs]),
        np.array([job.seconds for job in jobs]),
    )


def ranges_of(jobs: Sequence[Job], *, gain: float = 1.0, mixing_efficiency: float = 0.7) -> WorkerRanges:
    """Their ranges of workers."""
    most = np.array([job.most for job in jobs])
    return WorkerRanges(
        gpus_per_worker=np.array([job.gpus_per_worker for job in jobs]),
        base=np.array([job.base for job in jobs]),
        most=most,
        requested=most,
        fungible=np.array([job.fungible for job in jobs]),
        mixes=np.array([job.mixes for job in jobs]),
        keeps_progress=np.array([job.keeps_progress for job in jobs]),
        estimate_factor=np.array([job.estimate_factor for job in jobs]),
        gain=gain,
        mixing_efficiency=mixing_efficiency,
    )


def usage_of(*shares: float) -> UsageSeries:
    """Usage of an inference cluster, one share every five minutes, from the beginning."""
    return UsageSeries("by hand", "worked out by hand", np.array(shares))


def settings_of(
    jobs: Sequence[Job],
    *,
    policy: str = "lyra",
    servers: int = 1,
    gpus_per_server: int = 8,
    slot_seconds: float = 2.0,
    inference_servers: int = 0,
    usage: UsageSeries | None = None,
    reclaim: ReclaimMethod = ReclaimMethod.LYRA,
    expansion: int = 3,
    gain: float = 1.0,
    mixing_efficiency: float = 0.7,
) -> SimulationSettings:
    """Return settings of a run in which only preemption costs time."""
    lending = None
    if usage is not None:
        lending = Lending(inference_servers, usage, reclaim, forecaster=NO_FORECASTER)
    return SimulationSettings(
        policy=policy,
        pools=(PoolSize(TRAINING_GPU, servers, gpus_per_server),),
        slot_seconds=slot_seconds,
        pauses=Pauses.NONE,
        sharing=SharingSettings(
            lending=lending,
            expansion=expansion,
            ranges=ranges_of(jobs, gain=gain, mixing_efficiency=mixing_efficiency),
        ),
    )


def run(jobs: Sequence[Job], **options) -> RunOutcome:
    """Run the jobs; the options are those of `settings_of`."""
    return Simulation(workload_of(jobs), settings_of(jobs, **options)).run()


def completion_seconds(outcome: RunOutcome) -> list[float]:
    """From submission to completion, of each job."""
    return (outcome.jobs.completed_at - outcome.jobs.submitted_at).tolist()
