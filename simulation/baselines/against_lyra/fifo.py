"""First come, first served: the baseline of Lyra's evaluation (section 3.7.1)."""

from __future__ import annotations

from scheduling.core.lyra.base_demands import BaseOrder
from scheduling.core.lyra.flexible_demands import Growth
from scheduling.core.lyra.tick import TwoPhase
from scheduling.policies.shares_workers import SharesWorkers


class Fifo(SharesWorkers):
    """Strictly in submission order: a job that does not fit blocks all jobs behind it."""

    name = "fifo"
    rules = TwoPhase(order=BaseOrder.FIRST_COME, growth=Growth.NONE)


class FifoBackfill(SharesWorkers):
    """In submission order, but a job that fits may start ahead of earlier ones that do not."""

    name = "fifo_backfill"
    rules = TwoPhase(order=BaseOrder.BACKFILLING, growth=Growth.NONE)
