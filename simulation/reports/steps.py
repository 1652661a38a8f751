"""Step functions of time, thinned for drawing without changing what they add up to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduling.core.question.snapshot import FloatArray, IntArray

#: More steps than this no screen shows; a report of any length stays small and quick.
MOST_STEPS = 1_200


@dataclass(frozen=True)
class Steps:
    """One or more step functions on common times: ``values[:, k]`` holds on ``[time[k], time[k + 1])``.

    The last column repeats the one before it, so that a line drawn through the steps reaches the end.
    ``span_seconds`` is None for the exact function; otherwise every step is the mean over that long, and
    ``instants`` says how many there were. The integral over time is the same either way.
    """

    time: FloatArray
    values: FloatArray
    span_seconds: float | None
    instants: int


def steps(time: FloatArray, values: FloatArray, end_at: float, most: int = MOST_STEPS) -> Steps:
    """The functions ``values`` (one a row) that step at ``time`` and end at ``end_at``, in at most ``most``
    steps.

    Beyond that, time is cut in equal spans and each gets the time-weighted mean of what held in it. Spans
    without a value (NaN) weigh nothing. ``time`` is ascending and not empty.
    """
    rows = np.atleast_2d(values).astype(np.float64)
    end = max(end_at, float(time[-1]))
    instants = int(time.size)
    if instants <= most or end <= time[0]:
        return Steps(np.append(time, end), np.append(rows, rows[:, -1:], axis=1), None, instants)
    edges = np.linspace(float(time[0]), end, most + 1)
    knots = np.append(time, end)
    means = np.array([_means(knots, row, edges) for row in rows])
    span = (end - float(time[0])) / most
    return Steps(edges, np.append(means, means[:, -1:], axis=1), span, instants)


def _means(knots: FloatArray, row: FloatArray, edges: FloatArray) -> FloatArray:
    known = np.isfinite(row)
    seconds = np.diff(knots)
    total = np.interp(edges, knots, _running(np.where(known, row, 0.0) * seconds))
    weight = np.interp(edges, knots, _running(known * seconds))
    gained, lasted = np.diff(total), np.diff(weight)
    # What interpolation leaves of a span without any value is rounding, not a measurement.
    measured = lasted > 1e-9 * np.diff(edges)
    means: FloatArray = np.divide(gained, lasted, out=np.full(gained.size, np.nan), where=measured)
    return means


def _running(amounts: FloatArray) -> FloatArray:
    return np.concatenate([[0.0], np.cumsum(amounts)])


def highest(time: FloatArray, row: FloatArray, edges: FloatArray) -> FloatArray:
    """The highest value of a step function in each span between two edges, the value at its start
    included."""
    first = np.maximum(np.searchsorted(time, edges[:-1], side="right") - 1, 0)
    beyond = np.maximum(np.searchsorted(time, edges[1:], side="left"), first + 1)
    padded = np.append(row, -np.inf)
    places = np.column_stack([first, beyond]).ravel()
    found: FloatArray = np.maximum.reduceat(padded, places)[::2]
    return found


@dataclass(frozen=True)
class Counts:
    """Running counts of events at ``time``. ``exact`` is False where steps between the times were left
    out."""

    time: FloatArray
    counts: IntArray
    exact: bool


def running_counts(kinds: list[FloatArray], start_at: float, end_at: float, most: int = MOST_STEPS) -> Counts:
    """How many events of each kind had happened, at every event or, of more than ``most``, at ``most`` equal
    steps.

    NaN is an event that never happened. The counts at the times given are exact in either case.
    """
    happened = [np.sort(events[np.isfinite(events)]) for events in kinds]
    instants = np.unique(np.concatenate([*happened, [start_at]]))
    exact = instants.size <= most
    end = max(end_at, float(instants[-1]))
    time = np.append(instants, end) if exact else np.linspace(float(instants[0]), end, most + 1)
    counted = [np.searchsorted(events, time, side="right") for events in happened]
    return Counts(time, np.array(counted, dtype=np.int64), exact)
