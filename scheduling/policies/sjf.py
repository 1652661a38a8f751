"""Shortest job first and nothing else: what of Lyra's gain comes from the order alone (spec 2.12)."""

from __future__ import annotations

from scheduling.core.lyra.flexible_demands import Growth
from scheduling.core.lyra.tick import TwoPhase
from scheduling.policies.shares_workers import SharesWorkers


class Sjf(SharesWorkers):
    """Phase 1 of Lyra: base demands, the shortest first, and nobody grows."""

    name = "sjf"
    rules = TwoPhase(growth=Growth.NONE)
