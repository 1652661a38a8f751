"""What must hold after every event of a simulation.

Checked if the settings ask for it; a violation stops the run with the invariant's name and the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduling.core.placement.buddy_blocks import NOWHERE, blocks_of
from scheduling.core.problem.answer import Answer
from scheduling.core.question.arrays import TIME_TOLERANCE
from scheduling.core.question.columns import BEST_EFFORT
from scheduling.core.question.snapshot import FloatArray, IntArray, ServerSnapshot
from scheduling.core.question.worker_counts import workers_by_gpus
from simulation.engine.world.pool import PoolState
from simulation.engine.world.running import ACTIVE
from simulation.engine.world.world import World

NO_GPUS: IntArray = np.zeros(0, dtype=np.int64)
ITERATION_TOLERANCE = 1e-6
"""Tolerance for floating point in a job's progress, as a share of its iterations."""


class InvariantViolation(AssertionError):
    """An invariant that does not hold."""


@dataclass
class _Shadow:
    """Jobs' states at the last check, to follow their progress independently."""

    at: float
    setbacks: int
    remaining: FloatArray
    rate: FloatArray
    pause_left: FloatArray


class InvariantCheck:
    """Call it after every answer that a pool applied."""

    def __init__(self) -> None:
        self._promised: dict[int, bool] = {}
        self._shadow: _Shadow | None = None
        self.checked = 0

    def __call__(self, world: World, pool: PoolState, answer: Answer) -> None:
        """Raise InvariantViolation naming the first invariant that does not hold."""
        self.checked += 1
        active = pool.rows[world.jobs.phase[pool.rows] == ACTIVE]
        self._capacity(world, pool, answer)
        self._levels(world, pool, active)
        self._places(world, pool)
        self._promises(world, pool, answer)
        self._nothing_idle(world, pool, answer)
        self._progress(world)

    def _progress(self, world: World) -> None:
        """I9: progress since the last check is rate times time without pauses; only a setback reduces it."""
        jobs, shadow = world.jobs, self._shadow
        setbacks = self._setbacks(world)
        if shadow is not None:
            active = np.flatnonzero(jobs.phase == ACTIVE)
            productive = np.maximum(0.0, world.now - shadow.at - shadow.pause_left)
            expected = np.maximum(0.0, shadow.remaining - shadow.rate * productive)
            tolerance = ITERATION_TOLERANCE * jobs.total
            ahead = active[(jobs.remaining < expected - tolerance)[active]]
            behind = active[(jobs.remaining > expected + tolerance)[active]]
            if ahead.size or (behind.size and setbacks == shadow.setbacks):
                row = int((ahead if ahead.size else behind)[0])
                raise InvariantViolation(
                    f"I9: job {world.workload.job_id[row]} has {jobs.remaining[row]:.6g} iterations "
                    f"left, and its rate explains {expected[row]:.6g}"
                )
        self._shadow = _Shadow(
            world.now, setbacks, jobs.remaining.copy(), jobs.rate.copy(), jobs.pause_left.copy()
        )

    def _setbacks(self, world: World) -> int:
        """Return how many events so far stopped jobs between two decisions: lost servers."""
        return world.recorder.counts["failures"]

    def _capacity(self, world: World, pool: PoolState, answer: Answer) -> None:
        """I1: at no time are more GPUs planned than exist.

        Between reallocations only promises are checked: the other plans are forecasts, which the next
        reallocation replaces.
        """
        problem = answer.problem
        plans = answer.plans
        counted = (plans.length[: problem.count] > 0) & ~answer.declined
        if problem.origin > TIME_TOLERANCE:
            counted &= world.jobs.promised[pool.rows]
            counted[list(answer.at_risk)] = False
        kept = np.flatnonzero(counted)
        times = np.unique(
            np.concatenate([plans.time[row, : plans.length[row]] for row in kept] or [np.zeros(0)])
        )
        # Jobs stay on servers whose end has just become known until GPUs change hands, and longer while
        # agents are silent.
        leaving = sum(self._held(world, pool, position).size for position in range(pool.rows.size))
        leaving -= sum(self._owned(world, pool, position).size for position in range(pool.rows.size))
        for at in times.tolist():
            used = sum(_held(plans, row, at) for row in kept.tolist())
            if used > pool.capacity.gpus + (
                leaving if at + TIME_TOLERANCE < problem.origin or pool.silent.any() else 0
            ):
                raise InvariantViolation(
                    f"I1: {used} of {pool.capacity.gpus} GPUs planned {at:.6g} s from now"
                )
        held = sum(self._owned(world, pool, position).size for position in range(pool.rows.size))
        if held > pool.size.gpus:
            raise InvariantViolation(f"I1: {held} of {pool.size.gpus} GPUs held")

    def _levels(self, world: World, pool: PoolState, active: np.ndarray) -> None:
        """I2 and I8: every job holds one of its levels, which divides its global batch."""
        workload = world.workload
        for row in active.tolist():
            gpus = int(world.jobs.gpus[row])
            if gpus == 0:
                continue
            if gpus not in self._sizes(pool, row):
                raise InvariantViolation(
                    f"I2: job {workload.job_id[row]} holds {gpus} GPUs, which is no level of it"
                )
            profile = workload.profiles[int(workload.profile_of[row])]
            batch = profile.global_batch_size
            workers = workers_by_gpus(profile.worker_counts or (gpus,), batch)
            if not pool.policy.any_measured_size and gpus not in workers:
                raise InvariantViolation(f"I8: {gpus} GPUs do not divide the global batch of {batch}")

    def _owned(self, world: World, pool: PoolState, position: int) -> IntArray:
        """Return, in ascending order, the GPUs of the pool's own lasting servers that an active job holds.
        ``position``: the job's position in the pool's rows."""
        held = self._held(world, pool, position)
        return np.sort(held[pool.lasting(held)])

    def _held(self, world: World, pool: PoolState, position: int) -> IntArray:
        """Return all GPUs that an active job holds."""
        if world.jobs.phase[pool.rows[position]] != ACTIVE:
            return NO_GPUS
        return pool.addresses[pool.offsets[position] : pool.offsets[position + 1]]

    def _sizes(self, pool: PoolState, row: int) -> IntArray:
        """Return the numbers of GPUs that a job may hold."""
        table = pool.tables.measured if pool.policy.any_measured_size else pool.tables.planned
        sizes: IntArray = table.levels[row]
        return sizes

    def _places(self, world: World, pool: PoolState) -> None:
        """I3 and I4: each GPU has one job; a job has an aligned part of one block, or whole blocks."""
        if np.unique(pool.addresses).size != pool.addresses.size:
            raise InvariantViolation("I3: a GPU has two jobs")
        blocks = pool.capacity.blocks
        width = pool.size.gpus_per_server
        for position, row in enumerate(pool.rows.tolist()):
            held = self._owned(world, pool, position)
            name = world.workload.job_id[row]
            placed = int(pool.offsets[position + 1] - pool.offsets[position])
            if world.jobs.phase[row] == ACTIVE and placed and placed != world.jobs.gpus[row]:
                raise InvariantViolation(f"I3: job {name} holds {placed} GPUs, not {world.jobs.gpus[row]}")
            if not held.size:
                continue
            lost = (blocks.block_of[held] == NOWHERE) & ~pool.silent[held // width]
            if lost.any():
                raise InvariantViolation(f"I3: job {name} holds GPUs of a lost server")
            if not sits_well(held, width):
                raise InvariantViolation(f"I4: job {name} sits on {held.tolist()}")

    def _promises(self, world: World, pool: PoolState, answer: Answer) -> None:
        """I5 and I6: every promise is planned to be kept; none is withdrawn."""
        problem = answer.problem
        at_risk = set(answer.at_risk)
        finish = answer.plans.finish
        for row in range(problem.count):
            known = int(pool.rows[row])
            if world.jobs.phase[known] != ACTIVE:
                continue
            if self._promised.get(known, False) and not world.jobs.promised[known]:
                raise InvariantViolation(
                    f"I6: the promise to job {world.workload.job_id[known]} was taken back"
                )
            promised = bool(world.jobs.promised[known])
            self._promised[known] = promised
            if promised and row not in at_risk and finish[row] > problem.due[row] + 3 * TIME_TOLERANCE:
                if answer.planned[row] and finish[row] < np.inf:
                    raise InvariantViolation(
                        f"I5: job {world.workload.job_id[known]} is planned to end "
                        f"{finish[row] - problem.due[row]:.6g} s late"
                    )

    def _nothing_idle(self, world: World, pool: PoolState, answer: Answer) -> None:
        """I7: no GPU idles while a waiting best-effort job would fit (a grant may be refused for its
        pause)."""
        if not pool.policy.promises or not answer.changes and answer.problem.origin > 0:
            return
        if answer.problem.origin > TIME_TOLERANCE or answer.notes or pool.silent.any():
            return
        rows = pool.rows[world.jobs.phase[pool.rows] == ACTIVE]
        idle = pool.capacity.gpus - sum(
            self._owned(world, pool, position).size for position in range(pool.rows.size)
        )
        waiting = rows[(world.jobs.gpus[rows] == 0) & (world.jobs.service_class[rows] == BEST_EFFORT)]
        for row in waiting.tolist():
            smallest = int(pool.tables.planned.levels[row, 0])
            pause = float(pool.tables.planned.pause[row, 0])
            if smallest <= idle and pause == 0.0:
                raise InvariantViolation(
                    f"I7: {idle} GPUs idle while job {world.workload.job_id[row]} waits for {smallest}"
                )


def sits_well(held: IntArray, width: int) -> bool:
    """Return whether ascending addresses on servers of ``width`` GPUs are an aligned part of one block, or
    whole blocks (`placement/buddy_blocks.py`)."""
    one = blocks_of((ServerSnapshot("any", width),))
    base, size = one.base, one.size
    cut = np.searchsorted(base, held % width, side="right") - 1
    block, counts = np.unique(held // width * base.size + cut, return_counts=True)
    if block.size > 1:
        return bool((counts == size[block % base.size]).all())
    return bool((held[0] % width - base[cut[0]]) % held.size == 0 and held[-1] - held[0] + 1 == held.size)


def _held(plans, row: int, at: float) -> int:  # type: ignore[no-untyped-def]
    inside = np.flatnonzero(plans.time[row, : plans.length[row]] <= at + TIME_TOLERANCE)
    return int(plans.gpus[row, inside[-1]]) if inside.size else 0
