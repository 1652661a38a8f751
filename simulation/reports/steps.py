"""Step functions of time, thinned for drawing with unchanged integrals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduling.core.question.snapshot import FloatArray, IntArray

#: No screen shows more steps than this; it bounds the size of reports on long runs.
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
    """Return the functions ``values`` (one per row) that step at ``time`` and end at ``end_at``, in at most
    ``most`` steps.

    Beyond that, time is cut into equal spans, each with its time-weighted mean. Spans without a value (NaN)
    have no weight. ``time`` is ascending and not empty.
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
    # For a span without any value interpolation leaves rounding errors, not a measurement.
    measured = lasted > 1e-9 * np.diff(edges)
    means: FloatArray = np.divide(gained, lasted, out=np.full(gained.size, np.nan), where=measured)
    return means


def _running(amounts: FloatArray) -> FloatArray:
    return np.concatenate([[0.0], np.cumsum(amounts)])


def highest(time: FloatArray, row: FloatArray, edges: FloatArray) -> FloatArray:
    """Return the highest value of a step function in each span between two edges, the value at its start
    included."""
    first = np.maximum(np.searchsorted(time, edges[:-1], side="right") - 1, 0)
    beyond = np.maximum(np.searchsorted(time, edges[1:], side="left"), first + 1)
    padded = np.append(row, -np.inf)
    places = np.column_stack([first, beyond]).ravel()
    found: FloatArray = np.maximum.reduceat(padded, places)[::2]
    return found


@dataclass(frozen=True)
class Counts:
    """Running counts of events at ``time``. ``exact`` is False if steps between the times were left out."""

    time: FloatArray
    counts: IntArray
    exact: bool


def running_counts(kinds: list[FloatArray], start_at: float, end_at: float, most: int = MOST_STEPS) -> Counts:
    """Count the events of each kind so far, at every event or, beyond ``most``, at ``most`` equal steps.

    NaN is an event that never happened. The counts at the returned times are exact in either case.
    """
    happened = [np.sort(events[np.isfinite(events)]) for events in kinds]
    instants = np.unique(np.concatenate([*happened, [start_at]]))
    exact = instants.size <= most
    end = max(end_at, float(instants[-1]))
    time = np.append(instants, end) if exact else np.linspace(float(instants[0]), end, most + 1)
    counted = [np.searchsorted(events, time, side="right") for events in happened]
    return Counts(time, np.array(counted, dtype=np.int64), exact)
