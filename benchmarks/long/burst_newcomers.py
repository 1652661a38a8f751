"""Newcomers of a burst, drawn by seed, which `benchmarks.long.burst` decides on, in the core and live."""

from __future__ import annotations

import numpy as np

from scheduling.core.elasticflow.pause_budget import published_pause_seconds
from scheduling.core.question.curves import curve_from_measurements
from scheduling.core.question.snapshot import NO_DEADLINE, JobSnapshot, ServiceClass

CLASSES = (ServiceClass.SLO, ServiceClass.SOFT, ServiceClass.BEST_EFFORT)
CURVES = 40
MIXES: dict[str, tuple[tuple[float, float, float], tuple[float, float], tuple[float, float]]] = {
    "mixed": ((0.6, 0.2, 0.2), (0.0, 2.5), (-0.7, 1.3)),
    "small": ((1.0, 0.0, 0.0), (0.0, 1.0), (1.5, 3.5)),
    "tight": ((1.0, 0.0, 0.0), (0.5, 3.0), (-0.2, 0.4)),
    "large": ((0.8, 0.1, 0.1), (2.0, 3.5), (0.0, 1.5)),
}
"""Shares of the classes, and decimal logarithms: minutes on a middle level, and the time to the deadline in
multiples of that length."""


def curves(rng: np.random.Generator, gpus: int) -> list[dict[int, float]]:
    """Return throughput by GPUs of some functions."""
    made = []
    for _ in range(CURVES):
        efficiency, rate, rates = rng.uniform(0.6, 0.97), rng.uniform(1.0, 20.0), {}
        for doubling in range(int(rng.integers(1, 8))):
            if 2**doubling <= gpus:
                rates[2**doubling] = rate
            rate *= 2 * efficiency
        made.append(rates)
    return made


def newcomers(count: int, gpus: int, mix: str, seed: int) -> list[tuple[JobSnapshot, int]]:
    """Return the burst in the order of submission, and the index in `curves` of each job."""
    rng = np.random.default_rng(seed)
    known = [
        curve_from_measurements(rates, pause_seconds=published_pause_seconds) for rates in curves(rng, gpus)
    ]
    shares, minutes, lengths = MIXES[mix]
    made = []
    for number in range(count):
        which = int(rng.integers(CURVES))
        curve = known[which]
        alone = 60.0 * 10 ** rng.uniform(*minutes)
        kind = CLASSES[int(rng.choice(3, p=shares))]
        deadline = alone * 10 ** rng.uniform(*lengths) + 60.0
        job = JobSnapshot(
            id=f"job-{number:06d}",
            service_class=kind,
            submitted_at=-10.0 + number * 1e-3,
            deadline_at=NO_DEADLINE if kind is ServiceClass.BEST_EFFORT else deadline,
            remaining_iterations=float(curve.throughput[curve.levels.size // 2]) * alone,
            curve=curve,
            newcomer=True,
            finishing_seconds=2.0,
        )
        made.append((job, which))
    return made
