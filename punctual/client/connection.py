"""A person's connection to a platform: who and where one is, and what jobs are asked about through it."""

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
    """One person's way to one platform.

    Args:
        url: the platform's address; else `PUNCTUAL_URL`, else what `punctual login` stored. token: an API
            token; else `PUNCTUAL_TOKEN`, else the stored one (which is sent to its own platform alone).
            project: the project that counts when none is named; else `PUNCTUAL_PROJECT`, the stored one, or
            one's only one. profile: which stored platform and identity to use; else `PUNCTUAL_PROFILE`, else
            the default one. retry_seconds: how long a server that is away is asked again. Repeating is
            harmless: see `Transport`. timeout_seconds: how long one answer may take. on_retry: told before
            each repetition what went wrong and when the next attempt comes.

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

    # --- who and where --------------------------------------------------------------------------------------

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
        """Who the token stands for; asked once."""
        if self._me is None:
            answer = self.transport.get("me/")
            if not isinstance(answer, dict):
                raise unreadable("who you are")
            self._me = answer
        return self._me

    def project_name(self, named: str | None = None) -> str:
        """The named project, else the configured one, else one's only one.

        Raises:
            InvalidInputError: there are several or none to choose from.
        """
        if chosen := named or self.profile.project:
            return chosen
        names = [str(project.get("name")) for project in self.me().get("projects") or []]
        if len(names) == 1:
            return names[0]
        if not names:
            raise InvalidInputError(
                "you are a member of no project", hint="run `punctual projects create NAME`"
            )
        raise InvalidInputError(
            f"which project? You are a member of {', '.join(sorted(names)[:8])}",
            hint="say project (--project), or set PUNCTUAL_PROJECT",
        )

    def stream_address(self, path: str) -> str | None:
        """The address of an event stream, or None where the platform names no stream server that we may
        trust."""
        try:
            base = str(self.me().get("stream_url") or "")
        except PunctualError:
            # Streams only quicken what polling does as well.
            return None
        host, own_host = urlsplit(base).hostname, urlsplit(self.profile.url).hostname
        if not host or (host in _LOOPBACK and own_host not in _LOOPBACK):
            # A platform that calls its stream server "localhost" means its own machine, not ours.
            return None
        return f"{base.rstrip('/')}/{path}"

    # --- what jobs tell -----------------------------------------------------------------------------------

    def events(self, job_id: str, *, after: int = 0) -> list[JobEvent]:
        """A job's history after the event with the id `after`, oldest first."""
        found: list[JobEvent] = []
        # The server lists the newest first, so what is known already ends the reading.
        for item in self.transport.pages(f"jobs/{quote(job_id, safe='')}/events/", {"page_size": 200}):
            event = read(JobEvent, item)
            if event.id <= after:
                break
            found.append(event)
        return found[::-1]

    def log_chunks(
        self, job_id: str, *, rank: int | None = None, after: int | None = None, tail: int | None = None
    ) -> list[LogChunk]:
        """Pieces of a job's logs after the piece with the id `after`, oldest first."""
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
