"""Following a job's log: first the stored pieces, then each new piece."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from scheduling.choices import TERMINAL_STATES
from scheduling.models import LogChunk
from scheduling.selectors.scope.streams import job_state, log_chunks_after
from streams.database import in_database

#: Pieces of two agents may become visible in another order than their ids, so recent ids are read again.
_SETTLING_SECONDS = 10.0
_AT_ONCE = 200


class LogReader:
    """Reads a job's log piece by piece, each piece once, starting after a known piece."""

    def __init__(self, job_id: str, after: int, rank: int | None) -> None:
        self.job_id = job_id
        self._rank = rank
        #: No new piece can appear at or below this id.
        self._settled = after
        #: Ids above `_settled` that were already sent.
        self._sent: set[int] = set()
        self._newest = after

    async def next_pieces(self) -> list[LogChunk]:
        """Return pieces that were not returned before; empty if there are none now."""
        recent = await in_database(
            log_chunks_after, self.job_id, self._settled, _AT_ONCE + len(self._sent), self._rank
        )
        fresh = [chunk for chunk in recent if chunk.id not in self._sent]
        self._sent.update(chunk.id for chunk in fresh)
        self._newest = max([self._newest, *(chunk.id for chunk in fresh)])
        self._settle(recent)
        return fresh

    def _settle(self, recent: list[LogChunk]) -> None:
        limit = timezone.now() - timedelta(seconds=_SETTLING_SECONDS)
        for chunk in recent:
            if chunk.received_at > limit:
                break
            self._settled = chunk.id
        self._sent = {chunk_id for chunk_id in self._sent if chunk_id > self._settled}

    async def finished_state(self) -> str | None:
        """Return the job's state if it is terminal (or `deleted`), else None."""
        state = await in_database(job_state, self.job_id)
        if state is None:
            return "deleted"
        return state if state in TERMINAL_STATES else None


def as_json(chunk: LogChunk) -> dict[str, Any]:
    """Return a piece as clients receive it."""
    return {
        "id": chunk.id,
        "generation": chunk.generation,
        "rank": chunk.rank,
        "offset": chunk.offset,
        "text": chunk.text,
        "received_at": chunk.received_at.isoformat(),
    }
