"""Simulations of other policies or another cluster. For operators."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from punctual.client.durations import format_duration
from punctual.client.reading import unreadable
from punctual.client.transport import Transport
from punctual.errors import WaitTimeoutError

Study = dict[str, Any]
_SECONDS_BETWEEN_LOOKS = 1.0
_FINAL = ("done", "cancelled", "failed")


class Simulations:
    """Start studies and read their results, as the REST API's documents."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def choices(self) -> dict[str, Any]:
        """Return traces, policies, limits, and a summary of the live cluster."""
        return self._document("GET", "simulations/choices/")

    def start(
        self,
        *,
        policies: Sequence[str],
        servers: Sequence[int] = (),
        inference_servers: Sequence[int] = (),
        newcomers: Sequence[str] = (),
        **asked: Any,
    ) -> Study:
        """Start a run of each policy, for each number of servers and each number of inference servers.

        `newcomers`: rules for newcomer jobs, "open" and "prudent", with a run for each. Inference servers
        lend spare capacity; 0 or an empty list is a run without them. `asked`: further members of the REST
        API's request, such as `trace="elasticflow"`, `source="live"` or `inference_usage="daily"`. The
        study's `notes` list the values chosen for you.

        Raises:
            InvalidRequestError: an unknown trace or policy, or too many runs; the message lists the choices.
        """
        body = {"policies": list(policies), "servers": list(servers), **asked}
        if inference_servers:
            body["inference_servers"] = list(inference_servers)
        if newcomers:
            body["newcomers"] = list(newcomers)
        return self._document("POST", "simulations/", body)

    def studies(self) -> Iterator[Study]:
        """Yield all studies, newest first."""
        return self._transport.pages("simulations/", {"page_size": 50})

    def study(self, study_id: int, *, comparison: bool = False) -> Study:
        """Return one study with its runs and their summaries, and with `comparison` all figures."""
        document = self._transport.get(f"simulations/{study_id}/", {"comparison": str(comparison).lower()})
        if not isinstance(document, dict):
            raise unreadable("a study")
        return document

    def wait(
        self,
        study_id: int,
        *,
        timeout_seconds: float = 3600.0,
        on_look: Callable[[Study], None] | None = None,
    ) -> Study:
        """Return the study once all of its runs have ended.

        Raises:
            WaitTimeoutError: they have not ended in time; they continue.
        """
        ends_at = time.monotonic() + timeout_seconds
        while True:
            study = self.study(study_id)
            if on_look is not None:
                on_look(study)
            if all(run["state"] in _FINAL for run in study["runs"]):
                return study
            if time.monotonic() > ends_at:
                raise WaitTimeoutError(
                    f"study {study_id} is not finished after {format_duration(timeout_seconds)}"
                )
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def cancel(self, study_id: int) -> Study:
        """Cancel the study's unfinished runs."""
        return self._document("POST", f"simulations/{study_id}/cancel/", {})

    def delete(self, study_id: int) -> None:
        """Delete the study with its results."""
        self._transport.send("DELETE", f"simulations/{study_id}/", None)

    def _document(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = self._transport.get(path) if method == "GET" else self._transport.send(method, path, body)
        if not isinstance(answer, dict):
            raise unreadable("a simulation")
        return answer
