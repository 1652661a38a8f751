"""A serving worker's answers to good, bad and hostile requests, over real sockets."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from punctual.protocol.limits import SERVING_BODY_BYTES, SERVING_INPUTS
from workers.serving import application, connections
from workers.serving.limits import ServingLimits
from workers.serving.server import ServingServer, StuckError, listen

TOKEN = "token-of-the-deployment"
KNOWN = {"Authorization": f"Bearer {TOKEN}"}
SECONDS = 60.0


class Function:
    """Doubles numbers; can be blocked."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def __call__(self, inputs: list[Any]) -> list[Any]:
        self.entered.set()
        assert self.go.wait(SECONDS)
        if "defect" in inputs:
            raise KeyError("defect")
        if not all(isinstance(value, int) for value in inputs):
            raise ValueError("an input is a whole number")
        return [2 * value for value in inputs]


class Served:
    """A server of a function, and a client of it."""

    def __init__(self, **limits: Any) -> None:
        self.function = Function()
        self.digests = [hashlib.sha256(name.encode()).hexdigest() for name in ("another", TOKEN)]
        listener = listen("127.0.0.1", 0)
        self.address = listener.getsockname()
        self.server = ServingServer(
            listener, self.function, ServingLimits(**limits), 3, lambda: self.digests, ends_process=False
        )
        self.server.start()
        url = f"http://127.0.0.1:{self.address[1]}"
        self.client = httpx.Client(base_url=url, headers=KNOWN, timeout=SECONDS)

    def predict(self, *inputs: Any) -> httpx.Response:
        return self.client.post("/predict", json={"inputs": inputs})

    def hold(self) -> threading.Thread:
        """Block the function with a request; return the thread that waits for its answer."""
        self.function.go.clear()
        self.function.entered.clear()
        asking = threading.Thread(target=self.predict, args=(0,))
        asking.start()
        assert self.function.entered.wait(SECONDS)
        return asking

    def counted(self, name: str) -> int:
        count: int = self.client.get("/stats").json()[name]
        return count

    def close(self) -> None:
        self.function.go.set()
        self.client.close()
        self.server.stop()


@contextmanager
def served(**limits: Any) -> Iterator[Served]:
    made = Served(**limits)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with served() as made:
        yield made


def check(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    document: dict[str, Any] = answer.json()
    assert (answer.status_code, document["status"], document["code"]) == (status, status, code), document
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert document["detail"]
    return document


def test_inputs_are_answered_by_outputs(shared: Served) -> None:
    before = shared.client.get("/stats").json()
    answer = shared.predict(1, 2, 3)
    assert answer.json() == {"outputs": [2, 4, 6], "generation": 3}
    after = shared.client.get("/stats").json()
    assert (after["requests"] - before["requests"], after["inputs"] - before["inputs"]) == (1, 3)
    assert 0.0 < after["latency_seconds"]["p99"] < SECONDS
    for path in ("/health", "/ready"):
        assert shared.client.get(path).json() == {"state": "serving", "generation": 3}


@pytest.mark.parametrize("path", ["/predict", "/health", "/ready", "/stats", "/other"])
@pytest.mark.parametrize("told", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, "Bearer \xff"])
def test_requests_without_a_token_are_refused(shared: Served, path: str, told: str) -> None:
    answer = shared.client.get(path, headers={b"Authorization": told.encode("latin-1")})
    check(answer, 401, "unknown_token")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_tokens_change_while_it_serves() -> None:
    with served() as made:
        made.digests[:] = [hashlib.sha256(b"later").hexdigest()]
        check(made.client.get("/health"), 401, "unknown_token")
        assert made.client.get("/health", headers={"Authorization": "bearer later"}).status_code == 200


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"", "malformed", "no JSON"),
        (b"{", "malformed", "no JSON"),
        (b"\xff\xfe\x00", "malformed", "no JSON"),
        (b"[" * 100_000, "malformed", "nested too deeply"),
        (b'{"inputs": [NaN]}', "malformed", "NaN is no number"),
        (b'{"inputs": [-Infinity]}', "malformed", "-Infinity is no number"),
        (b'{"inputs": [1e400]}', "malformed", "1e400 is beyond"),
        (b'{"inputs": [' + b"1" * 5000 + b"]}", "malformed", "no JSON"),
        (b"[1]", "invalid", '{"inputs": [...]}'),
        (b'{"inputs": [1], "more": 1}', "invalid", '{"inputs": [...]}'),
        (b'{"inputs": 1}', "invalid", "must be a list"),
        (b'{"inputs": []}', "invalid", "the list has 0 inputs"),
        (json.dumps({"inputs": [1] * (SERVING_INPUTS + 1)}).encode(), "invalid", "257 inputs; 1 to 256"),
        (b'{"inputs": ["one"]}', "invalid", "an input is a whole number"),
    ],
)
def test_bad_body_is_a_precise_400_and_no_failure(
    shared: Served, content: bytes, code: str, words: str
) -> None:
    before = shared.client.get("/stats").json()
    answer = shared.client.post("/predict", content=content, headers={"Content-Type": "application/json"})
    assert words in check(answer, 400, code)["detail"]
    after = shared.client.get("/stats").json()
    assert (after["rejected"] - before["rejected"], after["failed"]) == (1, before["failed"])


def test_other_content_types_and_methods_are_refused(shared: Served) -> None:
    check(shared.client.post("/predict", data={"inputs": "1"}), 415, "unsupported_media_type")
    answer = shared.client.get("/predict")
    check(answer, 405, "method_not_allowed")
    assert answer.headers["Allow"] == "POST"
    check(shared.client.get("/"), 404, "not_found")
    check(shared.client.post("/predict/..", json={"inputs": [1]}), 404, "not_found")


def parts(count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield b" " * (SERVING_BODY_BYTES // 2)


def test_huge_bodies_are_refused_and_the_answer_is_read(shared: Served) -> None:
    as_json = {"Content-Type": "application/json"}
    declared = shared.client.post("/predict", content=b" " * (8 * SERVING_BODY_BYTES), headers=as_json)
    assert str(SERVING_BODY_BYTES) in check(declared, 413, "too_large")["detail"]
    check(shared.client.post("/predict", content=parts(16), headers=as_json), 413, "too_large")
    check(
        shared.client.post(
            "/predict", content=parts(16), headers={**as_json, "Authorization": "Bearer wrong"}
        ),
        401,
        "unknown_token",
    )
    assert shared.client.post("/predict", content=b'{"inputs": [1]}', headers=as_json).json()["outputs"] == [
        2
    ]


def test_bodies_have_a_limit_together(shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "ALL_BODIES_BYTES", 10)
    answer = shared.predict(1)
    check(answer, 503, "busy")
    assert answer.headers["Retry-After"] == "1"
    monkeypatch.undo()
    assert shared.predict(1).status_code == 200, "what was refused is not held any more"


def test_body_that_never_ends_is_cut_off_and_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    head = f"POST /predict HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 100\r\n"
    with served() as made, socket.create_connection(made.address, timeout=SECONDS) as slow:
        slow.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n{")
        assert made.predict(1).json()["outputs"] == [2]
        monkeypatch.setattr(connections, "GRACE_SECONDS", 0.0)
        assert slow.recv(65536).startswith(b"HTTP/1.1 408 ")
        # The caller disconnects; nothing of the request remains.
    assert made.server.counts.report(0)["requests"] == 1


def test_failure_is_a_500_of_its_own_request(shared: Served) -> None:
    failed = shared.counted("failed")
    assert "KeyError: 'defect'" in check(shared.predict("defect"), 500, "function_error")["detail"]
    assert shared.predict(1).status_code == 200
    assert shared.counted("failed") == failed + 1


def test_full_queue_answers_503_with_retry_after() -> None:
    with served(most_inputs=1, most_waiting=1) as made:
        threads = [made.hold()]
        threads.append(threading.Thread(target=made.predict, args=(1,)))
        threads[1].start()
        while made.server.waiting < 1:
            pass
        answer = made.predict(2)
        assert "1 inputs wait; the limit is 1" in check(answer, 503, "busy")["detail"]
        assert answer.headers["Retry-After"] == "1"
        made.function.go.set()
        for thread in threads:
            thread.join()
        assert (made.counted("refused"), made.counted("requests")) == (1, 2)


def test_late_answer_is_a_504() -> None:
    with served(answer_seconds=0.0) as made:
        made.function.go.clear()
        check(made.predict(1), 504, "late")
        made.server.check()  # the call itself may take longer


def test_call_that_never_returns_ends_the_server() -> None:
    with served(predict_seconds=0.0) as made:
        made.function.go.clear()
        document = check(made.predict(1), 504, "late")
        assert "predict() did not return within 0 s" in document["detail"]
        with pytest.raises(StuckError) as raised:
            made.server.check()
        assert "self.go.wait(SECONDS)" in raised.value.where
        check(made.predict(2), 503, "draining")


def test_draining_server_answers_and_sends_clients_away() -> None:
    with served() as made:
        made.server.is_draining = True
        answer = made.predict(1)
        assert answer.json()["outputs"] == [2]
        assert answer.headers["Connection"] == "close"
        assert made.client.get("/health").json()["state"] == "draining"
        assert made.client.get("/ready").status_code == 503


def test_waiting_requests_are_answered_when_the_server_stops() -> None:
    with served(most_inputs=1) as made:
        answers: list[httpx.Response] = []
        threads = [made.hold()]
        threads.append(threading.Thread(target=lambda: answers.append(made.predict(1))))
        threads[1].start()
        while made.server.waiting < 1:
            pass
        stopping = threading.Thread(target=made.server.stop)
        stopping.start()
        made.function.go.set()
        for thread in (*threads, stopping):
            thread.join()
        assert answers[0].json()["outputs"] == [2]
        made.server = Served().server  # the end of the block closes this server, since the first has stopped
