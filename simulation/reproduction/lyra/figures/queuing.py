"""What the published queuing times pin: a queue whose head may be passed, and a hundredth of the jobs that waits whatever is done.

Published percentiles of the baseline allow 1,600 s below the 99th and a mean of 3,072 s (Tables 3.5 and 3.8). Under a strictly
first-come queue everybody behind a job that waits for days waits for days, so the baseline cannot have been one; and with Lyra the
percentiles fall two- to threefold while the mean falls by a third, so that the last hundredth must wait as long as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulation.reproduction.comparing import Context
from simulation.reproduction.figures.base import Check, Table
from simulation.reproduction.lyra.measuring import JCT, WAITING, column
from simulation.reproduction.lyra.published import BASELINE as TOLD
from simulation.reproduction.lyra.published import TABLE_35, TABLE_38
from simulation.reproduction.lyra.schemes import FULL, SCHEMES, Scheme
from simulation.reproduction.lyra.specs import LyraSpec, Size
from simulation.reproduction.lyra.sweeps import Measured, Point, find, sweep

SCALED = Size(55, 65, "lyra_scaled:mean_interarrival_seconds=185")
"""A ninth more than the profile's own rate: with it the baseline that may be passed has 72 % of the GPUs in use."""
LARGE = (0.0, 0.5, 0.65, 0.8)
NAMES = ("sjf", "loaning", "scaling", "basic", "ideal")
BASE = SCHEMES["backfill"]
BANDED = ("basic", 1.2, 4.0, 1.05, 1.9), ("ideal", 1.6, 6.0, 1.3, 2.3)
NEAREST = 0.65


def _spec(scheme: Scheme, full: bool, large: float) -> LyraSpec:
    return replace(scheme.spec(FULL if full else SCALED), large_jobs=large)


def _points(full: bool) -> Sequence[Point]:
    points = []
    for name in NAMES:
        told = TABLE_35.get(name)
        published = (
            (None, None, None) if told is None else (told.queuing_mean, told.jct_mean, told.preemptions)
        )
        points += [
            Point(
                SCHEMES[name].label, f"{large:g}", (_spec(SCHEMES[name], full, large),), published,
                against=(_spec(BASE, full, large),),
            )
            for large in LARGE
        ]  # fmt: skip
    return points


def _levels(context: Context) -> Sequence[Table]:
    waits = TABLE_38["baseline"][0]
    rows: list[tuple[str, ...]] = [
        ("published", *(f"{value:,.0f}" for value in (TOLD.queuing_mean, *waits)), "150,000", "0.72")
    ]
    for large in LARGE:
        result = context.get(_spec(BASE, context.full, large))
        if result is None:
            continue
        waiting = np.sort(column(result, WAITING))
        last = waiting[int(0.99 * waiting.size) :].mean()
        values = (waiting.mean(), *np.percentile(waiting, (50, 75, 95, 99)), last)
        usage = float(result.facts["training_usage"])
        rows.append((f"{large:g}", *(f"{value:,.0f}" for value in values), f"{usage:.3f}"))
    return (
        Table(
            "The baseline that may be passed",
            "Seconds of queuing time: first come, but whoever fits goes ahead of those who do not. The published mean of the last hundredth follows"
            " from the published mean and percentiles.",
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


def _within(rows: Sequence[Measured]) -> Sequence[Check]:
    checks = []
    for name, low, high, low_jct, high_jct in BANDED:
        row = find(rows, SCHEMES[name].label, f"{NEAREST:g}")
        for kind, ratio, bottom, top in (
            (WAITING, None if row is None else row.queuing, low, high),
            (JCT, None if row is None else row.jct, low_jct, high_jct),
        ):
            told = f"With large jobs on {NEAREST:.0%} of the cluster: {'queuing time' if kind == WAITING else 'JCT'}, backfilling over {name}"
            met = None if ratio is None else bottom <= ratio.value <= top
            text = "not run" if ratio is None else f"{ratio.value:.2f}, from {bottom:g} to {top:g}"
            checks.append(Check(told, met, text))
    return checks


FIGURE = sweep(
    "queuing", "What the published queuing times pin", "share of the cluster that large jobs ask for", _points,
    more=_levels, checks=_within,
    notes=(
        (
            "One job of a hundred, of two to eighteen minutes, asks for the given share of the training cluster; all else is as in the profile. Such"
            " jobs are hardly any work. They wait until so much is free at once, under every scheme, and so hold up the mean of all."
        ),
        "Against the baseline that may be passed. One seed. 0: no such jobs.",
    ),
)  # fmt: skip
