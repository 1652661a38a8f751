"""Server-sent events: live updates if the platform has a stream server, resumed after interruptions."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

#: The server sends a comment every 15 s; after this silence the connection is dead.
SILENCE_SECONDS = 40.0
#: Interval of polls without a stream; five times this while a stream is live.
POLL_SECONDS = 1.0


@dataclass(frozen=True)
class ServerSentEvent:
    """One event. `id`: a later connection resumes after it."""

    #: Name of the event.
    event: str
    #: The decoded JSON.
    data: Any
    id: str


def read_events(response: httpx.Response) -> Iterator[ServerSentEvent]:
    """Parse a `text/event-stream` body; data that is not JSON is returned as text."""
    data: list[str] = []
    event, identity = "message", ""
    for line in response.iter_lines():
        if not line:
            if data:
                yield ServerSentEvent(event, _parse("\n".join(data)), identity)
            event, data = "message", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            event = value
        elif name == "id":
            identity = value


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


class WakeUps:
    """Listens to a stream in the background and wakes the caller when something happens.

    The caller then fetches the facts over REST, so a lost wake-up, a broken stream or a platform without a
    stream server costs a poll interval but no data.
    """

    def __init__(self, http: httpx.Client, address: str | None) -> None:
        self._http = http
        self._address = address
        self._happened = threading.Event()
        self._closed = threading.Event()
        self._live = False
        if address is not None:
            threading.Thread(target=self._listen, name="punctual-wake-ups", daemon=True).start()

    def wait(self) -> None:
        """Wait until something happens, or for the poll interval."""
        self._happened.wait(POLL_SECONDS * (5 if self._live else 1))
        self._happened.clear()

    def close(self) -> None:
        self._closed.set()

    def _listen(self) -> None:
        backoff_seconds = 0.5
        while not self._closed.is_set():
            try:
                with self._http.stream("GET", self._address or "", timeout=_stream_timeout()) as response:
                    if not response.is_success:
                        # A refusal is permanent, so only polling remains.
                        return
                    self._live, backoff_seconds = True, 0.5
                    for _ in read_events(response):
                        self._happened.set()
                        if self._closed.is_set():
                            return
            except (httpx.HTTPError, httpx.StreamError, RuntimeError):
                # The stream is only an accelerator. RuntimeError: the client was closed meanwhile.
                pass
            self._live = False
            self._happened.set()
            self._closed.wait(backoff_seconds)
            backoff_seconds = min(backoff_seconds * 2, 10.0)


def _stream_timeout() -> httpx.Timeout:
    return httpx.Timeout(10.0, read=SILENCE_SECONDS)
