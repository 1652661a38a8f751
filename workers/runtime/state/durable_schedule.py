"""When a durable state is stored: at the job's own period, and whenever no state is both young and safe.

Safe is a state that the loss of any one server leaves: a durable one, or one in memory of which every rank's
shard has all its copies on other servers. A promise counts on one that is no older than its bound (decision
0028), so where copies in memory are missing, durable states come as often as that.
"""

from __future__ import annotations

from math import inf

from workers.runtime.state.memory_points import Votes


class DurableSchedule:
    """Rank 0's knowledge of the states that there are. Times are seconds on any one clock."""

    def __init__(
        self, durable_seconds: float, safe_seconds: float | None, now: float, *, from_memory: bool
    ) -> None:
        """Begin with a state that is durable, or is being stored by who trained before.

        Args:
            durable_seconds: durable states are no farther apart. safe_seconds: the newest safe state is
                never older; None where nobody counts on it. from_memory: the state has come from memory, so
                that nobody has stored it; where somebody counts on it, it is stored at once.
        """
        self._durable_seconds = durable_seconds
        self._safe_seconds = inf if safe_seconds is None else safe_seconds
        #: When the newest durable state was as it is stored, and the newest in memory that is safe.
        self._durable_at = -inf if from_memory and safe_seconds is not None else now
        self._memory_at = -inf
        self._busy = False

    def heard(self, votes: Votes, started_at: float | None) -> None:
        """After an iteration. `started_at`: when the version in memory on which the ranks have voted was
        begun.

        What lacks copies has lost a store that older versions may have been on as well: then nothing in
        memory counts.
        """
        self._busy = votes.any_busy
        if votes.any_lacking:
            self._memory_at = -inf
        elif votes.all_safe and started_at is not None:
            self._memory_at = started_at

    def due(self, now: float) -> bool:
        """Whether a durable state is to be stored after the coming iteration: never while parts of the last
        one are."""
        if self._busy:
            return False
        safe_at = max(self._durable_at, self._memory_at)
        return now - self._durable_at >= self._durable_seconds or now - safe_at >= self._safe_seconds

    def captured(self, now: float) -> None:
        """A durable state is as the training state was then."""
        self._durable_at = now
        self._busy = True
