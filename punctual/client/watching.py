"""Watching one job: repeated updates with news until the job is finished.

Data comes over REST, requested after the last known item, so nothing is lost or duplicated when the
connection breaks. The event stream only triggers requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from punctual.client.connection import Connection
from punctual.client.models import TERMINAL_STATES, JobEvent, LogChunk, Metric
from punctual.client.reading import read, unreadable
from punctual.client.streams import WakeUps
from punctual.errors import ConnectionFailedError, LimitReachedError, ServerError

_RECENT_ITERATIONS = 100


@dataclass(frozen=True)
class Update:
    """News of a job. `job`: its document; `outage`: why a request failed, else empty."""

    job: dict[str, Any]
    events: tuple[JobEvent, ...] = ()
    log_chunks: tuple[LogChunk, ...] = ()
    metric: Metric | None = None
    outage: str = ""


class Watcher:
    """Remembers what was seen of a job, and requests what came after."""

    def __init__(
        self,
        client: Connection,
        job_id: str,
        *,
        events: bool = True,
        logs: bool = False,
        metrics: bool = False,
        rank: int | None = None,
        tail: int | None = None,
    ) -> None:
        self._client = client
        self._job_id = job_id
        self._path = f"jobs/{quote(job_id, safe='')}/"
        self._events, self._logs, self._metrics = events, logs, metrics
        self._rank, self._tail = rank, tail
        self._last_event = 0
        self._last_chunk: int | None = None
        self._last_iteration: int | None = None
        # Received but not yet returned, because a later request of the same update failed.
        self._new_events: list[JobEvent] = []
        self._new_chunks: list[LogChunk] = []
        self._new_metric: Metric | None = None

    def look(self) -> Update:
        """Request an update. The job's state is requested first, so that all output before its end is
        seen."""
        job = self._client.transport.get(self._path)
        if not isinstance(job, dict) or "state" not in job:
            raise unreadable("a job")
        if self._events:
            self._ask_for_events()
        if self._logs:
            self._ask_for_chunks()
        if self._metrics:
            self._ask_for_metrics(job)
        update = Update(job, tuple(self._new_events), tuple(self._new_chunks), self._new_metric)
        self._new_events, self._new_chunks, self._new_metric = [], [], None
        return update

    def _ask_for_events(self) -> None:
        for event in self._client.events(self._job_id, after=self._last_event):
            self._last_event = max(self._last_event, event.id)
            self._new_events.append(event)

    def _ask_for_chunks(self) -> None:
        tail = self._tail if self._last_chunk is None else None
        for chunk in self._client.log_chunks(
            self._job_id, rank=self._rank, after=self._last_chunk, tail=tail
        ):
            self._last_chunk = max(self._last_chunk or 0, chunk.id)
            self._new_chunks.append(chunk)

    def _ask_for_metrics(self, job: dict[str, Any]) -> None:
        if self._last_iteration is None:
            # Only the newest values are shown, so old ones need not be fetched first.
            self._last_iteration = max(0, int(job.get("iterations_done") or 0) - _RECENT_ITERATIONS)
        for item in self._client.transport.pages(
            f"{self._path}metrics/", {"after_iteration": self._last_iteration}
        ):
            metric = read(Metric, item)
            self._last_iteration, self._new_metric = max(self._last_iteration, metric.iteration), metric


def watch(client: Connection, job_id: str, **selection: Any) -> Iterator[Update]:
    """Yield an update now and whenever something may have happened, until the job is finished.

    `selection`: what is requested (see `Watcher`): `events` (the default), `logs`, `metrics`, `rank`, `tail`.
    Retries during an outage for as long as the caller continues; each failed attempt yields an update with
    its `outage`.
    """
    watcher = Watcher(client, job_id, **selection)
    wake_ups = WakeUps(
        client.transport.http, client.stream_address(f"stream/jobs/{quote(job_id, safe='')}/events")
    )
    latest: dict[str, Any] | None = None
    try:
        while True:
            try:
                update = watcher.look()
            except (ConnectionFailedError, ServerError, LimitReachedError) as error:
                # Without a first answer there is nothing to follow, so raise at once.
                if latest is None:
                    raise
                update = Update(latest, outage=error.message)
            latest = update.job
            yield update
            if latest["state"] in TERMINAL_STATES and not update.outage:
                return
            wake_ups.wait()
    finally:
        wake_ups.close()
