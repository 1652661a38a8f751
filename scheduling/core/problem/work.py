"""The work of a decision, counted so that it can be bounded and the same question has the same answer on any
machine."""

from __future__ import annotations

from math import inf

NEWCOMER = 2_000
"""What looking at a newcomer costs whatever comes of it."""
PLANNED_CHANGE = 60
"""Placing one job once in the forecast of forced moves."""
KEPT_CHANGE = 4
"""Finding that it comes out as in the forecast before."""

MENDED_PIECE = 1
"""Looking at one piece of somebody's plan again, so that one promise can be mended."""


class Work:
    """A tally in pieces of the capacity timeline that a plan was tried on; other steps count as what takes as
    long.

    ``limit``: work after which no further newcomer is decided; none without. ``done``: the tally as though
    nothing were kept from one newcomer to the next: what is kept depends on who was decided together, and by
    this count searches are ended, which must not.
    """

    def __init__(self, limit: float | None = None) -> None:
        self.done = 0
        self._spared = 0
        self._beside = 0
        self._limit = inf if limit is None else limit

    def add(self, amount: int) -> None:
        """Count so much more."""
        self.done += int(amount)

    def spare(self, amount: int) -> None:
        """Note that so much of what was counted did not have to be done."""
        self._spared += int(amount)

    def add_beside(self, amount: int) -> None:
        """Count so much towards the limit alone: searches end where they would end without it."""
        self._beside += int(amount)

    def is_spent(self) -> bool:
        """Whether the rest has to wait for another decision."""
        return self.done - self._spared + self._beside >= self._limit
