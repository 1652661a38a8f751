"""What newcomers ask for, learnt from those that came: GPU time a second, by size and project.

A small table that every decision hands to the next one (`Decision.memory`), so that a decision can be
replayed from its snapshot. Sizes are kept in steps of a quarter of an octave; older submissions count less by
a fixed decay.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import exp, floor, inf, log2

import numpy as np

from scheduling.core.question.snapshot import FloatArray, IntArray

MEMORY_SECONDS = 14 * 86400.0
"""After this time a submission counts by 1/e."""

STEPS_PER_OCTAVE = 4
MOST_EXTRAPOLATION = 8.0
"""A burst of a minute tells little about a day: what came is expected this many times over at most."""

MOST_ROWS = 512
"""Rows kept: those with least demand go first."""

COLUMNS = 4


def is_remembered(memory: FloatArray) -> bool:
    """Whether these numbers have the form that `ExpectedDemand.remembered` gives them, and are not none."""
    return memory.size >= 2 and (memory.size - 2) % COLUMNS == 0 and bool(np.isfinite(memory).all())


@dataclass(frozen=True)
class ExpectedDemand:
    """Submissions since ``began_at``, decayed to ``as_of``. Row i is one size step of one project.

    ``step``: GPU seconds from 2 ** (step / 4) up to the next step. ``gpu_seconds``: their sum.
    ``weighted_windows``: the sum of GPU seconds times the time that each had until its deadline.
    """

    began_at: float = inf
    as_of: float = inf
    project: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    step: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    gpu_seconds: FloatArray = field(default_factory=lambda: np.zeros(0))
    weighted_windows: FloatArray = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def recalled(cls, memory: FloatArray) -> ExpectedDemand:
        """From what `remembered` gave; nothing was learnt where it is empty or of another form."""
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
        """As numbers; empty while nothing was submitted."""
        if self.began_at == inf:
            return np.zeros(0)
        rows = np.column_stack((self.project, self.step, self.gpu_seconds, self.weighted_windows))
        return np.concatenate(([self.began_at, self.as_of], rows.ravel()))

    def noted(self, now: float, project: int, gpu_seconds: float, window_seconds: float) -> ExpectedDemand:
        """With one more submission."""
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
        """GPU seconds that jobs still to come, each smaller than ``below``, will need within each of
        ``horizons``.

        They come evenly, at the rate of the past, and work evenly until their deadlines; what lies beyond a
        horizon is left out. No horizon is expected to bring more than `MOST_EXTRAPOLATION` times what the
        past did. ``project``: of that one alone.
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

    @property
    def seconds(self) -> float:
        """The length of the past, decayed like what came in it."""
        if self.began_at == inf:
            return 0.0
        return MEMORY_SECONDS * (1.0 - exp(-(self.as_of - self.began_at) / MEMORY_SECONDS))

    def projects(self) -> int:
        """How many projects have asked for something of late."""
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
