"""One Redis subscription per process, distributed to every open stream.

A note only announces a change; the fact itself is in PostgreSQL. A lost, doubled or late note costs at most a
refresh: after every gap (Redis unavailable, a slow reader), a subscriber gets `RESYNC` and reads again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

PATTERN = "punctual:*"
#: Channel name for the notes of every cluster.
ALL_CLUSTERS = "punctual:cluster:*"
_SESSIONS = "punctual:session:"
_QUEUE_LENGTH = 256
_SILENCE_SECONDS = 5.0
_LONGEST_BACKOFF_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class HubMessage:
    """One message of a channel. ``resync``: messages may have been missed. ``recheck``: the reader may have
    lost the right to read."""

    payload: dict[str, Any]
    resync: bool = False
    recheck: bool = False


RESYNC = HubMessage({}, resync=True)


class Subscription:
    """The notes of some channels for one stream. A slow reader gets one RESYNC for all notes that it
    missed."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[HubMessage] = asyncio.Queue(_QUEUE_LENGTH)

    def put(self, note: HubMessage) -> None:
        if self._queue.full():
            while not self._queue.empty():
                self._queue.get_nowait()
            note = RESYNC
        self._queue.put_nowait(note)

    async def next(self, timeout_seconds: float) -> HubMessage | None:
        """Return the next note, or None on timeout."""
        try:
            return await asyncio.wait_for(self._queue.get(), timeout_seconds)
        except TimeoutError:
            return None


class Hub:
    """Listens to Redis while its event loop runs, and reconnects after restarts of Redis."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._subscriptions: dict[str, set[Subscription]] = defaultdict(set)
        self._listener: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def subscribe(self, *channels: str) -> AsyncIterator[Subscription]:
        """Yield the notes of these channels from now on. Subscribe before reading the database, so that no
        change is missed."""
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen(), name="redis-listener")
        subscription = Subscription()
        for channel in channels:
            self._subscriptions[channel].add(subscription)
        try:
            yield subscription
        finally:
            for channel in channels:
                self._subscriptions[channel].discard(subscription)
                if not self._subscriptions[channel]:
                    del self._subscriptions[channel]

    async def _listen(self) -> None:
        backoff = 0.1
        while True:
            client = Redis.from_url(self._url, socket_connect_timeout=5)
            pubsub = client.pubsub()
            try:
                await pubsub.psubscribe(PATTERN)
                backoff = 0.1
                await self._receive(pubsub)
            except (RedisError, OSError, TimeoutError) as error:
                log.warning("lost the message broker, streams go on without wake-ups: %s", error)
            finally:
                await _close(client, pubsub)
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, _LONGEST_BACKOFF_SECONDS)

    async def _receive(self, pubsub: PubSub) -> None:
        silent_rounds = 0
        while True:
            message = await pubsub.get_message(timeout=_SILENCE_SECONDS)
            if message is None:
                # A dead connection would otherwise stay silent for ever.
                silent_rounds += 1
                if silent_rounds > 2:
                    raise TimeoutError("the broker does not answer")
                await pubsub.ping()
                continue
            silent_rounds = 0
            if message["type"] == "psubscribe":
                # Notes published before the subscription were missed.
                self._to_all(RESYNC)
            elif message["type"] == "pmessage":
                self._deliver(message["channel"].decode(), message["data"])

    def _deliver(self, channel: str, data: bytes) -> None:
        try:
            payload = json.loads(data)
        except ValueError:
            log.warning("a note on %s is no JSON and was left out", channel)
            return
        if not isinstance(payload, dict):
            return
        note = HubMessage(payload, recheck=channel.startswith(_SESSIONS))
        names = [channel] + ([ALL_CLUSTERS] if channel.startswith("punctual:cluster:") else [])
        for name in names:
            for subscription in self._subscriptions.get(name, ()):
                subscription.put(note)

    def _to_all(self, note: HubMessage) -> None:
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                subscription.put(note)


async def _close(client: Redis, pubsub: PubSub) -> None:
    try:
        await pubsub.aclose()
        await client.aclose()
    except (RedisError, OSError) as error:
        log.debug("closing a lost broker connection: %s", error)


_hubs: dict[asyncio.AbstractEventLoop, Hub] = {}


def hub(url: str) -> Hub:
    """Return the hub of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        _hubs[loop] = Hub(url)
    return _hubs[loop]
