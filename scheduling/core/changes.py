"""The smallest set of changes that turns the present placement into the wanted one.

A job whose GPUs stay the same is not touched. Changes come in an order in which GPUs are free when
they are needed; where jobs wait for each other in a circle, one of them is suspended first
(contracts 4), best effort before promises, and charged for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduling.core.decision import Change, ChangeKind
from scheduling.core.placement import Occupancy
from scheduling.core.problem import Problem
from scheduling.core.repacking import Seating, all_addresses
from scheduling.core.snapshot import IntArray
from scheduling.core.trades import break_trades

REASONS = {
    ChangeKind.START: "its planned start has come",
    ChangeKind.GROW: "GPUs are free that shorten its work",
    ChangeKind.SHRINK: "fewer GPUs are enough for it now",
    ChangeKind.MIGRATE: "its GPUs are needed as one block by a larger job",
    ChangeKind.SUSPEND: "its GPUs are needed for promises",
}


def placements(problem: Problem, occupancy: Occupancy) -> list[tuple[int, ...]]:
    """GPU addresses of every job of the snapshot."""
    rows = len(problem.snapshot.jobs)
    addresses, offsets = all_addresses(problem.blocks, occupancy, rows)
    flat = addresses.tolist()
    bounds = offsets.tolist()
    return [tuple(flat[bounds[row] : bounds[row + 1]]) for row in range(rows)]


def changes_between(
    problem: Problem, seating: Seating, occupancy: Occupancy, reluctance: IntArray
) -> tuple[tuple[Change, ...], list[tuple[int, ...]], dict[int, float]]:
    """(changes in order, new placement per job, pause seconds per job that changes onto GPUs).

    Locked jobs have no change and keep their placement.
    """
    jobs = problem.snapshot.jobs
    wanted = placements(problem, occupancy)
    for row in problem.locked:
        wanted[row] = jobs[row].placement
    suspended_rows: list[int] = []
    changed_rows: list[int] = []
    for row in sorted(range(len(jobs)), key=lambda row: int(problem.by_submission[row])):
        job = jobs[row]
        if job.locked or job.gpus_now == len(wanted[row]) and tuple(sorted(job.placement)) == wanted[row]:
            continue
        (changed_rows if wanted[row] else suspended_rows).append(row)
    order, first_out, waits = _order(problem, seating, occupancy, changed_rows, reluctance)
    changes = [_change(problem, row, (), 0.0, False) for row in suspended_rows]
    pauses: dict[int, float] = {}
    for position in order:
        row = changed_rows[position]
        pauses[row] = _pause(problem, row, len(wanted[row])) + float(waits[position])
        changes.append(_change(problem, row, wanted[row], pauses[row], bool(first_out[position])))
    return tuple(changes), wanted, pauses


def _order(
    problem: Problem, seating: Seating, occupancy: Occupancy, changed: Sequence[int], reluctance: IntArray
) -> tuple[list[int], list[bool], list[float]]:
    """Order of the changes, who is suspended first, and for how long each waits beyond its pause."""
    if not changed:
        return [], [], []
    before = np.full(problem.blocks.block_of.size, -1)
    rows = np.array(changed, dtype=np.int64)
    for row in changed:
        held = problem.snapshot.jobs[row].placement
        if held:
            before[list(held)] = row
    pause = np.zeros(problem.jobs.work.size)
    pause[rows] = [_pause(problem, row, int(occupancy.size[row])) for row in changed]
    order, suspended, waits = break_trades(problem.blocks, occupancy, before, rows, pause, reluctance)
    return order.tolist(), suspended.tolist(), waits.tolist()


def _pause(problem: Problem, row: int, gpus: int) -> float:
    levels = problem.jobs.levels[row]
    return float(problem.jobs.pause[row, int(np.searchsorted(levels, gpus))])


def _change(
    problem: Problem, row: int, addresses: tuple[int, ...], pause_seconds: float, suspend_first: bool
) -> Change:
    job = problem.snapshot.jobs[row]
    before, after = job.gpus_now, len(addresses)
    if after == 0:
        kind = ChangeKind.SUSPEND
    elif before == 0:
        kind = ChangeKind.START
    elif after == before:
        kind = ChangeKind.MIGRATE
    else:
        kind = ChangeKind.GROW if after > before else ChangeKind.SHRINK
    reason = REASONS[kind]
    if suspend_first:
        reason += "; it lets go first because others wait for its GPUs while it waits for theirs"
    return Change(
        job_id=job.id,
        kind=kind,
        gpus_before=before,
        gpus_after=after,
        addresses=addresses,
        pause_seconds=pause_seconds,
        reason=reason,
        suspend_first=suspend_first,
    )
