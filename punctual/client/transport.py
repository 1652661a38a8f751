"""HTTP to the platform: timeouts on everything, retries that never repeat an effect, problems as
exceptions."""

from __future__ import annotations

import functools
import math
import random
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from punctual.client.reading import unreadable
from punctual.errors import ApiError, ConnectionFailedError, InvalidInputError, error_class_for_status

API_PREFIX = "/api/v1/"
_FIRST_BACKOFF_SECONDS = 0.2
_LONGEST_BACKOFF_SECONDS = 3.0
_UNAVAILABLE = (502, 503, 504)
_CONFLICTS_AND_LIMITS = (409, 429)
_SIGNS_OF_BAD_TLS = ("ssl", "certificate")
_SIGNS_OF_UNKNOWN_HOST = ("name or service", "resolution", "getaddrinfo", "nodename", "no address")

#: Called before a retry with the problem and the seconds until the next attempt.
RetryNotice = Callable[[str, float], None]


@dataclass(frozen=True)
class _Failure:
    """The failure of one attempt. `passes`: whether a later one may succeed. `pause_seconds`: requested by
    the server."""

    error: ApiError | ConnectionFailedError
    passes: bool
    may_have_arrived: bool = True
    pause_seconds: float | None = None


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Load the trusted certificates once per process, which takes 40 ms."""
    return httpx.create_ssl_context()


class Transport:
    """One connection pool to one platform under one identity.

    Requests carry an `Idempotency-Key` that is constant over retries, so that repeating a request after a
    lost answer does not repeat its effect.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        retry_seconds: float = 15.0,
        timeout_seconds: float = 30.0,
        on_retry: RetryNotice | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url
        self.retry_seconds = retry_seconds
        self.timeout_seconds = timeout_seconds
        self.on_retry = on_retry
        headers = {"Accept": "application/json", "User-Agent": "punctual-client"}
        if token:
            if not token.isascii() or not token.isprintable() or " " in token:
                raise InvalidInputError("the token has invalid characters", hint="copy it again")
            headers["Authorization"] = f"Bearer {token}"
        self.http = httpx.Client(
            headers=headers, timeout=self._timeout(), transport=transport, verify=_certificates()
        )

    def close(self) -> None:
        self.http.close()

    def _timeout(self, extra_seconds: float = 0.0) -> httpx.Timeout:
        return httpx.Timeout(self.timeout_seconds, connect=5.0, read=self.timeout_seconds + extra_seconds)

    # --- requests -------------------------------------------------------------------------------------------

    def get(self, path: str, params: Mapping[str, Any] | None = None, *, wait_seconds: float = 0.0) -> Any:
        """GET a JSON document. `wait_seconds`: how long the server may hold the request."""
        return self._json(self.request("GET", path, params=params, wait_seconds=wait_seconds))

    def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        wait_seconds: float = 0.0,
        idempotency_key: str | None = None,
        repeatable: bool = True,
    ) -> Any:
        """POST, PATCH or DELETE with a JSON body; return the answer's document (None if it is empty).

        `repeatable` is False for the few requests whose answers contain secrets: the server does not store
        those, so they are retried only if they certainly did not arrive.
        """
        response = self.request(
            method,
            path,
            params=params,
            json=dict(body) if body is not None else None,
            headers={"Idempotency-Key": idempotency_key or uuid.uuid4().hex},
            wait_seconds=wait_seconds,
            repeatable=repeatable,
        )
        return self._json(response)

    def pages(
        self, path: str, params: Mapping[str, Any] | None = None, *, limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield every object of a list, page by page, at most `limit`."""
        document = self.get(path, params)
        given = 0
        while True:
            items = document.get("results") if isinstance(document, dict) else document
            if not isinstance(items, list):
                raise unreadable("a list")
            for item in items:
                if limit is not None and given >= limit:
                    return
                given += 1
                yield item
            next_page = document.get("next") if isinstance(document, dict) else None
            if not next_page or (limit is not None and given >= limit):
                return
            # Use only the query: behind a proxy the server may use another name for itself.
            document = self.get(path, dict(httpx.URL(next_page).params.multi_items()))

    def request(
        self, method: str, path: str, *, wait_seconds: float = 0.0, repeatable: bool = True, **arguments: Any
    ) -> httpx.Response:
        """Send one request and retry while the server is unavailable, for at most `retry_seconds`.

        Raises:
            ApiError: the server refused. ConnectionFailedError: there was no answer.
        """
        give_up_at = time.monotonic() + self.retry_seconds
        backoff = _FIRST_BACKOFF_SECONDS
        while True:
            answer = self._attempt(method, path, wait_seconds, arguments)
            if isinstance(answer, httpx.Response):
                return answer
            pause = answer.pause_seconds
            if pause is None:
                pause = backoff * random.uniform(0.75, 1.25)
            lasting = not answer.passes or (not repeatable and answer.may_have_arrived)
            if lasting or time.monotonic() + pause > give_up_at:
                raise answer.error
            if self.on_retry is not None:
                self.on_retry(answer.error.message, pause)
            time.sleep(pause)
            backoff = min(backoff * 2, _LONGEST_BACKOFF_SECONDS)

    def _attempt(
        self, method: str, path: str, wait_seconds: float, arguments: Mapping[str, Any]
    ) -> httpx.Response | _Failure:
        timeout = self._timeout(wait_seconds)
        try:
            response = self.http.request(method, self.address(path), timeout=timeout, **arguments)
        except httpx.ConnectError as error:
            return _Failure(
                connection_failure(self.url, error), passes=not _is_lasting(error), may_have_arrived=False
            )
        except httpx.RequestError as error:
            arrived = not isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout)
            return _Failure(connection_failure(self.url, error), passes=True, may_have_arrived=arrived)
        except httpx.InvalidURL as error:
            raise InvalidInputError(f"the address cannot be used: {error}") from error
        except (TypeError, ValueError) as error:  # a value that JSON or UTF-8 does not have
            raise InvalidInputError(f"the request cannot be sent: {error}") from error
        if response.is_success:
            return response
        asked_for = _retry_after_seconds(response)
        return _Failure(
            problem(response, self.url), passes=_passes(response, asked_for), pause_seconds=asked_for
        )

    @contextmanager
    def stream(self, path: str, params: Mapping[str, Any] | None = None) -> Iterator[httpx.Response]:
        """GET a document as a stream of bytes (downloads); not retried once bytes have arrived."""
        try:
            with self.http.stream("GET", self.address(path), params=params) as response:
                if not response.is_success:
                    response.read()
                    raise problem(response, self.url)
                yield response
        except httpx.RequestError as error:
            raise connection_failure(self.url, error) from error

    def address(self, path: str) -> str:
        """Return the full address of a path below the API's root."""
        return f"{self.url}{API_PREFIX}{path}"

    def _json(self, response: httpx.Response) -> Any:
        if response.status_code == httpx.codes.NO_CONTENT or not response.content:
            return None
        try:
            return response.json()
        except ValueError as error:
            raise unreadable("not JSON") from error


def _is_lasting(error: httpx.ConnectError) -> bool:
    """Whether a retry is useless: the host is unknown, or its certificate does not match."""
    text = str(error).lower()
    return any(sign in text for sign in (*_SIGNS_OF_BAD_TLS, *_SIGNS_OF_UNKNOWN_HOST))


def connection_failure(url: str, error: httpx.RequestError) -> ConnectionFailedError:
    """Return the error for a request without an answer; the hint distinguishes a wrong address from an
    unavailable server."""
    if isinstance(error, httpx.ConnectError):
        text = str(error).lower()
        if any(sign in text for sign in _SIGNS_OF_BAD_TLS):
            return ConnectionFailedError(
                f"no secure connection to {url}: {error}", hint="http instead of https?"
            )
        if any(sign in text for sign in _SIGNS_OF_UNKNOWN_HOST):
            return ConnectionFailedError(f"the host of {url} is not known", hint="check the address")
        return ConnectionFailedError(f"nothing answers at {url}", hint="is the platform running there?")
    if isinstance(error, httpx.TimeoutException):
        return ConnectionFailedError(f"{url} did not answer in time", hint="try again")
    return ConnectionFailedError(f"the connection to {url} broke", hint="try again")


def problem(response: httpx.Response, url: str) -> ApiError:
    """Return the exception for an unsuccessful answer, with RFC 9457 members if there are any."""
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return _foreign_answer(response, url)
    known = {"type", "title", "status", "detail", "code", "errors", "instance"}
    errors = _messages_by_field(document.get("errors"))
    detail = str(
        document.get("detail") or document.get("title") or f"the server answered {response.status_code}"
    )
    return error_class_for_status(response.status_code)(
        _with_fields(detail, errors),
        status=response.status_code,
        code=str(document.get("code") or ""),
        errors=errors,
        extra={key: value for key, value in document.items() if key not in known},
        hint=_hint(response.status_code, str(document.get("code") or "")),
    )


def _foreign_answer(response: httpx.Response, url: str) -> ApiError:
    status = response.status_code
    if response.is_redirect:
        target = response.headers.get("location", "elsewhere")
        return error_class_for_status(400)(
            f"{url} sends us to {target}", status=status, hint="log in at the address it really has"
        )
    hint = "does the address lead to a Punctual server?" if status in (400, 404, 405) else _hint(status, "")
    return error_class_for_status(status)(f"{url} answered {status}", status=status, hint=hint)


def _messages_by_field(errors: Any, prefix: str = "") -> dict[str, list[str]]:
    """Flatten the errors of nested objects to `data.0.url: [message]`."""
    if isinstance(errors, Mapping):
        flat: dict[str, list[str]] = {}
        for key, value in errors.items():
            flat |= _messages_by_field(value, f"{prefix}.{key}" if prefix else str(key))
        return flat
    if isinstance(errors, list) and any(isinstance(item, Mapping | list) for item in errors):
        return _messages_by_field({str(index): item for index, item in enumerate(errors) if item}, prefix)
    if isinstance(errors, list):
        return {prefix: [str(message) for message in errors]} if errors else {}
    return {prefix: [str(errors)]} if errors else {}


def _with_fields(detail: str, errors: Mapping[str, list[str]]) -> str:
    said = [
        f"{field}: {message}" if field and field != "request" else message
        for field, messages in errors.items()
        for message in messages
        if message not in detail
    ]
    return "; ".join([detail.rstrip("."), *(message.rstrip(".") for message in said)]) if said else detail


def _hint(status: int, code: str) -> str | None:
    if status == 401 and code != "wrong_credentials":
        return "run `punctual login`"
    if status == 404:
        return "check the name; what belongs to projects you are no member of is not shown"
    if status == 429 and code != "quota_exceeded":
        return "wait a moment and try again"
    if status >= 500:
        return "try again; if it stays so, tell the platform's operator"
    return None


def _passes(response: httpx.Response, asked_for: float | None) -> bool:
    if response.status_code in _UNAVAILABLE:
        return True
    # Only a temporary conflict or limit comes with a retry time.
    return response.status_code in _CONFLICTS_AND_LIMITS and asked_for is not None


def _retry_after_seconds(response: httpx.Response) -> float | None:
    try:
        seconds = float(response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return min(max(seconds, 0.05), 60.0) if math.isfinite(seconds) else None
