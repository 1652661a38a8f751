"""The synthetic profile ``lyra``: jobs like those of the fifteen-day trace that Lyra was evaluated on.

That trace is not public. What is published about it: 50,390 jobs in 15 days, running times from minutes to
days, and quantiles of job completion time on the cluster it came from (Lyra section 3.7, Tables 3.5 and 3.8;
spec 4.2). Those quantiles leave little choice: half of all jobs last less than a quarter of an hour, and most
of the longest quarter lie just above eight hours. How arrivals vary and how many GPUs jobs ask for is not
published; days, hours and GPUs are chosen here so that strict first-come scheduling has 72 % of the GPUs in
use and makes jobs wait about as the percentiles in Table 3.8 say. Their mean of 3,072 s does not go with
these percentiles, and is not aimed at.
"""

from __future__ import annotations

import numpy as np

from scheduling.core.question.snapshot import FloatArray
from simulation.workloads.linear import linear_workload
from simulation.workloads.synthetic import DAY_SECONDS, Shape, profile, steady_arrivals
from simulation.workloads.workload import Workload

DAYS = 15
JOBS = 50_390
MEAN_INTERARRIVAL_SECONDS = DAYS * 86_400.0 / JOBS

# Share of jobs that last at most so many seconds; evenly on a logarithmic scale in between.
DURATIONS = (
    (0.0, 60.0),
    (0.5, 690.0),
    (0.735, 1_100.0),
    (0.75, 27_500.0),
    (0.93, 32_000.0),
    (0.95, 79_000.0),
    (0.985, 86_000.0),
    (0.99, 372_000.0),
    (1.0, 430_000.0),
)
# Arrivals of each day over the mean: two weekends, and weekdays of which some ask for more than there is.
DAYS_LOAD = (1.0, 1.15, 1.25, 1.1, 0.95, 0.5, 0.45, 1.05, 1.3, 1.2, 1.0, 0.9, 0.55, 0.5, 1.1)
BUSY_BY_DAY = 0.6  # arrivals go up and down by so much of their mean within a day
FOLLOWING, FOLLOWS_WITHIN_SECONDS = 0.6, 20.0  # share of jobs that come close behind another, as sweeps do
GPU_SHARES = {1: 0.453, 2: 0.14, 4: 0.14, 8: 0.195, 16: 0.0465, 32: 0.0185, 64: 0.006, 128: 0.001}
# Work of a job on average, at the published rate of submissions: with it the baseline has 72 % of the GPUs in
# use while jobs arrive.
GPU_SECONDS = 69_500.0

# An eighth of the cluster has no room for the largest jobs, and fewer jobs at a time even out less: it is
# asked for less of its GPUs.
SCALED_JOBS = JOBS // 8
SCALED_GPU_SHARES = {1: 0.46, 2: 0.145, 4: 0.145, 8: 0.195, 16: 0.037, 32: 0.015, 64: 0.003}
SCALED_GPU_SECONDS = 60_500.0

# One job of a hundred that asks for much of the cluster, for minutes: hardly any work, and a wait that no
# order of jobs takes away.
LARGE_JOB_SHARE = 0.01
LARGE_JOB_SECONDS = (120.0, 1_100.0)


def weekly_arrivals(draws: FloatArray, mean: float) -> FloatArray:
    """Submission times in seconds: Poisson with sweeps, faster and slower with the day and its hour."""
    gap = min(FOLLOWS_WITHIN_SECONDS, mean)
    long = -np.log1p(-draws[:, 0]) * (mean - FOLLOWING * gap / 2) / (1.0 - FOLLOWING)
    gaps = np.where(draws[:, 1] < FOLLOWING, gap * draws[:, 0], long)
    gaps[:1] = 0.0
    even = np.cumsum(gaps)
    days = np.array(DAYS_LOAD) / np.mean(DAYS_LOAD)
    clock = np.arange(0.0, even[-1] + len(DAYS_LOAD) * DAY_SECONDS, 300.0)
    rate = days[(clock // DAY_SECONDS).astype(int) % days.size]
    rate = rate * (1.0 + BUSY_BY_DAY * np.sin(2 * np.pi * clock / DAY_SECONDS))
    # Even time runs as fast as jobs arrive: clock times are where the arrivals' own time reaches it.
    own = np.concatenate(([0.0], np.cumsum(rate[:-1] * 300.0)))
    return np.asarray(np.interp(even, own, clock))


def by_quantiles(draws: FloatArray) -> FloatArray:
    """Durations in seconds for numbers in [0, 1), shape (jobs, 2): every seed has the same ones, in another
    order."""
    shares, seconds = zip(*DURATIONS, strict=True)
    rank = np.argsort(np.argsort(draws[:, 0], kind="stable"), kind="stable")
    return np.asarray(np.exp(np.interp((rank + 0.5) / max(1, rank.size), shares, np.log(seconds))))


def with_large_jobs(workload: Workload, gpus: int, seed: int) -> Workload:
    """The same jobs, but one of a hundred, drawn from those of two to eighteen minutes, asks for ``gpus``.

    Published means and percentiles of queuing time go together only if a hundredth of the jobs waits for days
    under every scheme; such jobs do, where others may pass them.
    """
    shortest, longest = LARGE_JOB_SECONDS
    seconds = workload.requested_seconds
    candidates = np.flatnonzero((seconds >= shortest) & (seconds <= longest))
    count = min(candidates.size, round(LARGE_JOB_SHARE * workload.jobs))
    order = np.argsort(np.random.default_rng([seed, 5]).random(candidates.size), kind="stable")
    asked = workload.requested_gpus.copy()
    asked[candidates[order[:count]]] = gpus
    source = f"{workload.source}, {count} of them on {gpus} GPUs"
    return linear_workload(workload.name, source, workload.submitted_at, asked, seconds)


@profile(
    "lyra", "like Lyra's trace: 50,390 jobs in 15 days, half under 12 minutes, a quarter of 8 hours and more"
)
def lyra() -> Shape:
    """About 75 % of 3,544 GPUs asked for on average; nobody has a deadline."""
    return Shape(
        jobs=JOBS,
        mean_interarrival_seconds=MEAN_INTERARRIVAL_SECONDS,
        gpu_shares=GPU_SHARES,
        arrive=weekly_arrivals,
        last=by_quantiles,
        linear=True,
        gpu_seconds=GPU_SECONDS,
    )


@profile(
    "lyra_scaled", "the same for an eighth of the cluster: 6,298 jobs in 15 days on 55 servers of 8 GPUs"
)
def lyra_scaled() -> Shape:
    """About two thirds of 440 GPUs asked for on average."""
    return Shape(
        jobs=SCALED_JOBS,
        mean_interarrival_seconds=DAYS * 86_400.0 / SCALED_JOBS,
        gpu_shares=SCALED_GPU_SHARES,
        arrive=weekly_arrivals,
        last=by_quantiles,
        linear=True,
        gpu_seconds=SCALED_GPU_SECONDS,
    )


def by_testbed(draws: FloatArray) -> FloatArray:
    """Durations in seconds between two minutes and two hours, evenly on a logarithmic scale."""
    return np.asarray(np.exp(np.log(120.0) + draws[:, 0] * np.log(7200.0 / 120.0)))


@profile(
    "lyra_testbed", "like Lyra's testbed trace: 180 jobs in 8 hours, 2 minutes to 2 hours, 16 GPUs at most"
)
def lyra_testbed() -> Shape:
    """What 4 servers of 8 GPUs were asked for; which GPU counts jobs had is not published beyond the
    largest."""
    return Shape(
        jobs=180,
        mean_interarrival_seconds=8 * 3600.0 / 180,
        gpu_shares={1: 0.45, 2: 0.25, 4: 0.17, 8: 0.12, 16: 0.01},
        arrive=steady_arrivals,
        last=by_testbed,
        linear=True,
    )
