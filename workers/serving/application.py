"""The HTTP interface of a serving worker (docs/protocols.md 2.12), as an ASGI application.

    POST /predict   {"inputs": [...]} -> {"outputs": [...], "generation": 3}
    GET  /health    {"state": "serving" | "draining", "generation": 3}
    GET  /ready     the same; 503 while it drains
    GET  /stats     counts, and percentiles of latencies

Every request carries a token of the deployment. Errors are problem documents.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import math
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from punctual.protocol.limits import SERVING_BODY_BYTES, SERVING_INPUTS
from punctual.protocol.problems import MEDIA_TYPE, problem
from workers.serving.batching import Batcher, Outcome, Request
from workers.serving.counting import Counts
from workers.serving.errors import (
    BadInputError,
    LateError,
    NotServingError,
    QueueFullError,
)
from workers.serving.limits import ALL_BODIES_BYTES

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope

_RETRY_SECONDS = b"1"
_DETAIL_CHARACTERS = 500
_JSON = "application/json"
_METHODS = {"/predict": "POST", "/health": "GET", "/ready": "GET", "/stats": "GET"}

Answer = tuple[int, bytes]


class ProblemError(Exception):
    """A request whose answer is a problem document."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.code = status, code
        self.detail = detail[:_DETAIL_CHARACTERS]


class _GoneError(Exception):
    """The caller has left."""


class ServingApplication:
    """Answers the requests to one worker. Runs in the event loop's thread."""

    def __init__(
        self,
        batcher: Batcher,
        counts: Counts,
        generation: int,
        token_digests: Callable[[], Collection[str]],
        is_draining: Callable[[], bool],
    ) -> None:
        """Store the arguments.

        Args:
            token_digests: returns the SHA-256 digests, in hexadecimal, of the currently valid tokens.
        """
        self._batcher = batcher
        self._counts = counts
        self._generation = generation
        self._token_digests = token_digests
        self._is_draining = is_draining
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise ValueError(f"only HTTP is served here, not {scope['type']}")
        headers = dict(scope["headers"])
        try:
            self._authenticate(headers.get(b"authorization", b""))
            status, content = await self._answer(scope["method"], scope["path"], headers, receive)
            media_type = _JSON
        except ProblemError as error:
            status, media_type = error.status, MEDIA_TYPE
            content = json.dumps(problem(status, error.code, error.detail)).encode()
        except _GoneError:
            return
        fields = [
            (b"content-type", media_type.encode()),
            (b"content-length", b"%d" % len(content)),
            (b"cache-control", b"no-store"),
        ]
        if status == 503:
            fields.append((b"retry-after", _RETRY_SECONDS))
        elif status == 401:
            fields.append((b"www-authenticate", b"Bearer"))
        elif status == 405:
            fields.append((b"allow", _METHODS[scope["path"]].encode()))
        if self._is_draining():
            # So that the caller's next connection goes to another replica.
            fields.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": content, "more_body": False})

    def _authenticate(self, authorization: bytes) -> None:
        scheme, _, token = authorization.partition(b" ")
        digest = hashlib.sha256(token.strip()).hexdigest()
        # Compare all, so that the time reveals nothing about which one nearly matches.
        found = sum(hmac.compare_digest(digest, known) for known in self._token_digests())
        if scheme.lower() != b"bearer" or not found:
            raise ProblemError(
                401, "unknown_token", "Send a token of this deployment as Authorization: Bearer TOKEN."
            )

    async def _answer(
        self, method: str, path: str, headers: dict[bytes, bytes], receive: ASGIReceiveCallable
    ) -> Answer:
        if path not in _METHODS:
            raise ProblemError(404, "not_found", f"There are {', '.join(_METHODS)}.")
        if method != _METHODS[path]:
            raise ProblemError(405, "method_not_allowed", f"Use {_METHODS[path]} for {path}.")
        if path == "/predict":
            return 200, await self._predict(headers, receive)
        if path == "/stats":
            return 200, json.dumps(self._counts.summary(self._batcher.waiting)).encode()
        state = "draining" if self._is_draining() else "serving"
        status = 503 if path == "/ready" and self._is_draining() else 200
        return status, json.dumps({"state": state, "generation": self._generation}).encode()

    async def _predict(self, headers: dict[bytes, bytes], receive: ASGIReceiveCallable) -> bytes:
        self._counts.asked()
        try:
            inputs = read_inputs(await self._body(headers, receive))
        except ProblemError as error:
            if error.status == 503:
                self._counts.refused()
            else:
                self._counts.rejected()
            raise
        loop = asyncio.get_running_loop()
        came_at = loop.time()
        outcome: asyncio.Future[Outcome] = loop.create_future()

        def settle(value: Outcome) -> None:
            if not outcome.done():
                outcome.set_result(value)

        try:
            self._batcher.submit(Request(inputs, came_at, settle))
        except (QueueFullError, NotServingError) as error:
            found: Outcome = error
        else:
            found = await outcome
        return self._counted(found, len(inputs), loop.time() - came_at)

    def _counted(self, outcome: Outcome, inputs: int, seconds: float) -> bytes:
        """Count a request; return the answer's body. Raise ProblemError if there is none."""
        if isinstance(outcome, bytes):
            self._counts.answered(inputs, seconds)
            return outcome
        if isinstance(outcome, QueueFullError):
            self._counts.refused()
            raise ProblemError(503, "busy", f"Too many requests: {outcome}. Try again.")
        if isinstance(outcome, NotServingError):
            self._counts.refused()
            raise ProblemError(503, "draining", f"Another replica may answer: {outcome}.")
        if isinstance(outcome, BadInputError):
            self._counts.rejected()
            raise ProblemError(400, "invalid", f"An input is wrong: {outcome}")
        self._counts.answered(inputs, seconds, failed=True)
        if isinstance(outcome, LateError):
            raise ProblemError(504, "late", f"The function takes too long: {outcome}.")
        raise ProblemError(500, "function_error", str(outcome))

    async def _body(self, headers: dict[bytes, bytes], receive: ASGIReceiveCallable) -> bytes:
        """Return the request's whole body. Raise ProblemError if it is refused.

        The protocol discards the rest of a refused body, within its deadlines, so that the caller can read
        the answer.
        """
        media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if media_type != _JSON.encode():
            raise ProblemError(415, "unsupported_media_type", f"Send the body as Content-Type: {_JSON}.")
        too_large = ProblemError(413, "too_large", f"A body has at most {SERVING_BODY_BYTES} bytes.")
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and (len(declared) > 12 or int(declared) > SERVING_BODY_BYTES):
            raise too_large
        body, more = bytearray(), True
        try:
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    raise _GoneError
                part, more = message.get("body", b""), message.get("more_body", False)
                if len(body) + len(part) > SERVING_BODY_BYTES:
                    raise too_large
                if self._held_bytes + len(part) > ALL_BODIES_BYTES:
                    raise ProblemError(503, "busy", "Too many bodies arrive at once. Try again.")
                body += part
                self._held_bytes += len(part)
        finally:
            self._held_bytes -= len(body)
        return bytes(body)


def read_inputs(body: bytes) -> list[Any]:
    """Return the inputs in a request's body. Raise ProblemError if it is invalid."""
    try:
        value = json.loads(body, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ProblemError(400, "malformed", f"The body is no JSON: {reason}.") from error
    if not isinstance(value, dict) or set(value) != {"inputs"}:
        raise ProblemError(400, "invalid", 'The body must be {"inputs": [...]}, without other fields.')
    inputs = value["inputs"]
    if not isinstance(inputs, list):
        raise ProblemError(400, "invalid", "inputs: this must be a list.")
    if not 1 <= len(inputs) <= SERVING_INPUTS:
        raise ProblemError(
            400, "invalid", f"inputs: the list has {len(inputs)} inputs; 1 to {SERVING_INPUTS} are allowed."
        )
    return inputs


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is beyond the largest number of 64 bits")
    return value
