"""A hostile user's requests to the platform: each attack is one or a few related requests.

The bodies are drawn from the attacker's own random numbers, so a seed fixes all of them. One rule holds for
all answers: no fault (`Answer.is_a_fault`), and ``refused`` attacks get no 2xx.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tests.chaos.doors import Ledger, RecordingTransport

#: A body is sent unchanged, since the attacks are requests that no client would send.
Send = Callable[..., httpx.Response]

FUNCTION = (
    "from punctual import TrainingFunction\n\n\nclass Bundled(TrainingFunction):\n    def init_model(self): "
    "...\n"
)


@dataclass(frozen=True)
class Attack:
    """One kind of request. ``refused``: no part of it may be accepted."""

    name: str
    run: Callable[[Attacker, random.Random], None]
    refused: bool = True


class Attacker:
    """A user who sends raw HTTP to the web process and to the agents' API."""

    def __init__(
        self,
        who: str,
        token: str,
        project: str,
        web_url: str,
        agent_url: str,
        ledger: Ledger,
        inner: httpx.BaseTransport | None = None,
    ) -> None:
        self.project = project
        self.stranger_job = "00000000-0000-4000-8000-000000000000"
        self._transport = RecordingTransport(who, ledger, inner)
        self._http = httpx.Client(transport=self._transport, timeout=90.0)
        self._web, self._agents = web_url, agent_url
        self._headers = {"Authorization": f"Bearer {token}"}

    def close(self) -> None:
        self._http.close()

    def attack(self, attack: Attack, chance: random.Random) -> None:
        """Send it. The transport records broken connections; the attacker continues."""
        self._transport.attack = f"request: {attack.name}"
        try:
            attack.run(self, chance)
        except httpx.TransportError:
            return

    def api(self, method: str, path: str, **what: Any) -> httpx.Response:
        headers = {**self._headers, **what.pop("headers", {})}
        return self._http.request(method, f"{self._web}/api/v1/{path}", headers=headers, **what)

    def post(self, path: str, body: Any) -> httpx.Response:
        """Return JSON as Python writes it, with lone surrogates, NaN and infinities."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.api("POST", path, content=content, headers={"Content-Type": "application/json"})

    def agents(self, path: str, content: bytes, credential: bytes = b"Agent pa_made-up") -> httpx.Response:
        headers = {b"Content-Type": b"application/json", b"Authorization": credential}
        return self._http.post(f"{self._agents}/agent/v1/{path}", content=content, headers=headers)

    def job(self, **more: Any) -> dict[str, Any]:
        """Return a body that would be accepted but for ``more``."""
        return {
            "function": "mischief",
            "project": self.project,
            "name": "taken",
            "hyperparameters": {"global_batch_size": 64, "mischief": "clean_exit"},
            "termination": {"max_iterations": 10},
        } | more


def _too_many_iterations(attacker: Attacker, chance: random.Random) -> None:
    iterations = chance.choice(
        (10**12, 10**18, 10**400, -1, 0, 1e300, float("inf"), float("nan"), "10", None, True)
    )
    deadline: dict[str, Any] = chance.choice(({}, {"deadline_seconds": 20}, {"deadline_seconds": 1e300}))
    attacker.post("jobs/", attacker.job(termination={"max_iterations": iterations}, **deadline))


def _absurd_deadlines(attacker: Attacker, chance: random.Random) -> None:
    values: tuple[Mapping[str, Any], ...] = (
        {"deadline_seconds": 1e18}, {"deadline_seconds": -5}, {"deadline_seconds": 0},
        {"deadline_seconds": float("nan")},
        {"deadline_at": "9999-12-31T23:59:59Z"}, {"deadline_at": "0001-01-01T00:00:00Z"}, {"deadline_at": 17},
        {"deadline_at": "2030-01-01T00:00:00"}, {"deadline_seconds": "soon"},
    )  # fmt: skip
    path = chance.choice(("jobs/", "what-if/"))
    attacker.post(path, attacker.job(**chance.choice(values)))


def _deep_json(attacker: Attacker, chance: random.Random) -> None:
    depth = chance.choice((65, 900, 20_000))
    nested: bytes = b"[" * depth + b"]" * depth
    target = chance.choice(("hyperparameters", "labels", "body", "unclosed", "objects"))
    if target == "body":
        attacker.post(chance.choice(("jobs/", "projects/", "login/", "tokens/", "what-if/")), nested)
    elif target == "unclosed":
        attacker.post("jobs/", b"[" * depth)
    elif target == "objects":
        attacker.post("jobs/", b'{"a":' * depth + b"1" + b"}" * depth)
    else:
        body = json.dumps(attacker.job(**{target: {"a": "HERE"}})).encode()
        attacker.post("jobs/", body.replace(b'"HERE"', nested))


def _brackets_for_agents(attacker: Attacker, chance: random.Random) -> None:
    body = chance.choice(
        (b"[" * 20_000, b"{" * 20_000, b'{"a":' * 20_000, b"\xff\x00", b"", b"17", b'{"token": "\\ud800"}')
    )
    attacker.agents(chance.choice(("enrol", "report")), body)


def _forged_reports(attacker: Attacker, chance: random.Random) -> None:
    report = {
        "sequence": chance.choice((1, 10**30, -1)), "boot_id": "x", "epoch_seen": 10**9,
        "desired_version": 10**9,
        "workers": [{"key": "k", "job": attacker.stranger_job, "generation": 1, "rank": 0, "gpu_index": 0,
        "phase": "failed"}],
        "events": [{"id": str(uuid.UUID(int=chance.getrandbits(128))), "kind": "completed",
        "job": attacker.stranger_job}],
    }  # fmt: skip
    credential = chance.choice((b"Agent pa_made-up", b"Agent \x80", b"Bearer x", b"Agent " + b"x" * 4000))
    attacker.agents("report", json.dumps(report).encode(), credential)


def _names_that_are_none(attacker: Attacker, chance: random.Random) -> None:
    name = chance.choice(
        ("nul\0", "\ud800", "turned\u202eeman", "zero\u200bwidth", "n" * 100_000, "", "line\nbreak", 17)
    )
    what: Mapping[str, Any] = chance.choice(
        (
            {"name": name},
            {"labels": {"a": name}},
            {"labels": {str(name): "a"}},
            {"seed": name},
            {"project": name},
        )
    )
    attacker.post("jobs/", attacker.job(**what))


def _too_many_of_everything(attacker: Attacker, chance: random.Random) -> None:
    what: Mapping[str, Any] = chance.choice(
        (
            {"labels": {f"label-{number}": "x" for number in range(20_000)}},
            {
                "hyperparameters": {"global_batch_size": 64}
                | {f"h{number}": number for number in range(200_000)}
            },
            {"data": [{"name": f"d{number}", "url": "https://example.org/"} for number in range(5_000)]},
            {"gpus": 8}, {"hyperparameters": {"global_batch_size": 64, "num_gpus": 8}},
            {"hyperparameters": {"global_batch_size": chance.choice((0, -1, 10**30, 1.5, "64", None))}},
        )
    )  # fmt: skip
    attacker.post("jobs/", attacker.job(**what))


def _costly_bundle(attacker: Attacker, chance: random.Random) -> None:
    literal = chance.choice(
        ("[" + "[[]]," * 300_000 + "]", "[" + "1," * 700_000 + "]", "[" + "{}," * 500_000 + "]")
    )
    _upload(attacker, f"{FUNCTION}\nx = {literal}\n# {chance.random()}\n".encode())


def _broken_bundle(attacker: Attacker, chance: random.Random) -> None:
    content: bytes = chance.choice(
        (
            b"(" * 100_000, b"-" * 200_000 + b"1", b"x = " + b"1+" * 200_000 + b"1", b"\x00" * 1000,
            b"PK\x03\x04" + bytes(500),
            b"\xff\xfe\xfd", b"", ("x = " + "[" * 5000 + "]" * 5000).encode(),
            b"class " + b"A" * 500_000 + b": pass",
        )
    )  # fmt: skip
    _upload(attacker, content, chance.choice(("f.py", "f.zip", "../../f.py", "f\u202eyp.exe", "n" * 3000)))


def _upload(attacker: Attacker, content: bytes, filename: str = "f.py") -> None:
    attacker.api(
        "POST",
        "functions/",
        data={"project": attacker.project, "name": "bundled"},
        files={"bundle": (filename, content, "application/octet-stream")},
    )


def _other_peoples_work(attacker: Attacker, chance: random.Random) -> None:
    """Steer and read a job of the honest project by its true id."""
    path = f"jobs/{attacker.stranger_job}/"
    method, more = chance.choice(
        (("POST", "cancel/"), ("POST", "pause/"), ("POST", "deadline/"), ("POST", "accept-offer/"),
        ("GET", ""), ("GET", "logs/"),
         ("GET", "artifacts/weights.pt/"), ("GET", "curve/"), ("POST", "clone/"))
    )  # fmt: skip
    attacker.api(method, path + more, **({"json": {}} if method == "POST" else {}))


def _operators_doors(attacker: Attacker, chance: random.Random) -> None:
    method, path = chance.choice(
        (("POST", "enrolment-tokens/"), ("POST", "agents/1/revoke/"), ("POST", "servers/1/drain/"),
        ("GET", "decisions/1/snapshot/"),
         ("POST", "inference-clusters/"), ("PATCH", "users/mallory/quota/"),
         ("DELETE", "projects/adas-work/"))
    )  # fmt: skip
    attacker.api(method, path, **({} if method in ("GET", "DELETE") else {"json": {}}))


def _odd_questions(attacker: Attacker, chance: random.Random) -> None:
    """Send invalid addresses and parameters, as a careless script does."""
    path = chance.choice(
        ("jobs/?page_size=100000", "jobs/?cursor=%00", "jobs/?label=%ED%A0%80",
        "jobs/?submitted_after=9999-99-99", "jobs/%00/",
         "jobs/?search=" + "a" * 5000, "jobs/not-an-id/", "functions/99999999999999999999/",
         "decisions/?cursor=xyz",
         "jobs/?state=flying", "projects/%E2%80%AE/", "jobs/?wait=1e9", "gpus/?page_size=-1")
    )  # fmt: skip
    attacker.api("GET", path)


REQUESTS = (
    Attack("10^12 iterations and worse", _too_many_iterations),
    Attack("absurd deadlines", _absurd_deadlines),
    Attack("JSON nested up to 20,000 deep", _deep_json),
    Attack("brackets for the agents' door", _brackets_for_agents),
    Attack("forged reports of agents", _forged_reports),
    Attack("names that are none", _names_that_are_none, refused=False),
    Attack("too many of everything", _too_many_of_everything, refused=False),
    Attack("1.5 MB of literals", _costly_bundle, refused=False),
    Attack("broken bundles", _broken_bundle),
    Attack("other people's jobs", _other_peoples_work),
    Attack("operators' doors", _operators_doors),
    Attack("odd questions", _odd_questions, refused=False),
)
