"""Workloads drawn by seed, shaped like measured ones, without any file.

A profile has distributions of arrivals, requested GPUs and durations on them. Models are drawn from the
throughput table (by default the built-in synthetic one), iterations are ``floor(duration * throughput)`` and
deadlines are ``submission + floor(lambda * duration)``. Each profile is one function with
`@profile`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import NormalDist

import numpy as np

from scheduling.core.question.snapshot import FloatArray, IntArray
from simulation.workloads.assembly import assemble
from simulation.workloads.draws import WorkloadDraw, uniforms
from simulation.workloads.errors import TraceError
from simulation.workloads.linear import linear_workload
from simulation.workloads.options import WorkloadOptions
from simulation.workloads.records import JobRecord, ParsedTrace
from simulation.workloads.throughputs import ThroughputTable
from simulation.workloads.trace_file import TraceRow
from simulation.workloads.workload import Workload

HOUR_SECONDS = 3600.0
DAY_SECONDS = 24 * HOUR_SECONDS


@dataclass(frozen=True, slots=True)
class Shape:
    """One profile's distributions.

    ``arrive`` turns numbers in [0, 1), shape (jobs, 2), and the mean time between arrivals into submission
    times; ``last`` turns such numbers into durations on the requested GPUs. Both in seconds. ``gpu_shares``:
    share of jobs by GPU count, adding up to 1. ``linear``: no job has a deadline or a model, and throughput
    grows linearly with the GPUs. ``gpu_seconds``: mean work of a job at ``mean_interarrival_seconds``; the
    time between submissions is scaled with the drawn jobs' mean work, so that every seed has the same load.
    None leaves submissions as they are.
    """

    jobs: int
    mean_interarrival_seconds: float
    gpu_shares: Mapping[int, float]
    arrive: Callable[[FloatArray, float], FloatArray]
    last: Callable[[FloatArray], FloatArray]
    linear: bool = False
    gpu_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class SyntheticProfile:
    """A named shape."""

    name: str
    description: str
    shape: Callable[[], Shape]


PROFILES: dict[str, SyntheticProfile] = {}


def profile(name: str, description: str) -> Callable[[Callable[[], Shape]], Callable[[], Shape]]:
    """Register a function that returns a shape as the synthetic profile ``name``."""

    def register(shape: Callable[[], Shape]) -> Callable[[], Shape]:
        PROFILES[name] = SyntheticProfile(name, description, shape)
        return shape

    return register


def generate(
    name: str, *, table: ThroughputTable, gpu_types: tuple[str, ...], seed: int, options: WorkloadOptions
) -> Workload:
    """Return the workload of profile ``name``, deterministic in seed, options and table.

    Raises TraceError if no model of the table can be drawn, and KeyError for an unknown name.
    """
    shape = PROFILES[name].shape()
    jobs = options.jobs or shape.jobs
    mean = options.mean_interarrival_seconds or shape.mean_interarrival_seconds
    seconds = np.floor(shape.last(uniforms(seed, WorkloadDraw.DURATION, jobs)))
    gpus = _draw_gpus(shape.gpu_shares, uniforms(seed, WorkloadDraw.GPUS, jobs)[:, 0])
    if shape.gpu_seconds is not None:
        mean *= float((gpus * seconds).mean()) / shape.gpu_seconds
    submitted_at = np.floor(shape.arrive(uniforms(seed, WorkloadDraw.ARRIVAL, jobs), mean))
    if not np.isfinite(submitted_at).all():
        raise TraceError(f"profile {name} gives no finite submission times with these options")
    if shape.linear:
        return linear_workload(name, f"synthetic profile {name}, seed {seed}", submitted_at, gpus, seconds)
    nowhere = TraceRow(Path(name), 0, {}, {})
    records = [
        JobRecord(nowhere, f"job{row:06d}", at, requested_gpus=count, requested_seconds=max(1.0, duration))
        for row, (at, count, duration) in enumerate(
            zip(submitted_at.tolist(), gpus.tolist(), seconds.tolist(), strict=True)
        )
    ]
    return assemble(
        ParsedTrace(records),
        name=name,
        source=f"synthetic profile {name}, seed {seed}, {jobs} jobs; throughputs: {table.source}",
        table=table,
        gpu_types=gpu_types,
        seed=seed,
        options=options,
    )


def _draw_gpus(shares: Mapping[int, float], draws: FloatArray) -> IntArray:
    counts = np.array(sorted(shares), dtype=np.int64)
    ends = np.cumsum([shares[int(count)] for count in counts])
    return counts[np.minimum(np.searchsorted(ends, draws, side="right"), counts.size - 1)]


def steady_arrivals(draws: FloatArray, mean: float) -> FloatArray:
    """Return arrivals of a Poisson process whose first job arrives at 0."""
    gaps = -mean * np.log1p(-draws[:, 0])
    gaps[:1] = 0.0
    return np.cumsum(gaps)


def daily_bursts(
    draws: FloatArray,
    mean: float,
    *,
    swing: float = 0.8,
    burst_share: float = 0.5,
    burst_gap_seconds: float = 20.0,
) -> FloatArray:
    """Return arrivals that follow the time of day, half of them in bursts close behind another job.

    Within each day the rate varies by ``swing`` of its mean, starting at the mean; ``burst_share`` of the
    jobs follow the previous one within ``burst_gap_seconds``, as sweeps over hyperparameters do. The mean is
    unchanged.
    """
    follows = draws[:, 1] < burst_share
    short = np.minimum(burst_gap_seconds, mean) * draws[:, 0]
    long = -np.log1p(-draws[:, 0]) * max(mean - burst_share * min(burst_gap_seconds, mean) / 2, 0.0)
    gaps = np.where(follows, short, long / (1.0 - burst_share))
    gaps[:1] = 0.0
    even = np.cumsum(gaps)
    # Warp uniform time to the clock: it runs fast by day and slowly by night.
    clock = np.arange(0.0, even[-1] + 2 * DAY_SECONDS, 300.0)
    phase = 2 * np.pi / DAY_SECONDS
    return np.asarray(np.interp(even, clock + swing * (1.0 - np.cos(phase * clock)) / phase, clock))


def log_normal(
    *, median_seconds: float, spread: float, shortest: float, longest: float
) -> Callable[[FloatArray], FloatArray]:
    """Return a function for durations with normal logarithm, of deviation ``spread``, cut at both ends."""

    logarithm = NormalDist(log(median_seconds), spread)
    low, high = logarithm.cdf(log(shortest)), logarithm.cdf(log(longest))

    def last(draws: FloatArray) -> FloatArray:
        return np.exp([logarithm.inv_cdf(low + draw * (high - low)) for draw in draws[:, 0].tolist()])

    return last


def _two_decades(draws: FloatArray) -> FloatArray:
    """Draw 80 % between 10 minutes and 5.3 hours, 20 % from there to a week, uniform in the logarithm."""
    exponent = np.where(draws[:, 0] < 0.8, 1.0 + 1.5 * draws[:, 1], 2.5 + 1.5 * draws[:, 1])
    return np.asarray(60.0 * 10.0**exponent)


@profile(
    "elasticflow", "ElasticFlow's generator: 1,000 jobs, one in 25 minutes, 83 % on 1 GPU (Figures 9 to 11)"
)
def elasticflow() -> Shape:
    """ElasticFlow's generator. Figure 10: 100 jobs and lambda 1.5; Figure 11: 200 jobs, one in 900 s, a
    share of best effort."""
    return Shape(
        jobs=1000,
        mean_interarrival_seconds=1500.0,
        gpu_shares={1: 0.83, 2: 0.03, 4: 0.03, 8: 0.10, 16: 0.01},
        arrive=steady_arrivals,
        last=_two_decades,
    )


@profile("itp", "like most ITP clusters: 1-GPU jobs by number, large ones by GPU time, median 2.2 hours")
def itp() -> Shape:
    """About 100 GPUs in use on average: for clusters of 128 GPUs."""
    return Shape(
        jobs=1000,
        mean_interarrival_seconds=600.0,
        gpu_shares={1: 0.80, 2: 0.03, 4: 0.05, 8: 0.09, 16: 0.015, 32: 0.01, 64: 0.005},
        arrive=steady_arrivals,
        last=log_normal(median_seconds=7200.0, spread=1.35, shortest=600.0, longest=14 * DAY_SECONDS),
    )


@profile("itp_large", "like ITP clusters 03 and 06: half of the jobs on 8 GPUs, median 2 hours, long tail")
def itp_large() -> Shape:
    """About 300 GPUs in use on average: for clusters of 512 GPUs."""
    return Shape(
        jobs=1000,
        mean_interarrival_seconds=500.0,
        gpu_shares={1: 0.40, 2: 0.015, 4: 0.03, 8: 0.515, 16: 0.028, 32: 0.008, 64: 0.004},
        arrive=steady_arrivals,
        last=log_normal(median_seconds=6000.0, spread=1.5, shortest=600.0, longest=14 * DAY_SECONDS),
    )


@profile("philly", "like Philly: many short jobs on 1 GPU, median 17 minutes, a few of weeks")
def philly() -> Shape:
    """About 80 GPUs in use on average: for clusters of 128 GPUs."""
    return Shape(
        jobs=2000,
        mean_interarrival_seconds=130.0,
        gpu_shares={1: 0.953, 2: 0.024, 4: 0.0125, 8: 0.0085, 16: 0.0012, 32: 0.0008},
        arrive=steady_arrivals,
        last=log_normal(median_seconds=1020.0, spread=2.05, shortest=10.0, longest=38 * DAY_SECONDS),
    )


@profile("bursty", "ITP-like jobs that follow the time of day, half of them in bursts")
def bursty() -> Shape:
    """The load of `itp`, unevenly over the day."""
    return Shape(
        jobs=1000,
        mean_interarrival_seconds=600.0,
        gpu_shares=itp().gpu_shares,
        arrive=daily_bursts,
        last=itp().last,
    )
