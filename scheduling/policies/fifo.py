"""First come, first served: the baseline of Lyra's evaluation (section 3.7.1; spec 2.12)."""

from __future__ import annotations

from scheduling.core.lyra.base_demands import BaseOrder
from scheduling.core.lyra.flexible_demands import Growth
from scheduling.core.lyra.tick import TwoPhase
from scheduling.policies.shares_workers import SharesWorkers


class Fifo(SharesWorkers):
    """Strictly in the order of submission: whoever does not fit holds up everybody behind."""

    name = "fifo"
    rules = TwoPhase(order=BaseOrder.FIRST_COME, growth=Growth.NONE)


class FifoBackfill(SharesWorkers):
    """In the order of submission, but whoever fits may go ahead of those who do not."""

    name = "fifo_backfill"
    rules = TwoPhase(order=BaseOrder.BACKFILLING, growth=Growth.NONE)
