"""Speed of each job by its number of workers, on training and on inference GPUs (Lyra section 3.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.compiling import kernel
from scheduling.core.lyra.fleet import Speeds, rate_of
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.columns import CurveColumns
from scheduling.core.question.snapshot import FloatArray, IntArray
from simulation.workloads.linear import COMPUTING_POWER
from simulation.workloads.scenarios import WorkerRanges
from simulation.workloads.tuning import Tuning, tuned_gain


@dataclass(frozen=True)
class WorkerTables:
    """One row per job of the workload. ``work`` and rates are in seconds of one training GPU.

    ``owned`` and ``lent``: rates on training and inference GPUs by number of workers there. An inference GPU
    computes a third of what a training GPU does; ``expansion`` inference workers replace one training worker.
    Rates of a mixing job include its loss on one kind alone (spec A22).
    """

    ranges: WorkerRanges
    work: FloatArray
    owned: Speeds
    lent: Speeds
    expansion: int

    def rate(self, row: int, owned_workers: int, lent_workers: int) -> float:
        """Return the job's real GPU seconds per second; with both kinds at once, mixing lowers them."""
        on_owned = float(rate_of(self.owned, row, owned_workers)) if owned_workers else 0.0
        on_lent = float(rate_of(self.lent, row, lent_workers)) if lent_workers else 0.0
        if not (owned_workers and lent_workers):
            return on_owned + on_lent
        # Both kinds: every worker counts with its own speed, however the range is divided between them.
        gpus = int(self.ranges.gpus_per_worker[row])
        return gpus * (owned_workers + lent_workers / COMPUTING_POWER) * self.ranges.mixing_efficiency


def worker_tables(
    ranges: WorkerRanges,
    requested_seconds: FloatArray,
    *,
    expansion: int = COMPUTING_POWER,
    scaling: bool = True,
    tuning: Tuning | None = None,
) -> WorkerTables:
    """Return tables for ranges of workers. Without ``scaling`` every job runs on its requested workers.

    ``tuning``: elastic jobs gain by adapting their batch size to their workers.
    """
    base = ranges.base if scaling else ranges.requested
    most = ranges.most if scaling else ranges.requested
    everywhere = ranges.fungible | ranges.mixes
    alone = np.where(ranges.mixes, ranges.mixing_efficiency_alone, 1.0)
    width = ranges.gpus_per_worker.astype(np.float64) * alone
    owned = _speeds(base, most, width, ranges.gain, np.ones(base.size, dtype=np.bool_))
    lent = _speeds(base * expansion, most * expansion, width / COMPUTING_POWER, ranges.gain, everywhere)
    if tuning is not None:
        owned = _tuned(owned, ranges.requested, most > base, tuning)
        lent = _tuned(lent, ranges.requested * expansion, most > base, tuning)
    return WorkerTables(
        ranges=ranges,
        work=(ranges.requested * ranges.gpus_per_worker).astype(np.float64)
        * np.maximum(1.0, requested_seconds),
        owned=owned,
        lent=lent,
        expansion=expansion,
    )


def _speeds(base: IntArray, most: IntArray, worker_rate: FloatArray, gain: float, able: BoolArray) -> Speeds:
    """List the numbers of workers from ``base`` to ``most``; each beyond the base yields ``gain`` of one."""
    count = np.where(able, most - base + 1, 0)
    offsets = np.concatenate(([0], np.cumsum(count)))
    extra = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], count)
    return Speeds(
        offsets,
        np.repeat(base, count) + extra,
        np.repeat(worker_rate, count) * (np.repeat(base, count) + gain * extra),
    )


def _tuned(speeds: Speeds, requested: IntArray, elastic: BoolArray, tuning: Tuning) -> Speeds:
    """Return the speeds with the gain of elastic jobs that adapt their batch size."""
    entries = np.diff(speeds.offsets)
    gain = tuned_gain(speeds.workers / np.repeat(requested, entries), tuning)
    return speeds._replace(rate=np.where(np.repeat(elastic, entries), gain, 1.0) * speeds.rate)


@kernel
def speeds_of_rows(speeds: Speeds, rows: IntArray) -> Speeds:
    """Return the speeds of some jobs, in the order of ``rows``."""
    offsets = np.zeros(rows.size + 1, dtype=np.int64)
    for row in range(rows.size):
        offsets[row + 1] = offsets[row] + speeds.offsets[rows[row] + 1] - speeds.offsets[rows[row]]
    workers = np.empty(offsets[rows.size], dtype=np.int64)
    rate = np.empty(offsets[rows.size])
    for row in range(rows.size):
        begin = speeds.offsets[rows[row]]
        for entry in range(offsets[row + 1] - offsets[row]):
            workers[offsets[row] + entry] = speeds.workers[begin + entry]
            rate[offsets[row] + entry] = speeds.rate[begin + entry]
    return Speeds(offsets, workers, rate)


def speeds_of_columns(curves: CurveColumns) -> Speeds:
    """Return the rates of every job on each of its levels."""
    inside = curves.throughput > 0
    return Speeds(
        np.concatenate(([0], np.cumsum(inside.sum(axis=1)))), curves.levels[inside], curves.throughput[inside]
    )
