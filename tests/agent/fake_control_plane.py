"""A control plane in a few lines: it records what an agent reports and sends the desired state that a test
sets."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from workers.runtime.at_home.local_agent import runtime_plan

BUNDLE = b"class Function: ...\n"
BUNDLE_DIGEST = hashlib.sha256(BUNDLE).hexdigest()


def zip_bundle(files: Mapping[str, bytes]) -> bytes:
    """Return a zip with these files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def generation(job: str = "job", number: int = 1, **changes: Any) -> dict[str, Any]:
    """Return an entry of the desired state: one worker on GPU 0, with the goal to train from nothing."""
    return {
        "job": job,
        "generation": number,
        "epoch": 1,
        "purpose": "training",
        "goal": "train",
        "start": {"from": "nothing"},
        "world_size": 1,
        "master_address": "127.0.0.1",
        "master_port": 21000,
        "secret": "s",
        "workers": [{"rank": 0, "gpu_index": 0, "handover_port": 21001}],
        "runtime_plan": runtime_plan(),
        "function": {"digest": BUNDLE_DIGEST, "entry": "function:Function", "requirements_digest": None},
        "hyperparameters": {"global_batch_size": 4},
        "termination": {"max_iterations": 1_000_000, "target": None},
        "seed": 0,
        "checkpoint_seconds": 60,
        "data": [],
        "profile": None,
        **changes,
    }


def recovery_point(*stored: dict[str, Any], readers: int = 1) -> dict[str, Any]:
    """Return the start instruction for the state with the shards that these events reported."""
    shards = [
        {
            "id": event["rank"],
            "reader": event["rank"] % readers,
            "bytes": event["bytes"],
            "sha256": event["sha256"],
            "holders": [{"tier": "store", "uri": event["uri"]}],
        }
        for event in sorted(stored, key=lambda event: event["rank"])
    ]
    first = stored[0]
    return {
        "from": "checkpoint",
        "generation": first["generation"],
        "iteration": first["iteration"],
        "world_size": len(stored),
        "shards": shards,
    }


class FakeControlPlane:
    """Serves one agent. `lock` guards all attributes that tests read or set."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.token = "token-1"
        self.credential = "credential-1"
        self.lease_seconds = 30.0
        self.epoch = 1
        self.version = 1
        self.generations: list[dict[str, Any]] = []
        self.remembered: list[str] = []
        self.spare: list[str] = []
        self.memory: dict[str, Any] | None = None
        self.bundles: dict[str, bytes] = {BUNDLE_DIGEST: BUNDLE}
        self.environments: dict[str, bytes] = {}
        self.enrolments: list[dict[str, Any]] = []
        self.reports: list[dict[str, Any]] = []
        self.events: dict[str, dict[str, Any]] = {}
        self.log: dict[tuple[str, int, int], str] = {}
        self.gaps: set[tuple[str, int, int]] = set()
        self.metrics: list[dict[str, Any]] = []
        self.fetched: list[str] = []
        self.refusals: list[int] = []  # statuses of the next reports
        self.acknowledge = True
        self.refuse_event_kind: str | None = None
        self._streams: list[threading.Event] = []
        handler = type("Handler", (_Handler,), {"plane": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def want(self, *generations: dict[str, Any], epoch: int | None = None, wake: bool = True) -> None:
        """Set the desired state and wake the agent."""
        with self.lock:
            self.generations = list(generations)
            self.version += 1
            self.epoch = epoch or self.epoch
            if wake:
                for stream in self._streams:
                    stream.set()

    @property
    def workers(self) -> list[dict[str, Any]]:
        """Return the workers of the latest report."""
        with self.lock:
            return self.reports[-1]["workers"] if self.reports else []

    def worker(self, job: str = "job", number: int = 1, rank: int = 0) -> dict[str, Any]:
        """Return one worker of the latest report, or an empty dict if it is not reported."""
        identity = (job, number, rank)
        workers = [
            item for item in self.workers if (item["job"], item["generation"], item["rank"]) == identity
        ]
        return workers[0] if workers else {}

    def phase(self, job: str = "job", number: int = 1, rank: int = 0) -> str | None:
        """Return the phase of one worker, or None if it is not reported."""
        return self.worker(job, number, rank).get("phase")

    def events_of(self, kind: str) -> list[dict[str, Any]]:
        """Return all events of one kind."""
        with self.lock:
            return [event for event in self.events.values() if event["kind"] == kind]

    def log_of(self, job: str = "job", number: int = 1, rank: int = 0) -> str:
        """Return the log of one worker as received."""
        with self.lock:
            return self.log.get((job, number, rank), "")

    def take_report(self, body: dict[str, Any]) -> tuple[int, Any]:
        """Process a report as the control plane does; return the status and the answer."""
        with self.lock:
            if self.refusals:
                status = self.refusals.pop(0)
                return status, {"title": "refused", "detail": "as the test wants"}
            if any(event["kind"] == self.refuse_event_kind for event in body["events"]):
                return 400, {"title": "bad event"}
            assert all(body["sequence"] > report["sequence"] for report in self.reports[-1:])
            self.reports.append(body)
            for event in body["events"]:
                self.events.setdefault(event["id"], event)
            self.metrics.extend(body["metrics"])
            for piece in body["logs"]:
                key = (piece["job"], piece["generation"], piece["rank"])
                text_before = self.log.get(key, "").encode()
                if "bytes of output are left out here" in piece["text"] or key in self.gaps:
                    # The report names the gap: offsets continue after it.
                    self.gaps.add(key)
                    self.log[key] = text_before.decode() + piece["text"]
                    continue
                # After a lost answer a piece is sent again: its text must be the same, without a gap.
                assert piece["offset"] <= len(text_before)
                repeated = text_before[piece["offset"] :]
                assert piece["text"].encode().startswith(repeated)
                self.log[key] = (text_before[: piece["offset"]] + piece["text"].encode()).decode()
            acknowledged = [event["id"] for event in body["events"]] if self.acknowledge else []
            return 200, {
                "lease_seconds": self.lease_seconds,
                "epoch": self.epoch,
                "desired_version": self.version,
                "acknowledged": acknowledged,
            }

    def desired(self) -> dict[str, Any]:
        """Return the desired state."""
        with self.lock:
            return {
                "epoch": self.epoch,
                "desired_version": self.version,
                "generations": list(self.generations),
                "remembered": list(self.remembered),
                "spare": list(self.spare),
                "memory": self.memory,
            }

    def new_stream(self) -> threading.Event:
        """Return the event that wakes a new follower of the stream."""
        with self.lock:
            self._streams.append(threading.Event())
            return self._streams[-1]


class _Handler(BaseHTTPRequestHandler):
    plane: FakeControlPlane
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/agent/v1/enrol":
            with self.plane.lock:
                self.plane.enrolments.append(body)
                accepted = body["token"] == self.plane.token
                self.plane.token = "used"
            if accepted:
                answer = {"lease_seconds": 30.0, "suspect_seconds": 6.0, "report_seconds": 0.2}
                self._answer(201, {"server_id": "server-1", "credential": self.plane.credential, **answer})
            else:
                self._answer(403, {"title": "Forbidden", "detail": "the token is not valid"})
        elif self._allowed():
            self._answer(*self.plane.take_report(body))

    def do_GET(self) -> None:
        if not self.path.startswith("/agent/v1/public/") and not self._allowed():
            return
        kind, _, name = self.path.removeprefix("/agent/v1/").partition("/")
        with self.plane.lock:
            self.plane.fetched.append(self.path)
        if kind == "desired":
            self._answer(200, self.plane.desired())
        elif kind == "wakeups":
            self._stream()
        else:
            content = (self.plane.bundles if kind == "functions" else self.plane.environments).get(name)
            if content is None:
                self._answer(404, {"title": "not found"})
            else:
                self._answer(200, content)

    def _allowed(self) -> bool:
        if self.headers["Authorization"] == f"Agent {self.plane.credential}":
            return True
        self._answer(401, {"title": "who are you"})
        return False

    def _answer(self, status: int, body: Any) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        wake = self.plane.new_stream()
        try:
            while True:
                woken = wake.wait(0.5)
                wake.clear()
                text = f"event: desired\ndata: {self.plane.version}\n\n" if woken else ": still here\n\n"
                self.wfile.write(text.encode())
                self.wfile.flush()
        except OSError:
            return

    def log_message(self, *arguments: object) -> None:
        """Print nothing: tests read reports, not access logs."""


def identities(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Return job and generation of each event."""
    return [(event["job"], event["generation"]) for event in events]
