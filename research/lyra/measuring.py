"""Ratios between runs of the same jobs, over several seeds, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from research.executing import Results
from research.lyra.specs import LyraSpec
from research.store import RunResult
from scheduling.core.question.snapshot import FloatArray, IntArray

WAITING, JCT = "waiting_seconds", "jct_seconds"
FIRST_WAITING = "first_waiting_seconds"
"""Waiting until the first start: time without GPUs after a preemption does not count (A14)."""
DRAWS = 1000
BLOCK_SECONDS = 6 * 3600.0
"""Block length of the bootstrap: jobs submitted close together wait for the same reason, so whole quarters of
days are drawn."""
LOW, HIGH = 2.5, 97.5


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio over all seeds, its 95 % interval, and each seed's ratio."""

    #: Ratio over all seeds.
    value: float
    #: Lower end of the 95 % interval.
    low: float
    #: Upper end of the 95 % interval.
    high: float
    #: Ratio of each seed.
    by_seed: tuple[float, ...]

    @property
    def above_one(self) -> bool:
        """Whether the interval is entirely above 1."""
        return self.low > 1.0

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def column(result: RunResult, name: str) -> FloatArray:
    """Return one value per job."""
    return np.array(result.series[name], dtype=np.float64)


def pairs_of(
    results: Results, over: Sequence[LyraSpec], under: Sequence[LyraSpec]
) -> list[tuple[RunResult, RunResult]]:
    """Return results of both sides, seed by seed; empty if one of them is missing."""
    found = [(results.get(one), results.get(other)) for one, other in zip(over, under, strict=True)]
    return [(one, other) for one, other in found if one is not None and other is not None]


def mean_ratio(pairs: Sequence[tuple[RunResult, RunResult]], name: str, draws: int = DRAWS) -> Ratio | None:
    """Return the first's mean over the second's, over the jobs of all seeds; None without any pair.

    The interval is a bootstrap over blocks of submissions, the same blocks on both sides.
    """
    if not pairs:
        return None
    tops, bottoms = [], []
    by_seed = []
    for one, other in pairs:
        first, second = column(one, name), column(other, name)
        at = column(one, "submitted_seconds")
        block = (at // BLOCK_SECONDS).astype(np.int64)
        tops.append(np.bincount(block, first))
        bottoms.append(np.bincount(block, second))
        by_seed.append(_over(float(first.sum()), float(second.sum())))
    top, bottom = np.concatenate(tops), np.concatenate(bottoms)
    drawn = np.random.default_rng(0).integers(0, top.size, (draws, top.size))
    ratios = top[drawn].sum(axis=1) / np.maximum(bottom[drawn].sum(axis=1), 1e-9)
    low, high = np.percentile(ratios, (LOW, HIGH))
    return Ratio(_over(float(top.sum()), float(bottom.sum())), float(low), float(high), tuple(by_seed))


def percentile_ratio(pairs: Sequence[tuple[RunResult, RunResult]], name: str, share: float) -> float | None:
    """Return the ratio of a percentile, the median over all seeds."""
    if not pairs:
        return None
    ratios = [
        _over(
            float(np.percentile(column(one, name), share)), float(np.percentile(column(other, name), share))
        )
        for one, other in pairs
    ]
    return float(np.median(ratios))


def count_ratio(pairs: Sequence[tuple[RunResult, RunResult]], name: str) -> Ratio | None:
    """Return the ratio of a count in the summaries; the interval is from the lowest to the highest seed."""
    if not pairs:
        return None
    by_seed = tuple(
        _over(float(one.summary[name] or 0.0), float(other.summary[name] or 0.0)) for one, other in pairs
    )
    total = _over(
        sum(float(one.summary[name] or 0.0) for one, _ in pairs),
        sum(float(other.summary[name] or 0.0) for _, other in pairs),
    )
    return Ratio(total, min(by_seed), max(by_seed), by_seed)


def mean_over_seeds(
    results: Results, specs: Sequence[LyraSpec], value: Callable[[RunResult], float | None]
) -> float | None:
    """Return the mean of a value over the available seeds."""
    found = [value(result) for spec in specs if (result := results.get(spec)) is not None]
    known = [one for one in found if one is not None]
    return float(np.mean(known)) if known else None


def of_rows(result: RunResult, name: str, rows: IntArray) -> FloatArray:
    """Return a column of some jobs."""
    return column(result, name)[rows]


def _over(top: float, bottom: float) -> float:
    return top / bottom if bottom > 0.0 else float("inf") if top > 0.0 else 1.0
