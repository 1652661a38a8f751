"""The bridge between the event loop, which waits for callers, and Django's threads, which never do.

A request is read completely before a thread handles it. A response is sent piece by piece, and no thread
waits for its reader. Requests without a credential have separate threads, so they cannot delay authenticated
users.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from django.conf import settings

from config.serving.lanes import Crowded, Lane
from config.serving.wsgi import Answer, environ_of, headers_of
from projects.api.problems import RETRY_AFTER_SECONDS
from projects.client_address import throttled_address
from punctual.protocol.problems import MEDIA_TYPE, problem

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope

#: Part of a body held in memory; the rest goes to a temporary file.
_IN_MEMORY_BYTES = 1024 * 1024
#: Limit on the sum of all bodies held at once.
ALL_BODIES_BYTES = 512 * 1024 * 1024
#: Larger declared lengths are refused unread. Shorter bodies that are still too long are read and discarded,
#: so that the caller gets a response instead of a broken connection.
DRAINED_BYTES = 512 * 1024 * 1024


class _Refused(Exception):
    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.document = problem(status, code, detail)


class _Gone(Exception):
    """The caller has disconnected."""


class Front:
    """A WSGI application as an ASGI application. `threads` serve callers with a credential,
    `anonymous_threads` the others."""

    def __init__(self, application: WSGIApplication, *, threads: int, anonymous_threads: int) -> None:
        self._application = application
        self._known = Lane("known", threads)
        self._anonymous = Lane("anonymous", anonymous_threads)
        self._body_bytes = settings.MAXIMUM_BUNDLE_BYTES + settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise ValueError(f"only HTTP is spoken here, not {scope['type']}")
        headers = headers_of(scope)
        held = 0
        with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as body:
            try:
                async for part in self._parts(headers.get("CONTENT_LENGTH", ""), receive):
                    held += len(part)
                    self._held_bytes += len(part)
                    body.write(part)
                body.seek(0)
                await self._answer(environ_of(scope, headers, body, held), receive, send)
            except _Refused as refused:
                await _send_problem(refused.document, send)
            except _Gone:
                pass
            finally:
                self._held_bytes -= held

    async def _parts(self, declared: str, receive: ASGIReceiveCallable) -> AsyncIterator[bytes]:
        """Yield a request's body as it arrives."""
        too_large = _Refused(413, "too_large", f"A request has at most {self._body_bytes} bytes.")
        if declared.isdecimal() and int(declared) > DRAINED_BYTES:
            raise too_large
        length, more = 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise _Gone
            part, more = message.get("body", b""), message.get("more_body", False)
            length += len(part)
            if length > DRAINED_BYTES:
                raise too_large
            if length <= self._body_bytes:
                if self._held_bytes + len(part) > ALL_BODIES_BYTES:
                    raise _Refused(503, "crowded", "Too much is being sent at once. Try again in a moment.")
                yield part
        if length > self._body_bytes:
            raise too_large

    async def _answer(
        self, environ: dict[str, Any], receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        lane = self._known if _shows_a_credential(environ) else self._anonymous
        peer = throttled_address(environ)
        answer = Answer()

        def begin() -> tuple[bytes, bool]:
            answer.content = self._application(environ, answer.start)
            answer.pieces = iter(answer.content)
            return answer.piece()

        try:
            piece, more = await lane.run(peer, begin)
        except Crowded:
            raise _Refused(503, "crowded", "Too many requests wait. Try again in a moment.") from None
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
            await send({"type": "http.response.body", "body": piece, "more_body": more})
            while more and not gone.done():
                piece, more = await lane.run(peer, answer.piece, has_begun=True)
                await send({"type": "http.response.body", "body": piece, "more_body": more})
        finally:
            gone.cancel()
            if more:
                await lane.run(peer, answer.close, has_begun=True)


async def _until_gone(receive: ASGIReceiveCallable) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _shows_a_credential(environ: dict[str, Any]) -> bool:
    """Return whether the request carries a credential. The first query rejects an invalid one."""
    cookie = f"{settings.SESSION_COOKIE_NAME}="
    return "HTTP_AUTHORIZATION" in environ or cookie in environ.get("HTTP_COOKIE", "")


async def _send_problem(document: dict[str, Any], send: ASGISendCallable) -> None:
    content = json.dumps(document).encode()
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(content))]
    # The unread rest of the request must not be parsed as the next one.
    headers.append((b"connection", b"close"))
    if document["status"] == 503:
        headers.append((b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
    await send({"type": "http.response.start", "status": document["status"], "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": False})
