"""Which pool a newcomer is asked for on, where there are several: one kind of GPU after the other, by the
live rule."""

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
    """The newcomers of one instant: on which pool each is asked for, and which kinds have refused it
    (`scheduling.core.question.kinds`).

    ``waiting``: rows of the workload that are asked for on each pool and not decided there yet.
    """

    pools: Sequence[PoolState]
    jobs: JobStates
    waiting: dict[int, list[int]] = field(default_factory=dict)
    refused: dict[int, set[str]] = field(default_factory=dict)

    def submit(self, newcomers: IntArray) -> None:
        """Ask for each on its first kind, in the order of submission."""
        for row in newcomers.tolist():
            self._ask(row)

    def asked_on(self, pool: PoolState) -> IntArray:
        """The rows to decide on this pool now. They wait no longer."""
        rows = self.waiting.pop(pool.number, None)
        return np.array(rows, dtype=np.int64) if rows else NO_ROWS

    def refuse(self, row: int, pool: PoolState) -> bool:
        """A pool refuses a row. Returns whether it is asked for on another; otherwise the refusal is
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
        # Where every server is lost somebody has to refuse.
        kinds = there if any(kind.gpus for kind in there) else [
            self._kind(pool, pool.size.gpus) for pool in self.pools
        ]  # fmt: skip
        return asking_order(kinds, deadline=deadline)

    def _kind(self, pool: PoolState, gpus: int) -> KindOfGpu:
        unfinished = int((self.jobs.phase[pool.own_rows(self.jobs)] == ACTIVE).sum())
        return KindOfGpu(pool.size.kind, gpus, unfinished + len(self.waiting.get(pool.number, ())))
