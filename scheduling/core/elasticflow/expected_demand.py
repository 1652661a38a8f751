"""The demand to expect from newcomers: GPU time per second, by size and project, learnt from submissions.

Each decision hands this small table to the next one (`Decision.memory`), so a decision can be replayed from
its snapshot. Sizes are rounded down to a quarter of an octave. Older submissions weigh less, by exponential
decay.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import exp, floor, inf, log2

import numpy as np

from scheduling.core.question.snapshot import FloatArray, IntArray

MEMORY_SECONDS = 14 * 86400.0
"""Age, in seconds, at which a submission weighs 1/e."""

STEPS_PER_OCTAVE = 4
MOST_EXTRAPOLATION = 8.0
"""The forecast is at most this many times the past demand: a burst of a minute says little about a day."""

MOST_ROWS = 512
"""Rows of the table; beyond this many, the rows with the least demand are dropped."""

COLUMNS = 4


def is_remembered(memory: FloatArray) -> bool:
    """Whether ``memory`` is a non-empty table in the form of `ExpectedDemand.remembered`."""
    return memory.size >= 2 and (memory.size - 2) % COLUMNS == 0 and bool(np.isfinite(memory).all())


@dataclass(frozen=True)
class ExpectedDemand:
    """Submissions so far, decayed. Row i of each array sums one size step of one project."""

    #: Time of the first submission, in seconds; infinity before it.
    began_at: float = inf
    #: Time to which the sums are decayed, in seconds.
    as_of: float = inf
    #: Project number.
    project: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    #: Size step s: jobs of 2 ** (s / 4) GPU seconds up to the next step.
    step: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    #: Sum of the jobs' GPU seconds.
    gpu_seconds: FloatArray = field(default_factory=lambda: np.zeros(0))
    #: Sum of each job's GPU seconds times the seconds from its submission to its deadline.
    weighted_windows: FloatArray = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def recalled(cls, memory: FloatArray) -> ExpectedDemand:
        """The demand that `remembered` wrote; an empty one if ``memory`` is empty or malformed."""
        if not is_remembered(memory):
            return cls()
        rows = memory[2:].reshape(-1, COLUMNS)
        return cls(
            float(memory[0]),
            float(memory[1]),
            rows[:, 0].astype(np.int64),
            rows[:, 1].astype(np.int64),
            rows[:, 2].copy(),
            rows[:, 3].copy(),
        )

    def remembered(self) -> FloatArray:
        """The table as one flat array; empty before the first submission."""
        if self.began_at == inf:
            return np.zeros(0)
        rows = np.column_stack((self.project, self.step, self.gpu_seconds, self.weighted_windows))
        return np.concatenate(([self.began_at, self.as_of], rows.ravel()))

    def noted(self, now: float, project: int, gpu_seconds: float, window_seconds: float) -> ExpectedDemand:
        """The demand with one more submission: its GPU seconds, and the seconds until its deadline."""
        if not (0.0 < gpu_seconds < inf and 0.0 < window_seconds < inf):
            return self
        aged = self._aged(now)
        step = floor(log2(gpu_seconds) * STEPS_PER_OCTAVE)
        known = np.flatnonzero((aged.project == project) & (aged.step == step))
        if known.size:
            sums, windows = aged.gpu_seconds.copy(), aged.weighted_windows.copy()
            sums[known] += gpu_seconds
            windows[known] += gpu_seconds * window_seconds
            return ExpectedDemand(aged.began_at, aged.as_of, aged.project, aged.step, sums, windows)
        return ExpectedDemand(
            aged.began_at,
            aged.as_of,
            np.append(aged.project, project),
            np.append(aged.step, step),
            np.append(aged.gpu_seconds, gpu_seconds),
            np.append(aged.weighted_windows, gpu_seconds * window_seconds),
        )._bounded()

    def expected(
        self, now: float, horizons: FloatArray, *, below: float, project: int | None = None
    ) -> FloatArray:
        """GPU seconds that future jobs smaller than ``below`` GPU seconds will need within each horizon.

        ``horizons``: seconds from now. The model: jobs arrive evenly at the past rate and work evenly until
        their deadlines; work after a horizon does not count. `MOST_EXTRAPOLATION` bounds the result.
        ``project``: count that project alone; None counts all.
        """
        chosen = (self.step + 1) / STEPS_PER_OCTAVE <= (log2(below) if below > 0.0 else -inf)
        if project is not None:
            chosen &= self.project == project
        if not chosen.any():
            return np.zeros(horizons.size)
        aged = self._aged(now)
        sums, weighted = aged.gpu_seconds[chosen][:, None], aged.weighted_windows[chosen][:, None]
        window = weighted / sums
        long = np.maximum(horizons, 1e-9)[None, :]
        inside = np.where(window <= long, long - window / 2.0, long * long / (2.0 * window))
        past = np.maximum(aged.seconds, long[0] / MOST_EXTRAPOLATION)
        demand: FloatArray = (sums * inside).sum(axis=0) / past
        return demand

    def typical(self) -> float:
        """GPU seconds that half of the submissions do not exceed; infinity before the first."""
        if not self.step.size:
            return inf
        order = np.argsort(self.step, kind="stable")
        sizes = 2.0 ** ((self.step[order] + 0.5) / STEPS_PER_OCTAVE)
        submissions = np.cumsum(self.gpu_seconds[order] / sizes)
        return float(sizes[np.searchsorted(submissions, submissions[-1] / 2.0)])

    @property
    def seconds(self) -> float:
        """Length of the observed past in seconds, decayed like the submissions."""
        if self.began_at == inf:
            return 0.0
        return MEMORY_SECONDS * (1.0 - exp(-(self.as_of - self.began_at) / MEMORY_SECONDS))

    def projects(self) -> int:
        """The number of projects in the table."""
        return int(np.unique(self.project).size)

    def _aged(self, now: float) -> ExpectedDemand:
        if self.began_at == inf:
            return replace(self, began_at=now, as_of=now)
        factor = exp(-max(0.0, now - self.as_of) / MEMORY_SECONDS)
        return ExpectedDemand(
            self.began_at,
            max(now, self.as_of),
            self.project,
            self.step,
            self.gpu_seconds * factor,
            self.weighted_windows * factor,
        )

    def _bounded(self) -> ExpectedDemand:
        if self.step.size <= MOST_ROWS:
            return self
        kept = np.sort(np.argsort(self.gpu_seconds, kind="stable")[self.step.size - MOST_ROWS :])
        return replace(
            self,
            project=self.project[kept],
            step=self.step[kept],
            gpu_seconds=self.gpu_seconds[kept],
            weighted_windows=self.weighted_windows[kept],
        )
