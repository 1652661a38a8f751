"""Follower of the control plane's wake-up stream. A lost wake-up costs a report interval, but no data."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator

import httpx

from workers.agent.talking.control_plane import PREFIX

logger = logging.getLogger(__name__)

# The stream sends something at least every 15 s; after this silence it is dead.
SILENCE_SECONDS = 40.0
FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 15.0


def desired_versions(lines: Iterator[str]) -> Iterator[int | None]:
    """Yield the versions announced by a stream of server-sent events; None for an unreadable one."""
    event, data = "message", ""
    for line in lines:
        if line == "":
            if event == "desired":
                yield int(data) if data.isdecimal() else None
            event, data = "message", ""
        elif line.startswith("event:"):
            event = line.removeprefix("event:").strip()
        elif line.startswith("data:"):
            data = line.removeprefix("data:").strip()


class WakeupFollower(threading.Thread):
    """Calls `announce` with each version, and with None after a reconnection, when one may have been
    missed."""

    def __init__(self, stream_url: str, credential: str, announce: Callable[[int | None], None]) -> None:
        super().__init__(name="wake-ups", daemon=True)
        self._url = f"{stream_url}{PREFIX}wakeups"
        self._headers = {"Authorization": f"Agent {credential}", "Accept": "text/event-stream"}
        self._announce = announce
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stop following."""
        self._stopped.set()

    def run(self) -> None:
        """Follow the stream for ever, reconnecting with growing, random pauses."""
        wait_seconds, failing = FIRST_WAIT_SECONDS, False
        timeout = httpx.Timeout(10.0, read=SILENCE_SECONDS)
        while not self._stopped.is_set():
            try:
                with httpx.stream("GET", self._url, headers=self._headers, timeout=timeout) as response:
                    if not response.is_success:
                        raise httpx.RequestError(f"the stream server answers {response.status_code}")
                    failing = False
                    self._announce(None)
                    for version in desired_versions(response.iter_lines()):
                        wait_seconds = FIRST_WAIT_SECONDS
                        if self._stopped.is_set():
                            return
                        self._announce(version)
            except httpx.HTTPError as error:
                if not failing:  # once, not at every attempt; reports continue without it
                    logger.warning("no wake-ups: %s", error or type(error).__name__)
                failing = True
            # Random, so that a cluster's agents do not all reconnect at once.
            self._stopped.wait(wait_seconds * random.uniform(0.5, 1.0))
            wait_seconds = min(LONGEST_WAIT_SECONDS, wait_seconds * 2)
