"""Which pool decides on a newcomer if there are several: one kind of GPU after another, by the live rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduling.core.question.columns import BEST_EFFORT
from scheduling.core.question.kinds import KindOfGpu, asking_order, next_kind
from scheduling.core.question.snapshot import IntArray
from simulation.engine.world.jobs import JobStates
from simulation.engine.world.pool import NO_ROWS, PoolState
from simulation.engine.world.running import ACTIVE


@dataclass
class KindsInTurn:
    """Newcomers of one instant: the pool that decides on each, and the kinds that have refused it
    (`scheduling.core.question.kinds`).

    ``waiting``: by pool, the workload rows that it has not decided on yet.
    """

    pools: Sequence[PoolState]
    jobs: JobStates
    waiting: dict[int, list[int]] = field(default_factory=dict)
    refused: dict[int, set[str]] = field(default_factory=dict)

    def submit(self, newcomers: IntArray) -> None:
        """Offer each newcomer to its first kind, in the order of submission."""
        for row in newcomers.tolist():
            self._ask(row)

    def asked_on(self, pool: PoolState) -> IntArray:
        """Remove and return the rows that this pool decides on now."""
        rows = self.waiting.pop(pool.number, None)
        return np.array(rows, dtype=np.int64) if rows else NO_ROWS

    def refuse(self, row: int, pool: PoolState) -> bool:
        """Record a pool's refusal. Return whether another kind decides next; otherwise the refusal is
        final."""
        self.refused.setdefault(row, set()).add(pool.size.kind)
        return self._ask(row)

    def _ask(self, row: int) -> bool:
        order = self._order(deadline=int(self.jobs.service_class[row]) != BEST_EFFORT)
        kind = next_kind(order, self.refused.get(row, ()))
        if kind is None:
            return False
        number = next(pool.number for pool in self.pools if pool.size.kind == kind)
        self.waiting.setdefault(number, []).append(row)
        return True

    def _order(self, *, deadline: bool) -> tuple[str, ...]:
        if len(self.pools) == 1:
            return (self.pools[0].size.kind,)
        there = [self._kind(pool, pool.capacity.gpus) for pool in self.pools]
        # With every server lost, some pool must still refuse.
        kinds = there if any(kind.gpus for kind in there) else [
            self._kind(pool, pool.size.gpus) for pool in self.pools
        ]  # fmt: skip
        return asking_order(kinds, deadline=deadline)

    def _kind(self, pool: PoolState, gpus: int) -> KindOfGpu:
        unfinished = int((self.jobs.phase[pool.own_rows(self.jobs)] == ACTIVE).sum())
        return KindOfGpu(pool.size.kind, gpus, unfinished + len(self.waiting.get(pool.number, ())))
