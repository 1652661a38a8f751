"""The client: submit functions with deadlines, ask what would be, look at jobs and the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack
from urllib.parse import quote, urlsplit

import httpx

from punctual.client.account import Projects, Tokens
from punctual.client.cluster import Cluster
from punctual.client.configuration import resolve_profile
from punctual.client.functions import Functions
from punctual.client.inference import Inference
from punctual.client.jobs import LONGEST_WAIT_SECONDS, Job
from punctual.client.models import FunctionVersion, JobEvent, LogChunk, Verdict
from punctual.client.reading import read, unreadable
from punctual.client.requests import FunctionSource, JobOptions, job_body, names_stored_function
from punctual.client.simulations import Simulations
from punctual.client.transport import RetryNotice, Transport
from punctual.errors import InvalidInputError, PunctualError

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Client:
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
        self.functions = Functions(self.transport, self.project_name)
        self.cluster = Cluster(self.transport)
        self.inference = Inference(self.transport)
        self.simulations = Simulations(self.transport)
        self.tokens = Tokens(self.transport)
        self.projects = Projects(self.transport)
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

    # --- submitting -----------------------------------------------------------------------------------------

    def submit(
        self,
        function: FunctionSource,
        *,
        function_name: str | None = None,
        entry: str | None = None,
        requirements: str | None = None,
        verdict_seconds: float = LONGEST_WAIT_SECONDS,
        idempotency_key: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Submit a job and wait a while for its verdict.

        Args:
            function: a `.py`, a zip or a folder (uploaded first), a class or module (its source is uploaded),
                a stored version, or text such as `name@3`.
            function_name: the name under which an upload is stored; else the file's. entry: `module:Class`,
                where the bundle holds several training functions. requirements: a requirements file to go
                with a single file. verdict_seconds: how long to wait for the verdict, at most 30; see
                `Job.wait_for_verdict`. idempotency_key: makes the submission harmless to repeat, even by
                another process; else a fresh one. options: see `JobOptions`.

        Returns:
            The job. A declined one is no error: see `job.state` and `job.offer`.

        Raises:
            BundleError, InvalidInputError: wrong before anything was sent. ApiError: the platform refused.
        """
        body = self._body(function, function_name, entry, requirements, options)
        hold = int(min(max(verdict_seconds, 0), LONGEST_WAIT_SECONDS))
        answer = self.transport.send(
            "POST",
            "jobs/",
            body,
            params={"wait": hold} if hold else None,
            wait_seconds=hold,
            idempotency_key=idempotency_key,
        )
        return Job.from_document(self, answer)

    def what_if(
        self,
        function: FunctionSource,
        *,
        function_name: str | None = None,
        entry: str | None = None,
        requirements: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Verdict:
        """The verdict that a submission would get now, without submitting (the function is uploaded if it is
        new)."""
        body = self._body(function, function_name, entry, requirements, options)
        return read(Verdict, self.transport.send("POST", "what-if/", body))

    def _body(
        self,
        function: FunctionSource,
        function_name: str | None,
        entry: str | None,
        requirements: str | None,
        options: JobOptions,
    ) -> dict[str, Any]:
        job_body("", options)  # refuse a bad option before anything is uploaded
        project = self.project_name(options.get("project"))
        if isinstance(function, FunctionVersion):
            reference = function.reference
        elif isinstance(function, str) and names_stored_function(function):
            reference = function
        else:
            reference = self.functions.upload(
                function, name=function_name, project=project, entry=entry, requirements=requirements
            ).reference
        return job_body(reference, options) | {"project": project}

    # --- jobs -----------------------------------------------------------------------------------------------

    def job(self, job_id: str) -> Job:
        """One job by its id."""
        return Job.from_document(self, self.transport.get(f"jobs/{quote(job_id, safe='')}/"))

    def jobs(
        self,
        *,
        state: Sequence[str] = (),
        labels: dict[str, str] | None = None,
        limit: int | None = None,
        **filters: Any,
    ) -> Iterator[Job]:
        """Jobs of one's projects, newest first.

        `filters` are those of the REST API: project, service_class, promised, at_risk, owner, function,
        search, submitted_after, submitted_before, deadline_before.
        """
        params: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
        if state:
            params["state"] = list(state)
        if labels:
            params["label"] = [f"{key}:{value}" for key, value in labels.items()]
        if limit is not None:
            params["page_size"] = min(limit, 200)
        for document in self.transport.pages("jobs/", params, limit=limit):
            yield Job.from_document(self, document)

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
