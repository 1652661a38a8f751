"""Between the event loop, which waits for callers, and Django's threads, which never do.

A request is read whole before a thread sees it, and an answer is handed over piece by piece while no thread
waits for whoever reads it. Requests without a credential have threads of their own: nobody who only knocks
keeps those waiting who belong here.
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

#: Of a body in memory; the rest lies in a temporary file.
_IN_MEMORY_BYTES = 1024 * 1024
#: Of all bodies at once.
ALL_BODIES_BYTES = 512 * 1024 * 1024
#: Declared lengths from here on are refused unread. What is shorter and still too long is read and thrown
#: away, so that the caller gets an answer in place of a broken connection.
DRAINED_BYTES = 512 * 1024 * 1024


class _Refused(Exception):
    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.document = problem(status, code, detail)


class _Gone(Exception):
    """The caller has left."""


class Front:
    """A WSGI application as an ASGI application. `threads` are for callers with a credential,
    `anonymous_threads` for the others."""

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
        """A request's body, as it comes."""
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
    """Whether the caller claims to be somebody. Who claims it falsely is turned away by the first query."""
    cookie = f"{settings.SESSION_COOKIE_NAME}="
    return "HTTP_AUTHORIZATION" in environ or cookie in environ.get("HTTP_COOKIE", "")


async def _send_problem(document: dict[str, Any], send: ASGISendCallable) -> None:
    content = json.dumps(document).encode()
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(content))]
    # What was not read of the request must not be taken for the next one.
    headers.append((b"connection", b"close"))
    if document["status"] == 503:
        headers.append((b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
    await send({"type": "http.response.start", "status": document["status"], "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": False})
