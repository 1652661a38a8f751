"""Stored plans: cut at the beginning of the next slot, forecast, and written back into a snapshot.

A stored plan was made at an earlier decision. The part after the beginning of the next slot still proves
that the promises can be kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernels.compiling import ONE, YES, ZERO, kernel
from scheduling.core.plans.charging import charged_finish
from scheduling.core.plans.timeline import EVERYTHING, Timeline, occupied
from scheduling.core.question.arrays import (
    TIME_TOLERANCE,
    Draft,
    JobArrays,
    Plans,
    no_plans,
    set_plan,
    widened,
)
from scheduling.core.question.snapshot import FloatArray, HeldOffer, IntArray, StoredPlan


def cut_stored(plans: Sequence[StoredPlan | None], now: float, origin: float) -> Plans:
    """The stored plans from ``origin`` on, the beginning of the next slot in seconds from ``now``.

    A job without a stored plan (None) has an empty row.
    """
    pieces = np.array([plan.start.size if plan is not None else -1 for plan in plans], dtype=np.int64)
    held = [plan for plan in plans if plan is not None and plan.start.size]
    empty: list[FloatArray] = [np.zeros(0)]
    cut: Plans = _cut(
        no_plans(len(plans)),
        pieces,
        np.concatenate([plan.start for plan in held] or empty) - now,
        np.concatenate([plan.end for plan in held] or empty) - now,
        np.concatenate([plan.gpus for plan in held] or empty).astype(np.int64),
        origin,
    )
    return cut


def with_offers(stored: Plans, offers: Sequence[HeldOffer], now: float, origin: float) -> Plans:
    """The jobs' plans, and below them one row for the plan of each held offer."""
    held = cut_stored([offer.plan for offer in offers], now, origin)
    width = max(stored.time.shape[1], held.time.shape[1])
    stored, held = widened(stored, width), widened(held, width)
    width = max(stored.time.shape[1], held.time.shape[1])
    return Plans(*(_stacked(above, below, width) for above, below in zip(stored, held, strict=True)))


def _stacked(above: np.ndarray, below: np.ndarray, width: int) -> np.ndarray:
    if above.ndim == 1:
        return np.concatenate((above, below))
    return np.concatenate([np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in (above, below)])


@kernel
def _cut(
    plans: Plans, pieces: IntArray, start: FloatArray, end: FloatArray, gpus: IntArray, origin: float
) -> Plans:
    """Write the part of each plan after ``origin`` to ``plans``; equal neighbours become one piece.

    ``pieces``: number of pieces of each job, -1 without a plan. ``start``, ``end`` and ``gpus``: the pieces
    of all jobs, one after the other, in seconds from now.
    """
    longest = 0
    for count in pieces:
        longest = max(longest, count)
    out_time = np.zeros(2 * longest + 2)
    out_gpus = np.zeros(2 * longest + 2, dtype=np.int64)
    offset = 0
    for job in range(pieces.size):
        if pieces[job] < 0:
            continue
        out_time[0] = origin
        out_gpus[0] = 0
        written = ONE
        for piece in range(offset, offset + pieces[job]):
            if end[piece] <= origin + TIME_TOLERANCE:
                continue
            begin = max(start[piece], origin)
            for side in range(2):
                at = begin if side == 0 else end[piece]
                level = gpus[piece] if side == 0 else 0
                if at <= out_time[written - 1] + TIME_TOLERANCE:
                    out_gpus[written - 1] = level
                    if written > 1 and out_gpus[written - 2] == level:
                        written -= 1
                elif out_gpus[written - 1] != level:
                    out_time[written] = at
                    out_gpus[written] = level
                    written += 1
        plans = set_plan(plans, job, Draft(out_time, out_gpus), written, np.inf, 0.0)
        offset += pieces[job]
    return plans


@kernel
def recut(plans: Plans, rows: IntArray, held: IntArray, elapsed: float, origin: float) -> Plans:
    """Plans made ``elapsed`` seconds ago, cut at ``origin``. Row i is the plan of ``rows[i]``, none for -1.

    A plan that begins after ``origin`` was made within a slot, for the next one. Until it begins the job
    keeps ``held[i]`` GPUs.
    """
    width = 7
    for source in rows:
        if source >= 0:
            width = max(width, plans.length[source])
    time = np.zeros((rows.size, width + 1))
    gpus = np.zeros((rows.size, width + 1), dtype=np.int64)
    length = np.zeros(rows.size, dtype=np.int64)
    for row in range(rows.size):
        source = rows[row]
        if source < 0 or plans.length[source] == 0:
            continue
        time[row, 0] = origin
        gpus[row, 0] = held[row]
        written = 1
        for piece in range(plans.length[source]):
            at = plans.time[source, piece] - elapsed
            level = plans.gpus[source, piece]
            if at <= origin + TIME_TOLERANCE:
                gpus[row, 0] = level
            elif gpus[row, written - 1] != level or piece == plans.length[source] - 1:
                time[row, written] = at
                gpus[row, written] = level
                written += 1
        length[row] = written
    return Plans(
        time, gpus, length, np.full(rows.size, np.inf), np.zeros(rows.size), np.full(rows.size, -np.inf)
    )


@kernel
def pin_head(plans: Plans, job: int, gpus: int, origin: float, until: float) -> Plans:
    """Let a locked job hold ``gpus`` GPUs from ``origin`` to ``until``, then follow its plan."""
    count = plans.length[job]
    out_time = np.zeros(count + 3)
    out_gpus = np.zeros(count + 3, dtype=np.int64)
    out_time[0] = origin
    out_gpus[0] = gpus
    written = ONE
    after = ZERO
    first_later = 0
    while first_later < count and plans.time[job, first_later] <= until + TIME_TOLERANCE:
        after = plans.gpus[job, first_later]
        first_later += 1
    if after != gpus or first_later == count:
        out_time[1] = until
        out_gpus[1] = after
        written += 1
    for piece in range(first_later, count):
        out_time[written] = plans.time[job, piece]
        out_gpus[written] = plans.gpus[job, piece]
        written += 1
    plans.reserved_until[job] = until
    return set_plan(plans, job, Draft(out_time, out_gpus), written, np.inf, 0.0)


@kernel
def flatten(
    plans: Plans, rows: IntArray, head_gpus: IntArray, with_head: bool
) -> tuple[FloatArray, IntArray, IntArray]:
    """Concatenate the plans of ``rows``.

    ``with_head``: each plan begins with a piece of ``head_gpus`` GPUs, from now to the next slot. Returns
    (begin of each piece in seconds from now, its GPUs, where the pieces of each row begin).
    """
    total = 0
    for row in rows:
        total += plans.length[row] + 1
    start = np.zeros(total)
    gpus = np.zeros(total, dtype=np.int64)
    offsets = np.zeros(rows.size + 1, dtype=np.int64)
    written = 0
    for position in range(rows.size):
        row = rows[position]
        begun = written
        if with_head:
            start[written] = 0.0
            gpus[written] = head_gpus[row]
            written += 1
        for piece in range(plans.length[row]):
            last = piece == plans.length[row] - 1
            if written > begun and gpus[written - 1] == plans.gpus[row, piece] and not last:
                continue
            start[written] = plans.time[row, piece]
            gpus[written] = plans.gpus[row, piece]
            written += 1
        offsets[position + 1] = written
    return start, gpus, offsets


@kernel
def stored_plans_keep(
    jobs: JobArrays,
    plans: Plans,
    rows: IntArray,
    own: int,
    due: FloatArray,
    opened: Timeline,
) -> tuple[IntArray, bool]:
    """Forecast the stored plans of ``rows`` and set their finish. Rows from ``own`` on are held offers.

    ``due``: when the last iteration must end, by row, in seconds from now. ``opened``: the free capacity
    without promises, which stays unchanged. Returns (rows that end after ``due``, whether the plans of the
    other rows take more GPUs than there are).
    """
    nothing = np.zeros(0)
    late = np.zeros(rows.size, dtype=np.bool_)
    for position in range(rows.size):
        row = rows[position]
        if row < own:
            plans.finish[row], plans.gpu_time[row] = charged_finish(jobs, plans, row, nothing, nothing)
            late[position] = plans.finish[row] > due[row] + 2 * TIME_TOLERANCE
    timeline = occupied(opened, plans, rows[~late], YES)
    free = timeline.free
    for piece in range(timeline.pieces):
        if free[EVERYTHING, piece] < 0:
            return rows[late], True
    return rows[late], False
