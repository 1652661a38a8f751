"""Requests to the platform's HTTP servers and their answers: every answer is recorded."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

import httpx

PROBLEM = "application/problem+json"
#: An address or headers so long that the HTTP server refuses them before the platform sees the request.
BY_THE_SERVER = (414, 431)


@dataclass(frozen=True)
class Answer:
    """One answer. ``attack``: the purpose of the request; ``retry_after``: that header as received."""

    who: str
    attack: str
    method: str
    path: str
    status: int
    content_type: str
    retry_after: str

    @property
    def is_a_fault(self) -> bool:
        """Return whether the answer is a fault: an unhandled error, or one without a problem document.

        A 503 with `Retry-After` is no fault: the platform sends it to limit its concurrent work.
        """
        if self.status >= 500:
            return self.status != httpx.codes.SERVICE_UNAVAILABLE or not self.retry_after
        return (
            self.status >= 400
            and self.status not in BY_THE_SERVER
            and not self.content_type.startswith(PROBLEM)
        )


@dataclass
class Ledger:
    """All answers of a run, and the connections that broke. Shared by threads."""

    answers: list[Answer] = field(default_factory=list)
    broken: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, answer: Answer) -> None:
        with self._lock:
            self.answers.append(answer)

    def note_broken(self, who: str, error: Exception) -> None:
        """Record a request without an answer: connections break when a server is killed."""
        with self._lock:
            self.broken[f"{who}: {type(error).__name__}"] += 1

    def by_attack(self) -> dict[str, Counter[int]]:
        """Return the statuses of each kind of request, in order of the kinds' first appearance."""
        statuses: dict[str, Counter[int]] = {}
        for answer in self.answers:
            statuses.setdefault(answer.attack, Counter())[answer.status] += 1
        return statuses

    def faults(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.is_a_fault]


class RecordingTransport(httpx.BaseTransport):
    """Sends a client's requests and records each answer. ``attack``: what the client's next request is
    for."""

    def __init__(self, who: str, ledger: Ledger, inner: httpx.BaseTransport | None = None) -> None:
        self.who = who
        self.attack = f"{who}: as the command line does"
        self._ledger = ledger
        self._inner = inner or httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        try:
            response = self._inner.handle_request(request)
        except httpx.TransportError as error:
            self._ledger.note_broken(self.who, error)
            raise
        self._ledger.note(
            Answer(
                self.who,
                self.attack,
                request.method,
                request.url.path,
                response.status_code,
                response.headers.get("Content-Type", ""),
                response.headers.get("Retry-After", ""),
            )
        )
        return response

    def close(self) -> None:
        self._inner.close()
