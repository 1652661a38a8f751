"""Counts the work of a decision, so that a limit ends searches at the same point on any machine."""

from __future__ import annotations

from math import inf

NEWCOMER = 2_000
"""Work of deciding one newcomer, whatever the verdict."""
PLANNED_CHANGE = 60
"""Work of placing one job once in the forecast of forced moves."""
KEPT_CHANGE = 4
"""Work of finding that a placement is the same as in the last forecast."""

PASSED_PIECES = 4
"""Pieces of the timeline that uniform filling passes over in the time of one unit of work: it skips most."""
MENDED_PIECE = 1
"""Work of examining one piece of another job's plan in order to mend one promise."""


class Work:
    """A count of work in pieces of the capacity timeline; other steps count by how long they take.

    ``limit``: work after which no further newcomer is decided; None for no limit. ``done`` counts as if no
    result were reused from one newcomer to the next. What can be reused depends on which newcomers are
    decided together, and the end of a search, which ``done`` determines, must not.
    """

    def __init__(self, limit: float | None = None) -> None:
        self.done = 0
        self._spared = 0
        self._beside = 0
        self._limit = inf if limit is None else limit

    def add(self, amount: int) -> None:
        """Add ``amount`` to the count."""
        self.done += int(amount)

    def add_passed(self, pieces: int) -> None:
        """Add ``pieces`` of the timeline that uniform filling passed over.

        Towards the limit they count by the time that they take; a search ends as if they took all of it.
        """
        self.add(pieces)
        self.spare(pieces - pieces // PASSED_PIECES)

    def spare(self, amount: int) -> None:
        """Record that ``amount`` of the counted work was saved; it does not count towards the limit."""
        self._spared += int(amount)

    def add_beside(self, amount: int) -> None:
        """Add ``amount`` towards the limit only, so that searches end at the same point with or without
        it."""
        self._beside += int(amount)

    def is_spent(self) -> bool:
        """Whether the limit is reached, so that further newcomers wait for another decision."""
        return self.done - self._spared + self._beside >= self._limit
