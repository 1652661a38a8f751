"""A platform with scripted answers: for broken connections, outages and answers that the real one never
gives.

The real API's answers are tested in `test_real_api.py`.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

Answer = Callable[[Request], Any]


@dataclass(frozen=True)
class Seen:
    """One received request."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *arguments: Any) -> None:
        """Print nothing."""


@dataclass
class FakePlatform:
    """Answers `answers["GET jobs/"]` with a value or by a function of the request.

    `trouble` holds failures for the next requests, in order: `"drop"` closes the connection after the request
    arrived, a number is an HTTP status, a pair is a status with headers.
    """

    answers: dict[str, Any] = field(default_factory=dict)
    trouble: deque[Any] = field(default_factory=deque)
    seen: list[Seen] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def __enter__(self) -> Self:
        self._server = make_server("127.0.0.1", 0, self._application, threaded=True, request_handler=_Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        me = {"username": "ada", "is_operator": False, "projects": [{"name": "vision", "role": "owner"}]}
        self.answers["GET me/"] = me | {"stream_url": ""}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def requests(self, name: str) -> list[Seen]:
        """Return the requests of one method and path, such as `POST jobs/`."""
        return [seen for seen in self.seen if f"{seen.method} {seen.path}" == name]

    def _application(self, environ: dict[str, Any], start_response: Any) -> Any:
        request = Request(environ)
        path = request.path.removeprefix("/api/v1/")
        self.seen.append(
            Seen(
                request.method,
                path,
                request.args.to_dict(flat=False),
                dict(request.headers),
                request.get_data(),
            )
        )
        return self._respond(request, f"{request.method} {path}", environ)(environ, start_response)

    def _respond(self, request: Request, name: str, environ: dict[str, Any]) -> Response:
        if self.trouble:
            trouble = self.trouble.popleft()
            if trouble == "drop":
                environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
                return Response(status=500)
            if trouble is not None:
                status, headers = trouble if isinstance(trouble, tuple) else (trouble, {})
                return problem(status, headers=headers)
        self.counted[name] += 1
        answer = self.answers.get(name)
        if callable(answer):
            answer = answer(request)
        if answer is None:
            return problem(404)
        if isinstance(answer, Response):
            return answer
        return Response(json.dumps(answer), content_type="application/json")


def problem(status: int, *, headers: dict[str, str] | None = None, **members: Any) -> Response:
    """Return an RFC 9457 document."""
    document = {
        "type": "about:blank",
        "title": "Trouble",
        "status": status,
        "detail": f"trouble {status}",
        **members,
    }
    return Response(
        json.dumps(document), status=status, headers=headers, content_type="application/problem+json"
    )


def page(*items: Any) -> dict[str, Any]:
    """Return one page of a list."""
    return {"next": None, "previous": None, "results": list(items)}


def time_in(seconds: float) -> str:
    """Return a moment in `seconds` from now as RFC 3339."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def job_document(state: str = "admitted", **members: Any) -> dict[str, Any]:
    """Return a job as the API writes it."""
    decision = {"submitted": "pending", "profiling": "pending", "declined": "declined"}.get(state, "admitted")
    verdict = {
        "decision": decision,
        "reason_code": "",
        "reason": "Needs 4 GPUs from now on, had 8.",
        "minimum_satisfactory_share": [{"start": time_in(0), "end": time_in(600), "gpus": 4}],
        "planned_start_at": time_in(5),
        "planned_finish_at": time_in(900),
        "slack_seconds": 300.0,
        "offer": None,
        "decision_id": 1,
        "needs_profiling": False,
    }
    document = {
        "id": "abcdefghjkmn",
        "project": "vision",
        "owner": "ada",
        "name": "train",
        "labels": {},
        "function": {"id": 1, "name": "train", "version": 1, "digest": "d" * 64, "entry": "train:Train"},
        "hyperparameters": {"global_batch_size": 256},
        "termination": {"max_iterations": 500, "target": None},
        "service_class": "slo",
        "deadline_at": time_in(1200),
        "data": [],
        "checkpoint_seconds": 60.0,
        "seed": 0,
        "state": state,
        "promised": decision == "admitted",
        "promise_outcome": "open",
        "iterations_done": 0,
        "progress": 0.0,
        "iterations_per_second": 0.0,
        "gpus": 0,
        "gpu_kind": None,
        "refused_kinds": {},
        "emulated": False,
        "planned_start_at": time_in(5),
        "planned_finish_at": time_in(900),
        "slack_seconds": 300.0,
        "submitted_at": time_in(0),
        "failure": None,
        "final_metrics": None,
    }
    changes = members.pop("verdict", {})
    return document | {"verdict": verdict | changes} | members


def function_document(**members: Any) -> dict[str, Any]:
    """Return an uploaded function as the API writes it."""
    return {
        "id": 1,
        "project": "vision",
        "name": "train",
        "version": 1,
        "digest": "d" * 64,
        "entry": "train:Train",
        "created_at": time_in(0),
    } | members
