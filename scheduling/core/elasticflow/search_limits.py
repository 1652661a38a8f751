"""How far admission looks for plans beyond progressive filling in deadline order (decision 0010)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """How far admission looks for plans beyond progressive filling in deadline order.

    ``everybody``: for newcomers too that do not pay the bid price. Two counts of work bound the search, so
    that answers do not depend on speed: ``most_fillings`` sets of plans are tried for one newcomer under one
    variant of filling, and no more than in which ``most_jobs_filled`` jobs are planned in all, or that take
    more than ``most_work`` (`Work`), which keeps the verdict quick where thousands are active.
    """

    everybody: bool = False
    most_fillings: int = 2
    most_jobs_filled: int = 4000
    most_work: int = 200_000

    def fillings(self, jobs: int) -> int:
        """Sets of plans to try where each is of so many jobs."""
        return max(1, min(self.most_fillings, self.most_jobs_filled // max(1, jobs)))
