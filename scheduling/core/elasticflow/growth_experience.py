"""How long a job's growth lasts, by experience: it must last long enough to pay for its pauses.

A plan contains the promises that will need the GPUs, but not the newcomers. Where short promises arrive every
minute, a job would grow after each of them and shrink for the next. So each job notes how long its growth has
lasted, and expects the next growth to last as long. GPUs that stay idle for longer correct that: what has
lasted for some time is expected to last as long again.

The notes are columns of `Answer.job_memory`; 0 stands for nothing noted. Times are on the snapshot's axis.
"""

from __future__ import annotations

from math import inf

import numpy as np

from scheduling.core.plans.slots import slot_end
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import TIME_TOLERANCE, BoolArray, JobArrays, rows_where
from scheduling.core.question.snapshot import FloatArray, IntArray

COLUMNS = ("grown_at", "idle_since", "lasted")
"""When GPUs for the present level became idle, or the job took them; since when GPUs for its next level are
idle; how many seconds its growth has lasted, or could have lasted."""
GROWN_AT, IDLE_SINCE, LASTED = range(3)


def unknown_seconds(problem: Problem) -> FloatArray:
    """How long growth of each row lasts where nothing is known: infinity."""
    return np.full(problem.jobs.work.size, inf)


def expected_seconds(problem: Problem) -> FloatArray:
    """How long growth of each row is expected to last, in seconds; infinity without experience."""
    seconds, notes = unknown_seconds(problem), problem.columns.memory
    idle = np.where(notes[:, IDLE_SINCE] > 0.0, problem.next_slot_at - notes[:, IDLE_SINCE], 0.0)
    known = rows_where(notes[:, LASTED] > 0.0)
    seconds[known] = np.maximum(notes[:, LASTED], idle)[known]
    return seconds


def next_notes(problem: Problem, gpus: IntArray) -> FloatArray:
    """The notes after a decision that gives each job ``gpus`` GPUs from ``next_slot_at`` on."""
    at, before = problem.next_slot_at, problem.columns.gpus
    notes = problem.columns.memory.copy()
    goes_on = problem.jobs.finished_at[: problem.count] == inf
    idle = problem.gpus - int(gpus.sum())
    has_room = goes_on & (gpus > 0) & (_next_levels(problem.jobs, gpus)[0] - gpus <= idle)
    was_idle = notes[:, IDLE_SINCE] > 0.0
    grows = gpus > before
    _learn(notes, goes_on & (gpus < before), GROWN_AT, at)
    _learn(notes, was_idle & ~has_room & ~grows, IDLE_SINCE, at)
    notes[grows, GROWN_AT] = np.where(was_idle, notes[:, IDLE_SINCE], at)[grows]
    notes[has_room & (grows | ~was_idle), IDLE_SINCE] = at
    notes[~has_room, IDLE_SINCE] = 0.0
    return notes


def _learn(notes: FloatArray, ended: BoolArray, since: int, at: float) -> None:
    """Note for the jobs ``ended`` that growth lasted from the time in column ``since`` to ``at``.

    The mean of this time and of what was noted before: jobs soon learn that their cluster got busier, and one
    short time among long ones does not keep them from growing.
    """
    rows = rows_where(ended & (notes[:, since] > 0.0))
    seconds, known = at - notes[rows, since], notes[rows, LASTED]
    notes[rows, LASTED] = np.where(known > 0.0, (known + seconds) / 2, seconds)


def first_worth_growing(problem: Problem, gpus: IntArray, notes: FloatArray) -> float:
    """The first slot boundary, in seconds from now, at which GPUs have been idle for long enough for a job.

    ``notes``: those of `next_notes`. Infinity if no job waits for that.
    """
    jobs, slots = problem.jobs, problem.slots
    rows = rows_where((notes[:, IDLE_SINCE] > 0.0) & (notes[:, LASTED] > 0.0))
    if not rows.size:
        return inf
    _, rate, pause = _next_levels(jobs, gpus)
    first = inf
    for row in rows.tolist():
        levels = jobs.levels[row, : jobs.level_count[row]]
        present = max(0, int(np.searchsorted(levels, gpus[row], side="right")) - 1)
        present_rate, way_back = float(jobs.throughput[row, present]), float(jobs.pause[row, present])
        enough = (rate[row] * pause[row] + present_rate * way_back) / (rate[row] - present_rate)
        at = notes[row, IDLE_SINCE] + enough - problem.now
        if notes[row, LASTED] <= enough and at >= slots.origin - TIME_TOLERANCE:
            boundary = slot_end(at + 2 * TIME_TOLERANCE, slots)
            first = min(first, max(boundary, slots.origin + slots.seconds))
    return float(first)


def _next_levels(jobs: JobArrays, gpus: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """GPUs, rate and pause of each job's next level above ``gpus``; infinity, 0 and 0 where there is none."""
    rows = np.arange(gpus.size)
    levels = jobs.levels[rows]
    above = (np.arange(levels.shape[1]) < jobs.level_count[rows, None]) & (levels > gpus[:, None])
    first, exists = above.argmax(axis=1), above.any(axis=1)
    return (
        np.where(exists, levels[rows, first], inf),
        np.where(exists, jobs.throughput[rows, first], 0.0),
        np.where(exists, jobs.pause[rows, first], 0.0),
    )
