"""How fast each job of a workload runs on how many workers, on training and on inference GPUs (Lyra section
3.4; spec 1.5, 1.6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduling.core.kernels import kernel
from scheduling.core.lyra.fleet import Speeds, rate_of
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.columns import CurveColumns
from scheduling.core.question.snapshot import FloatArray, IntArray
from simulation.workloads.linear import COMPUTING_POWER
from simulation.workloads.scenarios import WorkerRanges
from simulation.workloads.tuning import Tuning, tuned_gain


@dataclass(frozen=True)
class WorkerTables:
    """One row a job of the workload. ``work`` and rates are in seconds of one training GPU.

    ``owned`` and ``lent``: rates on training and inference GPUs by number of workers there; each inference
    GPU computes a third of what a training GPU does, and ``expansion`` times the workers stand for those on
    training GPUs. Rates of a mixing job hold what it loses on one kind alone (spec A22).
    """

    ranges: WorkerRanges
    work: FloatArray
    owned: Speeds
    lent: Speeds
    expansion: int

    def rate(self, row: int, owned_workers: int, lent_workers: int) -> float:
        """GPU seconds that the job really does a second; both kinds at once cost what mixing costs."""
        on_owned = float(rate_of(self.owned, row, owned_workers)) if owned_workers else 0.0
        on_lent = float(rate_of(self.lent, row, lent_workers)) if lent_workers else 0.0
        if not (owned_workers and lent_workers):
            return on_owned + on_lent
        # Both kinds: every worker counts by its own speed, whatever share of the range sits on which kind.
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
    """Tables for ranges of workers. Without ``scaling`` every job runs on what its user asked for.

    ``tuning``: elastic jobs adapt their batch size to their workers and gain by it.
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
    """Every number of workers from ``base`` to ``most``; each beyond the base yields ``gain`` of a worker."""
    count = np.where(able, most - base + 1, 0)
    offsets = np.concatenate(([0], np.cumsum(count)))
    extra = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], count)
    return Speeds(
        offsets,
        np.repeat(base, count) + extra,
        np.repeat(worker_rate, count) * (np.repeat(base, count) + gain * extra),
    )


def _tuned(speeds: Speeds, requested: IntArray, elastic: BoolArray, tuning: Tuning) -> Speeds:
    """The same with what elastic jobs gain by adapting their batch."""
    entries = np.diff(speeds.offsets)
    gain = tuned_gain(speeds.workers / np.repeat(requested, entries), tuning)
    return speeds._replace(rate=np.where(np.repeat(elastic, entries), gain, 1.0) * speeds.rate)


@kernel
def speeds_of_rows(speeds: Speeds, rows: IntArray) -> Speeds:
    """The same for some jobs, in their order."""
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
    """Rates on every level of every job."""
    inside = curves.throughput > 0
    return Speeds(
        np.concatenate(([0], np.cumsum(inside.sum(axis=1)))), curves.levels[inside], curves.throughput[inside]
    )
