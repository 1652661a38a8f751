"""The synthetic profile ``lyra``: jobs like those of the fifteen-day trace that Lyra was evaluated on.

That trace is not public. What is published about it: 50,390 jobs in 15 days, running times from minutes to days, and quantiles of
job completion time on the cluster it came from (Lyra section 3.7, Table 3.5; spec 4.2). Those quantiles leave little choice: half of all jobs
last less than a quarter of an hour, and most of the longest quarter lie just above eight hours.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from scheduling.core.snapshot import FloatArray
from simulation.workloads.synthetic import Shape, daily_bursts, profile

DAYS = 15
JOBS = 50_390
MEAN_INTERARRIVAL_SECONDS = DAYS * 86_400.0 / JOBS

# Share of jobs that last at most so many seconds; evenly on a logarithmic scale in between.
DURATIONS = (
    (0.0, 60.0),
    (0.5, 690.0),
    (0.735, 1_100.0),
    (0.75, 26_000.0),
    (0.93, 30_000.0),
    (0.95, 78_000.0),
    (0.985, 84_000.0),
    (0.99, 340_000.0),
    (1.0, 400_000.0),
)
GPU_SHARES = {1: 0.46, 2: 0.14, 4: 0.14, 8: 0.19, 16: 0.045, 32: 0.018, 64: 0.006, 128: 0.001}


def by_quantiles(draws: FloatArray) -> FloatArray:
    """Durations in seconds for numbers in [0, 1), shape (jobs, 2)."""
    shares, seconds = zip(*DURATIONS, strict=True)
    return np.asarray(np.exp(np.interp(draws[:, 0], shares, np.log(seconds))))


@profile(
    "lyra", "like Lyra's trace: 50,390 jobs in 15 days, half under 12 minutes, a quarter of 8 hours and more"
)
def lyra() -> Shape:
    """About 70 % of 3,544 GPUs in use on average; nobody has a deadline."""
    return Shape(
        jobs=JOBS,
        mean_interarrival_seconds=MEAN_INTERARRIVAL_SECONDS,
        gpu_shares=GPU_SHARES,
        arrive=partial(daily_bursts, swing=0.6, burst_share=0.6),
        last=by_quantiles,
        linear=True,
    )
