"""Implications of the published queuing times: a queue whose head may be passed, and a hundredth of the jobs
that waits under every scheme.

By published percentiles and the mean of 3,072 s, the baseline's last hundredth must wait for at least 32,700
s on average, and for 103,300 s under scaling alone (Tables 3.5 and 3.8). In a strictly first-come queue every
job submitted within hours of such a job waits, so the baseline was hardly one. While the percentiles fall
two- to threefold with Lyra, its last hundredth still waits for more than a day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from research.figure import Check, Context, Table
from research.lyra.measuring import JCT, WAITING, column
from research.lyra.published import BASELINE as TOLD
from research.lyra.published import TABLE_35, TABLE_38, mean_of_last_hundredth
from research.lyra.schemes import FULL, SCHEMES, SEEDS, Scheme
from research.lyra.specs import LyraSpec, Size
from research.lyra.sweeps import MeasuredPoint, SweepPoint, find, sweep
from research.store import RunResult

SCALED = Size(55, 65, "lyra_scaled:mean_interarrival_seconds=185")
"""A ninth above the profile's rate: with it the baseline whose head may be passed uses 72 % of the GPUs."""
LARGE = (0.0, 0.5, 0.65, 0.8)
NAMES = ("sjf", "loaning", "scaling", "basic", "ideal")
BASE = SCHEMES["backfill"]
BANDED = (
    ("basic", WAITING, 1.2, 4.0), ("ideal", WAITING, 1.6, 6.0), ("loaning", WAITING, 1.1, 3.0),
    ("basic", JCT, 1.05, 1.9), ("ideal", JCT, 1.3, 2.3),
)  # fmt: skip
NEAREST = 0.8


def _specs(scheme: Scheme, full: bool, large: float) -> tuple[LyraSpec, ...]:
    return tuple(replace(scheme.spec(FULL if full else SCALED, seed), large_jobs=large) for seed in SEEDS)


def _points(full: bool) -> Sequence[SweepPoint]:
    points = []
    for name in NAMES:
        told = TABLE_35.get(name)
        published = (
            (None, None, None) if told is None else (told.queuing_mean, told.jct_mean, told.preemptions)
        )
        points += [
            SweepPoint(
                SCHEMES[name].label, f"{large:g}", _specs(SCHEMES[name], full, large), published,
                against=_specs(BASE, full, large),
            )
            for large in LARGE
        ]  # fmt: skip
    return points


def _waits(result: RunResult) -> list[float]:
    """Return mean, percentiles, mean of the last hundredth, and usage."""
    waiting = np.sort(column(result, WAITING))
    last = float(waiting[int(0.99 * waiting.size) :].mean())
    percentiles = [float(value) for value in np.percentile(waiting, (50, 75, 95, 99))]
    return [float(waiting.mean()), *percentiles, last, float(result.facts["training_usage"])]


def _levels(context: Context) -> Sequence[Table]:
    waits = TABLE_38["baseline"][0]
    low, high = mean_of_last_hundredth(TOLD.queuing_mean, waits)
    rows: list[tuple[str, ...]] = [
        (
            "published",
            *(f"{value:,.0f}" for value in (TOLD.queuing_mean, *waits)),
            f"{low:,.0f} to {high:,.0f}",
            "0.72",
        )
    ]
    for large in LARGE:
        results = [
            result for spec in _specs(BASE, context.full, large) if (result := context.get(spec)) is not None
        ]
        if results:
            values = np.mean([_waits(result) for result in results], axis=0)
            rows.append((f"{large:g}", *(f"{value:,.0f}" for value in values[:-1]), f"{values[-1]:.3f}"))
    return (
        Table(
            "The baseline that may be passed",
            "Seconds of queuing time: first come, but whoever fits goes ahead of those who do not. Means "
            "over the seeds. The published mean and percentiles allow the mean of the last hundredth to be "
            "anywhere within the bounds that stand there.",
            (
                "Large jobs ask for",
                "Mean",
                "50 %",
                "75 %",
                "95 %",
                "99 %",
                "Mean of the last hundredth",
                "Usage",
            ),
            tuple(rows),
        ),
    )


def _within(rows: Sequence[MeasuredPoint]) -> Sequence[Check]:
    checks = []
    for name, metric, low, high in BANDED:
        row = find(rows, SCHEMES[name].label, f"{NEAREST:g}")
        kind = "queuing time" if metric == WAITING else "JCT"
        ratio = None if row is None else row.queuing if metric == WAITING else row.jct
        checks.append(
            Check(
                f"With large jobs on {NEAREST:.0%} of the cluster: {kind}, backfilling over {name}",
                None if ratio is None else low <= ratio.value <= high,
                "not run" if ratio is None else f"{ratio.value:.2f}, from {low:g} to {high:g}",
            )
        )
    return checks


FIGURE = sweep(
    "queuing", "What the published queuing times pin", "share of the cluster that large jobs ask "
                                                       "for", _points,
    more=_levels, checks=_within,
    notes=(
        (
            "One job of a hundred, of two to eighteen minutes, asks for the given share of the training "
            "cluster; all else is as in the profile. Such jobs are hardly any work. They wait until so much "
            "is free at once, under every scheme, and so hold up the mean of all."
        ),
        "Against the baseline that may be passed. 0: no such jobs.",
    ),
)  # fmt: skip
