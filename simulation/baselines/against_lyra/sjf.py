"""Shortest job first without growth: shows how much of Lyra's gain comes from the order alone."""

from __future__ import annotations

from scheduling.core.lyra.flexible_demands import Growth
from scheduling.core.lyra.tick import TwoPhase
from scheduling.policies.shares_workers import SharesWorkers


class Sjf(SharesWorkers):
    """Lyra's phase 1 only: base demands, shortest first; no job grows."""

    name = "sjf"
    rules = TwoPhase(growth=Growth.NONE)
