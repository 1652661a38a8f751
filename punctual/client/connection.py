"""A person's connection to a platform: identity, project, and requests about jobs."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx

from punctual.client.configuration import resolve_profile
from punctual.client.models import JobEvent, LogChunk
from punctual.client.reading import read, unreadable
from punctual.client.transport import RetryNotice, Transport
from punctual.errors import InvalidInputError, PunctualError

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Connection:
    """A connection of one person to one platform.

    Args:
        url: the platform's address; else `PUNCTUAL_URL`, else the one that `punctual login` stored. token: an
            API token; else `PUNCTUAL_TOKEN`, else the stored one (which is sent only to its own platform).
            project: the default project; else `PUNCTUAL_PROJECT`, the stored one, or the only one. profile:
            the stored platform and identity to use; else `PUNCTUAL_PROFILE`, else the default one.
            retry_seconds: how long requests to an unavailable server are repeated, which is safe: see
            `Transport`. timeout_seconds: limit of one answer. on_retry: called before each retry with the
            problem and the pause.

    Raises:
        ConfigurationError: no platform is known, or the configuration file cannot be used.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        project: str | None = None,
        profile: str | None = None,
        retry_seconds: float = 15.0,
        timeout_seconds: float = 30.0,
        on_retry: RetryNotice | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.profile = resolve_profile(url, token, project, profile)
        self.transport = Transport(
            self.profile.url,
            self.profile.token,
            retry_seconds=retry_seconds,
            timeout_seconds=timeout_seconds,
            on_retry=on_retry,
            transport=transport,
        )
        self._me: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.transport.close()

    # --- identity -------------------------------------------------------------------------------------------

    def login(self, username: str, password: str, *, token_name: str = "punctual") -> str:
        """Exchange a password for a new API token and return it. It is not stored."""
        answer = self.transport.send(
            "POST",
            "login/",
            {"username": username, "password": password, "token_name": token_name},
            repeatable=False,
        )
        if not isinstance(answer, dict) or not isinstance(answer.get("token"), str):
            raise unreadable("a login")
        return str(answer["token"])

    def me(self) -> dict[str, Any]:
        """Return the token's user; requested once."""
        if self._me is None:
            answer = self.transport.get("me/")
            if not isinstance(answer, dict):
                raise unreadable("who you are")
            self._me = answer
        return self._me

    def project_name(self, named: str | None = None) -> str:
        """Return the given project, else the configured one, else the user's only one.

        Raises:
            InvalidInputError: the user has several projects, or none.
        """
        if chosen := named or self.profile.project:
            return chosen
        names = [str(project.get("name")) for project in self.me().get("projects") or []]
        if len(names) == 1:
            return names[0]
        if not names:
            raise InvalidInputError(
                "you are not a member of any project", hint="run `punctual projects create NAME`"
            )
        raise InvalidInputError(
            f"which project? You are a member of {', '.join(sorted(names)[:8])}",
            hint="give project (--project), or set PUNCTUAL_PROJECT",
        )

    def stream_address(self, path: str) -> str | None:
        """Return the address of an event stream, or None if the platform names no trustworthy stream
        server."""
        try:
            base = str(self.me().get("stream_url") or "")
        except PunctualError:
            # Streams only accelerate polling.
            return None
        host, own_host = urlsplit(base).hostname, urlsplit(self.profile.url).hostname
        if not host or (host in _LOOPBACK and own_host not in _LOOPBACK):
            # A stream server called "localhost" is on the platform's machine, not on ours.
            return None
        return f"{base.rstrip('/')}/{path}"

    # --- requests about jobs ------------------------------------------------------------------------------

    def events(self, job_id: str, *, after: int = 0) -> list[JobEvent]:
        """Return a job's events after the id `after`, oldest first."""
        found: list[JobEvent] = []
        # The server lists the newest first, so reading ends at the first known event.
        for item in self.transport.pages(f"jobs/{quote(job_id, safe='')}/events/", {"page_size": 200}):
            event = read(JobEvent, item)
            if event.id <= after:
                break
            found.append(event)
        return found[::-1]

    def log_chunks(
        self, job_id: str, *, rank: int | None = None, after: int | None = None, tail: int | None = None
    ) -> list[LogChunk]:
        """Return the pieces of a job's logs after the id `after`, oldest first."""
        params = {"rank": rank, "after": after, "tail": tail}
        chunks: list[LogChunk] = []
        while True:
            given = {name: value for name, value in params.items() if value is not None}
            page = self.transport.get(f"jobs/{quote(job_id, safe='')}/logs/", given)
            if not isinstance(page, dict) or not isinstance(page.get("results"), list):
                raise unreadable("logs")
            chunks += [read(LogChunk, item) for item in page["results"]]
            if not page.get("more") or not page["results"]:
                return chunks
            params = {"rank": rank, "after": chunks[-1].id}
