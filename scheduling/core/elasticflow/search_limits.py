"""Limits of the wider search, which runs when progressive filling finds no plans (decision 0011)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Limits of the wider search for one newcomer under one variant of filling.

    The limits count work, not seconds, so the verdict does not depend on the speed of the machine.
    """

    #: True to make room for newcomers at any cost in GPU time.
    everybody: bool = False
    #: Sets of plans that are tried.
    most_fillings: int = 2
    #: Jobs that are filled in all sets together; at least one set is tried.
    most_jobs_filled: int = 4000
    #: Units of `Work` after which no further set is tried; keeps verdicts quick with thousands of jobs.
    most_work: int = 200_000
    #: The same where forced moves break the present promises, which are planned anew once in a decision.
    most_work_for_promises: int = 10_000_000

    def fillings(self, jobs: int) -> int:
        """The number of sets of plans to try, with ``jobs`` jobs in each."""
        return max(1, min(self.most_fillings, self.most_jobs_filled // max(1, jobs)))
