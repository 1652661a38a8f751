"""The agent's requests to the control plane (protocol 2). Every failure becomes one of a few exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

PREFIX = "/agent/v1/"
LONGEST_TIMEOUT_SECONDS = 10.0
# Servers close idle connections after two seconds; a connection about to be closed must not be reused.
KEEPALIVE_SECONDS = 1.5
DOWNLOAD_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
BUNDLE_LIMIT_BYTES = 512 * 1024**2


class Unreachable(Exception):
    """No answer, or one that asks to retry later."""


class CredentialRevoked(Exception):
    """The control plane no longer recognises this agent."""


class Fenced(Exception):
    """The control plane has reassigned this node's work; all workers here must end."""


class RequestRefused(Exception):
    """The control plane will never accept this request.

    `status`: the HTTP status. `lease_seconds`: the lease that it renewed nevertheless; None if it did not.
    """

    def __init__(self, status: int, message: str, lease_seconds: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.lease_seconds = lease_seconds


class ControlPlane:
    """One agent's connection. Thread-safe."""

    def __init__(
        self, server_url: str, credential: str | None = None, *, lease_seconds: float | None = None
    ) -> None:
        """`lease_seconds` bounds the wait for an answer, so that several attempts fit into one lease."""
        headers = {} if credential is None else {"Authorization": f"Agent {credential}"}
        timeout_seconds = LONGEST_TIMEOUT_SECONDS
        if lease_seconds is not None:
            timeout_seconds = min(timeout_seconds, max(1.0, lease_seconds / 4))
        self._client = httpx.Client(
            base_url=server_url + PREFIX,
            headers=headers,
            timeout=timeout_seconds,
            limits=httpx.Limits(keepalive_expiry=KEEPALIVE_SECONDS),
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def enrol(self, body: dict[str, Any]) -> dict[str, Any]:
        """Exchange a one-time token for a credential. Raises Unreachable, CredentialRevoked,
        RequestRefused."""
        return self._json(self._send("POST", "enrol", body))

    def report(self, body: dict[str, Any]) -> dict[str, Any]:
        """Send a report. Raises Unreachable, CredentialRevoked, Fenced, RequestRefused."""
        return self._json(self._send("POST", "report", body))

    def desired(self) -> dict[str, Any]:
        """Fetch the desired state. Raises Unreachable, CredentialRevoked, Fenced, RequestRefused."""
        return self._json(self._send("GET", "desired", None))

    @contextmanager
    def download(self, path: str) -> Iterator[Iterator[bytes]]:
        """Yield the content of `path` in pieces. Raises Unreachable, CredentialRevoked, RequestRefused."""
        try:
            with self._client.stream("GET", path, timeout=DOWNLOAD_TIMEOUT) as response:
                if not response.is_success:
                    response.read()
                _raise_for_status(response)
                yield response.iter_bytes(1 << 20)
        except httpx.HTTPError as error:
            raise Unreachable(f"{path}: {_describe(error)}") from error

    def _send(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        try:
            response = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise Unreachable(f"{path}: {_describe(error)}") from error
        _raise_for_status(response)
        return response

    def _json(self, response: httpx.Response) -> dict[str, Any]:
        try:
            body = response.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise Unreachable(
                f"{response.url.path}: the answer is no JSON object; is this the control plane?"
            )
        return body


def _raise_for_status(response: httpx.Response) -> None:
    if response.is_success:
        return
    message = f"{response.url.path}: {response.status_code} {_problem(response)}"
    if response.status_code == 401:
        raise CredentialRevoked(message)
    if response.status_code == 409:
        raise Fenced(message)
    if response.status_code in (408, 425, 429) or response.status_code >= 500:
        raise Unreachable(message)
    raise RequestRefused(response.status_code, message, _lease_seconds(response))


def _lease_seconds(response: httpx.Response) -> float | None:
    try:
        body = response.json()
    except ValueError:
        return None
    seconds = body.get("lease_seconds") if isinstance(body, dict) else None
    return float(seconds) if isinstance(seconds, (int, float)) and 0 <= seconds < 1e6 else None


def _problem(response: httpx.Response) -> str:
    """Return the sentence of a problem document (RFC 9457), or the status' own name."""
    try:
        body = response.json()
    except ValueError:
        return response.reason_phrase
    if isinstance(body, dict):
        return str(body.get("detail") or body.get("title") or response.reason_phrase)
    return response.reason_phrase


def _describe(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__
