"""When a durable state is stored: at the job's own period, and whenever no safe state is young enough.

A state is safe if it survives the loss of any one server: a durable one, or one in memory of which every
rank's shard has all its copies on other servers. A promise requires a safe state no older than its bound
(decision 0028), so if copies in memory are missing, durable states are stored that often.
"""

from __future__ import annotations

from math import inf

from workers.runtime.state.memory_points import Votes


class DurableSchedule:
    """Rank 0's record of the existing states. Times are seconds on one clock."""

    def __init__(
        self, durable_seconds: float, safe_seconds: float | None, now: float, *, from_memory: bool
    ) -> None:
        """Begin with a state that is durable, or is being stored by the earlier generation.

        Args:
            durable_seconds: maximum time between durable states.
            safe_seconds: maximum age of the newest safe state; None: no maximum.
            from_memory: the initial state was loaded from memory and is not durable; with `safe_seconds`, it
                is stored at once.
        """
        self._durable_seconds = durable_seconds
        self._safe_seconds = inf if safe_seconds is None else safe_seconds
        #: Times of the newest durable state, and of the newest safe state in memory.
        self._durable_at = -inf if from_memory and safe_seconds is not None else now
        self._memory_at = -inf
        self._busy = False

    def heard(self, votes: Votes, started_at: float | None) -> None:
        """Take the votes of an iteration.

        If a version lacks copies, a store is lost that may also have held older versions: then no state in
        memory counts as safe.

        Args:
            started_at: time of the version in memory on which the ranks voted.
        """
        self._busy = votes.any_busy
        if votes.any_lacking:
            self._memory_at = -inf
        elif votes.all_safe and started_at is not None:
            self._memory_at = started_at

    def due(self, now: float) -> bool:
        """Return whether a durable state is due after the coming iteration; never while the last one is still
        being stored."""
        if self._busy:
            return False
        safe_at = max(self._durable_at, self._memory_at)
        return now - self._durable_at >= self._durable_seconds or now - safe_at >= self._safe_seconds

    def captured(self, now: float) -> None:
        """Note that a durable state of time `now` is being stored."""
        self._durable_at = now
        self._busy = True
