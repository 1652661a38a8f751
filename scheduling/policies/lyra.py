"""Lyra: shortest base demands first, a knapsack for the rest, on owned and borrowed servers (Lyra section 3.5; spec 2.5)."""

from __future__ import annotations

from scheduling.core.two_phase import TwoPhase
from scheduling.policies.shares_workers import SharesWorkers


class Lyra(SharesWorkers):
    """Both phases as published."""

    name = "lyra"
    rules = TwoPhase()
