"""Settle a division of the next slot in one call: place all jobs at once, and charge all pauses.

Most divisions settle at the first attempt. The steps are those of placement, changes and the pause budget,
which a caller can also take one by one; together they hand no arrays back and forth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.compiling import YES, ZERO, kernel, whole
from scheduling.core.placement.changes import Rearrangement, rearranged
from scheduling.core.placement.foresight import Script, Stage, foresee_after, no_charges
from scheduling.core.placement.repacking import Seats, all_repacked
from scheduling.core.plans.charging import Charges, charge_and_find_late, slack_of
from scheduling.core.question.arrays import Plans
from scheduling.core.question.snapshot import FloatArray, IntArray

KEPT = whole(0)
"""Every job has a place, and every promise is kept with all pauses."""
LATE = whole(1)
"""Pauses make a promise late, but its plan may be filled again with room for them."""
BROKEN = whole(2)
"""A job finds no place now or later, or a promise is late and no pause can be the cause."""


class Settled(NamedTuple):
    """A division of the next slot with all pauses charged."""

    #: KEPT, LATE or BROKEN.
    verdict: int
    #: Changes and placements; empty if not all jobs found a place now.
    changes: Rearrangement
    #: The finish of each plan, with all pauses.
    finish: FloatArray
    #: The GPU seconds of each plan until then.
    gpu_time: FloatArray
    #: Number of planned changes of size that were played forward.
    planned_changes: int


@kernel
def settled_together(
    stage: Stage, seats: Seats, script: Script, promised: IntArray, count: int, origin: float, pauses: bool
) -> Settled:
    """Place the next slot of the script's plans, all jobs at once, and charge the pauses of all forced moves.

    ``promised``: their rows, ascending. ``count``: number of jobs; the other rows are held offers.
    ``origin``: when the next slot begins, in seconds from now. ``pauses``: True if moves cost time, or if
    blocked GPUs can leave a change without a place.
    """
    jobs = stage.jobs
    plans = script.plans
    slack = slack_of(jobs, plans, promised, script.latest, no_charges())
    free_to_move = np.flatnonzero(~jobs.locked[:count])
    occupancy, failed = all_repacked(
        stage.blocks, seats, slack, free_to_move, wanted_gpus(plans, count), stage.rank
    )
    if failed.size > 0:
        nothing = Rearrangement(failed[:0], failed[:0], failed[:0], slack[:0], jobs.locked[:0])
        return Settled(BROKEN, nothing, plans.finish, plans.gpu_time, ZERO)
    changes = rearranged(
        stage.blocks, occupancy, jobs, seats.addresses, seats.offsets, script.suspension_order
    )
    charged = Plans(
        plans.time, plans.gpus, plans.length, plans.finish.copy(), plans.gpu_time.copy(),
        plans.reserved_until,
    )  # fmt: skip
    charges = no_charges()
    feasible = YES
    planned_changes = ZERO
    if pauses:
        charges = _charges_of(changes, promised, origin, jobs.gpus.size)
        feasible, charges = foresee_after(
            stage, seats, occupancy, Script(charged, script.latest, script.suspension_order), promised,
            charges, origin,
        )  # fmt: skip
        for row in promised:
            planned_changes += plans.length[row]
    late = charge_and_find_late(jobs, charged, promised, script.latest, charges)
    verdict = KEPT
    if not feasible or (late.size > 0 and not pauses):
        verdict = BROKEN
    elif late.size > 0:
        verdict = LATE
    return Settled(verdict, changes, charged.finish, charged.gpu_time, planned_changes)


@kernel
def wanted_gpus(plans: Plans, count: int) -> IntArray:
    """GPUs of each row in the next slot; none for held offers, the rows from ``count`` on."""
    wanted = np.zeros(plans.length.size, dtype=np.int64)
    for row in range(count):
        if plans.length[row] > 0:
            wanted[row] = plans.gpus[row, 0]
    return wanted


@kernel
def _charges_of(changes: Rearrangement, promised: IntArray, origin: float, rows: int) -> Charges:
    """The pauses of the promised jobs that change, all at ``origin``."""
    charged = np.zeros(rows, dtype=np.bool_)
    charged[promised] = True
    for row in changes.rows:
        if changes.offsets[row + 1] == changes.offsets[row]:
            charged[row] = False
    pauses = charged[changes.rows]
    job = changes.rows[pauses]
    return Charges(job, np.full(job.size, origin), changes.pause_seconds[pauses])
