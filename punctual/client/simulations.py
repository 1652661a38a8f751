"""Simulations: what would be with other policies or another cluster. For operators."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from punctual.client.reading import unreadable
from punctual.client.transport import Transport
from punctual.errors import WaitTimeoutError

Study = dict[str, Any]
_SECONDS_BETWEEN_LOOKS = 1.0
_FINAL = ("done", "cancelled", "failed")


class Simulations:
    """Start studies and read what came of them, as the REST API's documents."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def choices(self) -> dict[str, Any]:
        """Traces, policies and limits, and the live cluster in short."""
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
        """Start a run of each policy on each number of servers, beside each number of inference servers.

        `newcomers` are rules for them, "open" and "prudent": a run for each. Inference servers lend what they
        can spare; 0 is a run without, and so is leaving them out. `asked` are members of the REST API's
        request, `trace="elasticflow"`, `source="live"` or `inference_usage="daily"` among them. What was
        decided for you stands in the study's `notes`.

        Raises:
            InvalidRequestError: an unknown trace or policy, or more than may be asked; it says what there is.
        """
        body = {"policies": list(policies), "servers": list(servers), **asked}
        if inference_servers:
            body["inference_servers"] = list(inference_servers)
        if newcomers:
            body["newcomers"] = list(newcomers)
        return self._document("POST", "simulations/", body)

    def studies(self) -> Iterator[Study]:
        """All studies, newest first."""
        return self._transport.pages("simulations/", {"page_size": 50})

    def study(self, study_id: int, *, comparison: bool = False) -> Study:
        """One study with its runs and their summaries, and with `comparison` the figures of all."""
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
        """The study once all of its runs have ended.

        Raises:
            WaitTimeoutError: they have not in time; they go on.
        """
        ends_at = time.monotonic() + timeout_seconds
        while True:
            study = self.study(study_id)
            if on_look is not None:
                on_look(study)
            if all(run["state"] in _FINAL for run in study["runs"]):
                return study
            if time.monotonic() > ends_at:
                raise WaitTimeoutError(f"study {study_id} is not finished after {timeout_seconds:g} s")
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
