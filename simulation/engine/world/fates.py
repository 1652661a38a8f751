"""Results of each job of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduling.core.question.snapshot import IntArray
from simulation.outcome import JobEnd


@dataclass
class Fates:
    """Results by job, written during the run and read at its end; times in seconds of the trace, NaN if
    the event did not happen."""

    end: list[JobEnd]
    reason_code: list[str]
    void_reason: list[str]
    decided_at: np.ndarray
    started_at: np.ndarray
    completed_at: np.ndarray
    planned_finish_at: np.ndarray
    rescales: IntArray
    migrations: IntArray
    preemptions: IntArray

    @classmethod
    def of(cls, count: int) -> Fates:
        def unknown() -> np.ndarray:
            return np.full(count, np.nan)

        def none() -> IntArray:
            return np.zeros(count, dtype=np.int64)

        return cls(
            [JobEnd.UNFINISHED] * count, [""] * count, [""] * count, unknown(), unknown(), unknown(),
            unknown(),
            none(), none(), none(),
        )  # fmt: skip
