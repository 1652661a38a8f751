"""A submitted job: wait for it, follow it, steer it, download its results."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any, Unpack
from urllib.parse import quote

from punctual.client.connection import Connection
from punctual.client.durations import deadline_fields
from punctual.client.models import (
    Artifact,
    Checkpoint,
    JobEvent,
    JobFacts,
    LogChunk,
    Metric,
    Recovery,
    Verdict,
)
from punctual.client.reading import read, unreadable
from punctual.client.requests import Deadline, JobOptions, override_body
from punctual.client.watching import watch
from punctual.errors import ChecksumError, InvalidInputError, PunctualError, WaitTimeoutError

#: Longest time for which the server holds a request for a verdict.
LONGEST_WAIT_SECONDS = 30.0
_SHORTEST_QUESTION_SECONDS = 0.5

#: Called during a download with the bytes so far and in total.
DownloadProgress = Callable[[int, int], None]


@dataclass
class Job(JobFacts):
    """A job and its operations. Each request also refreshes the fields."""

    client: Connection = field(default=None, repr=False, compare=False)  # type: ignore[assignment]

    @classmethod
    def from_document(cls, client: Connection, document: Any) -> Job:
        """Return a job from the server's JSON."""
        job = read(cls, document)
        job.client = client
        return job

    @property
    def path(self) -> str:
        """The job's path below the API's root."""
        return f"jobs/{quote(self.id, safe='')}/"

    @property
    def succeeded(self) -> bool:
        """Whether the job is completed."""
        return self.state == "completed"

    def _renew(self, document: Any) -> Job:
        fresh = Job.from_document(self.client, document)
        for item in fields(fresh):
            setattr(self, item.name, getattr(fresh, item.name))
        return self

    def refresh(self) -> Job:
        """Fetch the job's current state."""
        return self._renew(self.client.transport.get(self.path))

    # --- waiting and following ------------------------------------------------------------------------------

    def wait_for_verdict(self, timeout_seconds: float | None = None) -> Job:
        """Return as soon as the verdict is known. A new function is profiled first, which takes time.

        Raises:
            WaitTimeoutError: the time is over and the verdict is still open.
        """
        give_up_at = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self.decided:
            left = LONGEST_WAIT_SECONDS if give_up_at is None else give_up_at - time.monotonic()
            if left <= 0:
                raise WaitTimeoutError(f"no verdict on job {self.id} yet", hint="it is still being decided")
            asked_at = time.monotonic()
            hold = max(1, int(min(left, LONGEST_WAIT_SECONDS)))
            self._renew(self.client.transport.get(self.path, {"wait": hold}, wait_seconds=hold))
            # A busy server answers at once instead of holding the request, so limit the rate.
            answered_after = time.monotonic() - asked_at
            if not self.decided and answered_after < _SHORTEST_QUESTION_SECONDS:
                time.sleep(min(_SHORTEST_QUESTION_SECONDS, left))
        return self

    def wait(self, timeout_seconds: float | None = None) -> Job:
        """Return when the job is finished (`declined`, `completed`, `failed` or `cancelled`).

        Raises:
            WaitTimeoutError: the time is over; the job continues.
        """
        give_up_at = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        for update in watch(self.client, self.id, events=False):
            self._renew(update.job)
            if not self.finished and give_up_at is not None and time.monotonic() >= give_up_at:
                raise WaitTimeoutError(f"job {self.id} is still {self.state}", hint="it goes on by itself")
        return self

    def follow(self) -> Iterator[JobEvent]:
        """Yield every event of the job from its beginning, live, until it is finished. Survives outages."""
        for update in watch(self.client, self.id):
            self._renew(update.job)
            yield from update.events

    def logs(
        self, *, follow: bool = False, rank: int | None = None, tail: int | None = None
    ) -> Iterator[LogChunk]:
        """Yield the workers' output in order; with `follow` live until the job is finished. `tail`: lines."""
        if follow:
            for update in watch(self.client, self.id, events=False, logs=True, rank=rank, tail=tail):
                self._renew(update.job)
                yield from update.log_chunks
            return
        yield from self.client.log_chunks(self.id, rank=rank, tail=tail)

    def events(self) -> list[JobEvent]:
        """Return the job's events so far, oldest first."""
        return self.client.events(self.id)

    def metrics(self, *, after_iteration: int | None = None) -> list[Metric]:
        """Return the function's metrics by iteration."""
        params = {} if after_iteration is None else {"after_iteration": after_iteration}
        return [read(Metric, item) for item in self.client.transport.pages(f"{self.path}metrics/", params)]

    # --- steering -------------------------------------------------------------------------------------------

    def cancel(self) -> Job:
        """Cancel the job, which voids its promise."""
        return self._act("cancel")

    def pause(self) -> Job:
        """Release the job's GPUs until `resume`; its promise is void meanwhile."""
        return self._act("pause")

    def resume(self) -> Job:
        """Resume a paused job."""
        return self._act("resume")

    def change_deadline(
        self, deadline: Deadline | None, service_class: str | None = None
    ) -> tuple[Job, Verdict, bool]:
        """Request another deadline. If a tighter one is refused, the old promise stays.

        Returns the job, the verdict on the new deadline, and whether anything changed.
        """
        body: dict[str, Any] = deadline_fields(deadline) or {"deadline_at": None}
        if service_class is not None:
            body["service_class"] = service_class
        answer = self.client.transport.send("POST", f"{self.path}deadline/", body)
        if not isinstance(answer, dict):
            raise unreadable("a change of deadline")
        return (
            self._renew(answer.get("job")),
            read(Verdict, answer.get("verdict") or {}),
            bool(answer.get("changed")),
        )

    def accept_offer(self) -> Job:
        """Accept the offered deadline; return the admitted successor, a new job.

        Raises:
            ConflictError: the offer has lapsed or was accepted already.
        """
        return Job.from_document(
            self.client, self.client.transport.send("POST", f"{self.path}accept-offer/", {})
        )

    def decline_offer(self) -> Job:
        """Release the capacity held for the offered deadline, before it expires.

        Raises:
            ConflictError: the offer has lapsed or was accepted already.
        """
        return self._act("decline-offer")

    def clone(self, **overrides: Unpack[JobOptions]) -> Job:
        """Submit the job again with some options changed. Without a new deadline, it has as much time as the
        old job had."""
        answer = self.client.transport.send("POST", f"{self.path}clone/", override_body(overrides))
        return Job.from_document(self.client, answer)

    def _act(self, action: str) -> Job:
        return self._renew(self.client.transport.send("POST", f"{self.path}{action}/", {}))

    # --- results --------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[Checkpoint]:
        """Return the job's durable states."""
        return [read(Checkpoint, item) for item in self.client.transport.pages(f"{self.path}checkpoints/")]

    def recoveries(self) -> list[Recovery]:
        """Return the job's recoveries, newest first."""
        return [read(Recovery, item) for item in self.client.transport.pages(f"{self.path}recoveries/")]

    def memory_point(self) -> dict[str, Any]:
        """Return where its newest recovery points are, and the current cost of losing each server."""
        return dict(self.client.transport.get(f"{self.path}memory-point/"))

    def artifacts(self) -> list[Artifact]:
        """Return the completed job's files: final weights, metrics, and files that the function saved."""
        return [read(Artifact, item) for item in self.client.transport.pages(f"{self.path}artifacts/")]

    def curve(self) -> dict[str, Any]:
        """Return the measured scaling curve on which the promise is based."""
        document = self.client.transport.get(f"{self.path}curve/")
        return document if isinstance(document, dict) else {"levels": document or []}

    def communication(self) -> dict[str, Any]:
        """Return how its gradients are sent: the plan, its prediction, alternatives and measurements."""
        document = self.client.transport.get(f"{self.path}communication/")
        return document if isinstance(document, dict) else {}

    def experts(self) -> dict[str, Any]:
        """Return how its mixture-of-experts layers use their experts, and each expert's hosts."""
        return dict(self.client.transport.get(f"{self.path}experts/"))

    def plan(self) -> dict[str, Any]:
        """Return planned and actual GPUs over time."""
        document = self.client.transport.get(f"{self.path}plan/")
        return document if isinstance(document, dict) else {"planned": document or []}

    def download(
        self,
        artifact: Artifact,
        folder: str | os.PathLike[str] = ".",
        *,
        on_progress: DownloadProgress | None = None,
    ) -> Path:
        """Download one artifact into a folder; its SHA-256 digest is checked before the file gets its name.

        Raises:
            ChecksumError: the bytes are not those that the platform stored.
        """
        target = _target_path(Path(folder), artifact.name)
        with self.client.transport.stream(f"{self.path}artifacts/{quote(artifact.name)}/") as response:
            digest, done = hashlib.sha256(), 0
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
            except OSError as error:
                raise PunctualError(f"{target} cannot be written: {error.strerror}") from error
            temporary = Path(name)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    for piece in response.iter_bytes():
                        file.write(piece)
                        digest.update(piece)
                        done += len(piece)
                        if on_progress is not None:
                            on_progress(done, artifact.size_bytes)
                if artifact.sha256 and digest.hexdigest() != artifact.sha256:
                    raise ChecksumError(
                        f"{artifact.name} arrived damaged; nothing was kept", hint="try again"
                    )
                temporary.chmod(0o644)
                temporary.replace(target)
            except OSError as error:
                raise PunctualError(f"{target} cannot be written: {error.strerror}") from error
            finally:
                temporary.unlink(missing_ok=True)
        return target


def _target_path(folder: Path, name: str) -> Path:
    """Return an artifact's target. Its name comes from a training function, so it must not leave the
    folder."""
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\\" in name or "\0" in name:
        raise InvalidInputError("the artifact's name leads out of the folder; it is not downloaded")
    return folder.joinpath(*parts)
