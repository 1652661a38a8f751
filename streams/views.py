"""The streams: changes of the cluster, changes of a job, a job's log, and agents' wake-ups."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from django.conf import settings
from django.db import Error as DatabaseError
from django.http import HttpRequest, HttpResponseBase

from cluster.models import Agent
from scheduling.selectors.scope.streams import desired_version, job_is_visible
from streams.database import in_database
from streams.events import KEEP_ALIVE, KEEP_ALIVE_SECONDS, Events, event, problem, stream_response
from streams.hub import ALL_CLUSTERS, HubMessage, Subscription, hub
from streams.identity import Caller, caller_of, calling_agent, still_there
from streams.logs import LogReader, as_json

log = logging.getLogger(__name__)

#: Interval for rechecking whether the caller may still read the stream; if not, the stream ends.
RECHECK_SECONDS = 60.0
#: After a job's end, its last lines may arrive for this long.
LOG_QUIET_SECONDS = 2.0

StillAllowed = Callable[[], Awaitable[bool]]
View = Callable[..., Coroutine[Any, Any, HttpResponseBase]]


def _get_only(view: View) -> View:
    async def wrapped(request: HttpRequest, **kwargs: str) -> HttpResponseBase:
        if request.method != "GET":
            return problem(405, "method_not_allowed", "A stream is read with GET.")
        try:
            return await view(request, **kwargs)
        except DatabaseError as error:
            log.warning("a stream was refused because the database is away: %s", error)
            return problem(503, "database_away", "The database cannot be reached. Try again soon.")

    return wrapped


@_get_only
async def cluster_stream(request: HttpRequest) -> HttpResponseBase:
    """Stream the kinds of change in the cluster (`planned`, `servers`, `jobs`, `usage`, `orders`). Names no
    job."""
    caller = await caller_of(request)
    if caller is None:
        return _not_authenticated()

    async def allowed() -> bool:
        return await still_there(caller) is not None

    return _respond(request, caller, _changes(_channels(ALL_CLUSTERS, caller), allowed))


@_get_only
async def job_events(request: HttpRequest, job_id: str) -> HttpResponseBase:
    """Stream the kinds of change of one job: `changed`, `metrics`, `logs`."""
    caller = await caller_of(request)
    if caller is None:
        return _not_authenticated()
    if not await in_database(job_is_visible, caller.user, job_id):
        return _no_such_job()
    channels = _channels(f"punctual:job:{job_id}", caller)
    return _respond(request, caller, _changes(channels, _sees_job(caller, job_id)))


@_get_only
async def job_logs(request: HttpRequest, job_id: str) -> HttpResponseBase:
    """Stream a job's log after `?after=` (or `Last-Event-ID`), then new pieces; `event: end` when the job is
    over."""
    caller = await caller_of(request)
    if caller is None:
        return _not_authenticated()
    if not await in_database(job_is_visible, caller.user, job_id):
        return _no_such_job()
    resumed = _number(request.headers.get("Last-Event-ID"))
    after = resumed if resumed is not None else _number(request.GET.get("after")) or 0
    reader = LogReader(job_id, after, _number(request.GET.get("rank")))
    channels = _channels(f"punctual:job:{job_id}", caller)
    return _respond(request, caller, _log(reader, channels, _sees_job(caller, job_id)))


@_get_only
async def agent_wakeups(request: HttpRequest) -> HttpResponseBase:
    """Stream the versions of the desired state of the calling agent's server, the current one first."""
    agent = await calling_agent(request)
    if agent is None:
        return _not_authenticated()

    async def allowed() -> bool:
        return await calling_agent(request) is not None

    return stream_response(request, f"agent:{agent.pk}", _wakeups(agent, allowed))


def _not_authenticated() -> HttpResponseBase:
    return problem(401, "not_authenticated", "Log in, or send a valid token.")


def _no_such_job() -> HttpResponseBase:
    return problem(404, "not_found", "There is no such job among your projects' jobs.")


def _respond(request: HttpRequest, caller: Caller, events: Events) -> HttpResponseBase:
    origin = None if caller.ticket is None else caller.ticket.origin
    return stream_response(request, f"user:{caller.user.pk}", events, origin)


def _channels(channel: str, caller: Caller) -> tuple[str, ...]:
    """Return the stream's own channel and those that announce that the caller may lose access."""
    return (channel, *caller.door_channels)


def _sees_job(caller: Caller, job_id: str) -> StillAllowed:
    async def allowed() -> bool:
        user = await still_there(caller)
        return user is not None and await in_database(job_is_visible, user, job_id)

    return allowed


def _number(text: str | None) -> int | None:
    """Return a non-negative number that fits a row id, or None."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else None


async def _notes(subscription: Subscription, allowed: StillAllowed) -> AsyncIterator[HubMessage | None]:
    """Yield notes as they come, None whenever a keep-alive is due. Ends when the caller is no longer
    allowed."""
    checked = time.monotonic()
    while True:
        note = await subscription.next(KEEP_ALIVE_SECONDS)
        recheck = note is not None and note.recheck
        if recheck or time.monotonic() - checked > RECHECK_SECONDS:
            if not await allowed():
                return
            checked = time.monotonic()
        if not recheck:
            yield note


async def _changes(channels: tuple[str, ...], allowed: StillAllowed) -> Events:
    async with hub(settings.REDIS_URL).subscribe(*channels) as subscription:
        async for note in _notes(subscription, allowed):
            if note is None:
                yield KEEP_ALIVE
            elif note.resync:
                yield event({"kind": "resync"}, name="resync")
            else:
                # Only the kind is sent: other contents of a note are not for everyone.
                yield event({"kind": str(note.payload.get("kind", "changed"))})


async def _log(reader: LogReader, channels: tuple[str, ...], allowed: StillAllowed) -> Events:
    checked = time.monotonic()
    async with hub(settings.REDIS_URL).subscribe(*channels) as subscription:
        while True:
            state = await reader.finished_state()
            while pieces := await reader.next_pieces():
                for chunk in pieces:
                    yield event(as_json(chunk), event_id=chunk.id)
            note = await subscription.next(LOG_QUIET_SECONDS if state else KEEP_ALIVE_SECONDS)
            if note is None and state:
                for chunk in await reader.next_pieces():
                    yield event(as_json(chunk), event_id=chunk.id)
                yield event({"state": state}, name="end")
                return
            if note is None:
                yield KEEP_ALIVE
            if (note is not None and note.recheck) or time.monotonic() - checked > RECHECK_SECONDS:
                if not await allowed():
                    return
                checked = time.monotonic()


async def _wakeups(agent: Agent, allowed: StillAllowed) -> Events:
    async with hub(settings.REDIS_URL).subscribe(f"punctual:agent:{agent.server_id}") as subscription:
        yield event(await in_database(desired_version, agent.server_id), name="desired")
        async for note in _notes(subscription, allowed):
            if note is None:
                yield KEEP_ALIVE
                continue
            version = note.payload.get("desired_version")
            if note.resync or not isinstance(version, int):
                version = await in_database(desired_version, agent.server_id)
            yield event(version, name="desired")
