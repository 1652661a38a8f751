"""Server-sent events: encoding, responses and limits."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

from django.conf import settings
from django.db import Error as DatabaseError
from django.http import HttpRequest, HttpResponseBase, JsonResponse, StreamingHttpResponse

log = logging.getLogger(__name__)

#: A comment line this often keeps proxies from closing a quiet stream, and detects readers that are gone.
KEEP_ALIVE_SECONDS = 15.0
KEEP_ALIVE = b": keep-alive\n\n"
#: Reconnection delay for browsers, in milliseconds.
RETRY = b"retry: 2000\n\n"

Events = AsyncGenerator[bytes, None]


def event(data: Any, *, name: str | None = None, event_id: int | None = None) -> bytes:
    """Return one encoded event. Without a name it is a plain message. JSON has no line breaks, so one data
    line is enough."""
    lines = []
    if name is not None:
        lines.append(f"event: {name}")
    if event_id is not None:
        lines.append(f"id: {event_id}")
    lines.append(f"data: {json.dumps(data, separators=(',', ':'))}")
    return ("\n".join(lines) + "\n\n").encode()


class Connections:
    """Open streams of this process, in total and per caller."""

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()

    def full(self) -> bool:
        return self.open.total() >= settings.STREAM_CONNECTIONS

    def full_for(self, caller: str) -> bool:
        return self.open[caller] >= settings.STREAM_CONNECTIONS_PER_CALLER

    def leave(self, caller: str) -> None:
        self.open[caller] -= 1
        if self.open[caller] <= 0:
            del self.open[caller]


connections = Connections()


def stream_response(
    request: HttpRequest, caller: str, events: Events, origin: str | None = None
) -> HttpResponseBase:
    """Return a response with the events; 503 or 429 with Retry-After if too many streams are open."""
    if connections.full():
        return problem(503, "too_many_streams", "Too many streams are open. Poll, or try again soon.")
    if connections.full_for(caller):
        return problem(429, "too_many_streams", "You have too many streams open. Close some first.")
    response = StreamingHttpResponse(
        _counted(caller, events), content_type="text/event-stream; charset=utf-8"
    )
    response["Cache-Control"] = "no-cache, no-transform"
    response["X-Accel-Buffering"] = "no"
    return with_cors(request, response, origin)


async def _counted(caller: str, events: Events) -> Events:
    connections.open[caller] += 1
    try:
        yield RETRY
        async for piece in events:
            yield piece
    except DatabaseError as error:
        # The reader reconnects and resumes where it was.
        log.warning("a stream ended because the database is away: %s", error)
    finally:
        connections.leave(caller)
        await events.aclose()


def problem(status: int, code: str, detail: str) -> HttpResponseBase:
    """Return an RFC 9457 problem document. Pages cannot read it: they request another ticket and try
    again."""
    titles = {401: "Not authenticated", 404: "Not found", 405: "Method not allowed", 429: "Too many requests"}
    body = {
        "type": "about:blank",
        "title": titles.get(status, "Unavailable"),
        "status": status,
        "detail": detail,
    }
    response = JsonResponse({**body, "code": code}, status=status, content_type="application/problem+json")
    if status == 401:
        response["WWW-Authenticate"] = "Bearer, Agent"
    if status in (429, 503):
        response["Retry-After"] = "5"
    return response


def with_cors(request: HttpRequest, response: HttpResponseBase, origin: str | None) -> HttpResponseBase:
    """Allow only the page that the ticket was issued to, to read the response; without credentials."""
    response["Vary"] = "Origin"
    if origin is not None and request.headers.get("Origin") == origin:
        response["Access-Control-Allow-Origin"] = origin
    return response
