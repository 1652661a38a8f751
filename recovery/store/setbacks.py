"""When to retry a peer that did not take a copy. Pure: the caller passes the time."""

from __future__ import annotations

from recovery.store.peer_wire import Peer

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 60.0


class Setbacks:
    """Pauses after failures, each twice as long as the previous one."""

    def __init__(self) -> None:
        self._pauses: dict[Peer, tuple[float, float]] = {}

    def may_try(self, peer: Peer, now: float) -> bool:
        """Whether its pause is over."""
        return now >= self._pauses.get(peer, (0.0, 0.0))[0]

    def went_well(self, peer: Peer) -> None:
        """Record that the peer took a copy."""
        self._pauses.pop(peer, None)

    def went_wrong(self, peer: Peer, now: float) -> None:
        """Record that the peer did not take a copy."""
        until, before = self._pauses.get(peer, (0.0, 0.0))
        if now < until:
            return  # another copy that was in progress at the same time
        pause = min(LONGEST_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, 2 * before))
        self._pauses[peer] = (now + pause, pause)
