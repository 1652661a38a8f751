"""Real states of jobs while a simulation runs: one row per job of the workload, changed in place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.columns import CODES
from scheduling.core.question.snapshot import FloatArray, IntArray
from simulation.engine.world.running import (
    ACTIVE,
    WAITING,
    Running,
    any_ends_by,
    forecast_finishes,
    run_on,
    speed_ups_of,
)
from simulation.workloads.workload import Workload

NOBODY = -1


@dataclass
class JobStates:
    """Row i is job i of the workload. ``rate``: real iterations per second now. ``pause_left``: seconds left
    without progress.

    ``pool``: number of its pool, NOBODY before its verdict. ``finish_at``: when it ends if nothing changes.
    ``checkpointed``: iterations left at its last checkpoint, written at ``checkpoint_at``. ``in_memory``:
    whether its state is in memory alone, so that its next start writes no checkpoint;
    ``not_durable_seconds``: how long it had trained then since its last checkpoint.
    """

    submitted_at: FloatArray
    deadline_at: FloatArray
    service_class: IntArray
    total: FloatArray
    remaining: FloatArray
    phase: IntArray
    pool: IntArray
    gpus: IntArray
    rate: FloatArray
    pause_left: FloatArray
    finish_at: FloatArray
    promised: BoolArray
    at_risk: BoolArray
    decided: BoolArray
    attained_gpu_seconds: FloatArray
    paused_seconds: FloatArray
    waiting_seconds: FloatArray
    checkpointed: FloatArray
    checkpoint_at: FloatArray
    in_memory: BoolArray
    not_durable_seconds: FloatArray
    memory: FloatArray

    @classmethod
    def of(cls, workload: Workload, memory_width: int) -> JobStates:
        """Return all jobs before the first submission."""
        count = workload.jobs

        def zeros() -> FloatArray:
            return np.zeros(count)

        return cls(
            submitted_at=workload.submitted_at,
            deadline_at=workload.deadline_at,
            service_class=np.array([CODES[one] for one in workload.service_class], dtype=np.int64),
            total=workload.iterations.astype(np.float64),
            remaining=workload.iterations.astype(np.float64),
            phase=np.full(count, WAITING),
            pool=np.full(count, NOBODY),
            gpus=np.zeros(count, dtype=np.int64),
            rate=zeros(),
            pause_left=zeros(),
            finish_at=np.full(count, np.inf),
            promised=np.zeros(count, dtype=np.bool_),
            at_risk=np.zeros(count, dtype=np.bool_),
            decided=np.zeros(count, dtype=np.bool_),
            attained_gpu_seconds=zeros(),
            paused_seconds=zeros(),
            waiting_seconds=zeros(),
            checkpointed=workload.iterations.astype(np.float64),
            checkpoint_at=zeros(),
            in_memory=np.zeros(count, dtype=np.bool_),
            not_durable_seconds=zeros(),
            memory=np.zeros((count, memory_width)),
        )

    @cached_property
    def running(self) -> Running:
        """The columns that change while jobs run, for compiled loops."""
        return Running(
            self.phase, self.pool, self.gpus, self.promised, self.rate, self.remaining, self.pause_left,
            self.finish_at, self.paused_seconds, self.attained_gpu_seconds, self.waiting_seconds,
        )  # fmt: skip

    def trains(self, row: int) -> bool:
        """Whether the job makes progress now."""
        return bool(self.rate[row] > 0.0 and self.pause_left[row] <= 0.0)

    def advance(self, rows: IntArray, pool: int, seconds: float) -> None:
        """Run the jobs of ``rows`` that are in the pool for ``seconds``."""
        if seconds > 0.0:
            run_on(self.running, rows, pool, seconds)

    def ending_by(self, rows: IntArray, pool: int, at: float) -> list[int]:
        """Return the unfinished jobs of ``rows`` that are in the pool and end at ``at`` or before."""
        if not any_ends_by(self.running, rows, pool, at):
            return []
        own = (self.pool[rows] == pool) & (self.phase[rows] == ACTIVE)
        ending: list[int] = rows[own & (self.finish_at[rows] <= at)].tolist()
        return ending

    def forecast_finish(self, rows: IntArray, pool: int, now: float) -> float:
        """Set ``finish_at`` of the unfinished jobs of ``rows`` that are in the pool, if nothing changes.

        Returns the first of these times, infinity if there is none.
        """
        return forecast_finishes(self.running, rows, pool, now)

    def speed_ups(self, rows: IntArray, pool: int, one_gpu: FloatArray) -> float:
        """Return the sum of speed-ups over one GPU of the unfinished jobs of ``rows`` that are in the pool.

        ``one_gpu``: iterations per second of each job on one GPU; 0 where that is unknown.
        """
        return float(speed_ups_of(self.running, rows, pool, one_gpu).sum())

    def take_gpus(self, row: int, gpus: int, rate: float, pause_seconds: float, now: float) -> None:
        """Continue the job with ``gpus`` GPUs after a pause; 0 suspends it. A checkpoint is written first
        unless the state comes from memory."""
        if self.in_memory[row]:
            # The next checkpoint comes as early as if the job had trained on.
            self.in_memory[row] = False
            self.checkpoint_at[row] = now - float(self.not_durable_seconds[row])
        else:
            self.write_checkpoint(row, now)
        self.gpus[row] = gpus
        self.rate[row] = rate
        self.pause_left[row] = max(float(self.pause_left[row]), pause_seconds) if gpus else 0.0

    def write_checkpoint(self, row: int, now: float) -> None:
        """Save the progress made by now."""
        self.checkpointed[row] = self.remaining[row]
        self.checkpoint_at[row] = now

    def strike(self, row: int, now: float, checkpoint_seconds: float) -> None:
        """Stop the job, whose server is lost, and reset it to its last checkpoint."""
        self.remaining[row] = self._durable(row, now, checkpoint_seconds)
        self._stand_still(row)
        self.write_checkpoint(row, now)
        self.in_memory[row] = False

    def strike_in_memory(self, row: int, now: float, checkpoint_seconds: float) -> None:
        """Stop the job and reset it to its point in memory, that of the iteration before the one in
        progress, or to its last checkpoint if that is newer."""
        durable = self._durable(row, now, checkpoint_seconds)
        done = float(self.total[row] - self.remaining[row])
        point = float(self.total[row]) - max(0.0, np.floor(done) - 1.0)
        self.remaining[row] = min(durable, point)
        since = now - float(self.checkpoint_at[row])
        self.not_durable_seconds[row] = since % checkpoint_seconds if checkpoint_seconds > 0.0 else 0.0
        self.stand_still(row)
        self.checkpointed[row] = durable

    def lose_memory(self, row: int, now: float) -> None:
        """Reset a job whose state in memory is lost to its last checkpoint."""
        self.remaining[row] = self.checkpointed[row]
        self._stand_still(row)
        self.checkpoint_at[row] = now
        self.in_memory[row] = False

    def stand_still(self, row: int) -> None:
        """Stop the job with its state kept in memory."""
        self._stand_still(row)
        self.in_memory[row] = True

    def _stand_still(self, row: int) -> None:
        self.rate[row] = 0.0
        self.pause_left[row] = 0.0
        self.finish_at[row] = np.inf

    def _durable(self, row: int, now: float, checkpoint_seconds: float) -> float:
        """Return the iterations left at the last checkpoint by now. A running job writes one every
        ``checkpoint_seconds``."""
        checkpointed, remaining = float(self.checkpointed[row]), float(self.remaining[row])
        since = now - float(self.checkpoint_at[row])
        if checkpoint_seconds <= 0.0:
            return min(checkpointed, remaining)
        if since < checkpoint_seconds or self.rate[row] == 0.0:
            return checkpointed
        unsafe = since - float(np.floor(since / checkpoint_seconds)) * checkpoint_seconds
        return min(checkpointed, remaining + float(self.rate[row]) * unsafe)

    def vacate(self, row: int) -> None:
        """Take all GPUs from the job."""
        self.gpus[row] = 0
        self.rate[row] = 0.0
        self.pause_left[row] = 0.0
        self.finish_at[row] = np.inf
