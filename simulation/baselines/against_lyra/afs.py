"""AFS as in Lyra's evaluation: workers one by one to the job that gains most (Lyra section 3.7).

The published rule starts every job on one GPU and has no largest size. Here base demands are admitted as in
Lyra, and jobs grow within their ranges. A workload with open ranges (`ScenarioRules.unbounded`) gives the
published rule.
"""

from __future__ import annotations

from scheduling.core.lyra.flexible_demands import Growth
from scheduling.core.lyra.tick import TwoPhase
from scheduling.policies.shares_workers import SharesWorkers


class Afs(SharesWorkers):
    """Each further worker to the job whose rate grows most in proportion to its work, per GPU."""

    name = "afs"
    rules = TwoPhase(growth=Growth.GREATEST_GAIN)
