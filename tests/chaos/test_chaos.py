"""A minute of all attacks on a real platform, and the parts of the harness that judge it."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.chaos import users
from tests.chaos.doors import Answer, Ledger
from tests.chaos.findings import Invariant, Report, invariants, is_kept
from tests.chaos.requests import REQUESTS, Attacker
from tests.chaos.run import chaos
from tests.chaos.watching import Seen

SEED = 11


@pytest.mark.live
@pytest.mark.timeout(900)
def test_a_minute_of_hostile_users_breaks_no_invariant() -> None:
    """Only invariants that do not depend on the clock: promises, answers, memory, rows. `make hostile` also
    judges the length of passes."""
    report = chaos(60.0, SEED, timing=False)
    print("\n".join(report.lines()))
    assert report.holds, "\n".join(["", *report.broken()])


def sent_by_attacker(seed: int) -> list[tuple[str, bytes]]:
    """Return the requests that an attacker sends in two rounds to a server that answers all alike."""
    sent: list[tuple[str, bytes]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        boundary = request.headers.get("Content-Type", "").partition("boundary=")[2].encode()
        content = request.read()
        sent.append((str(request.url), content.replace(boundary, b"") if boundary else content))
        return httpx.Response(404)

    attacker = Attacker(
        "mallory", "token", "project", "http://web", "http://agents", Ledger(), httpx.MockTransport(answer)
    )
    chance = random.Random(seed)
    for attack in islice(users.deck(chance, REQUESTS), 2 * len(REQUESTS)):
        attacker.attack(attack, chance)
    attacker.close()
    return sent


def test_a_seed_fixes_what_is_sent_and_in_which_order() -> None:
    assert sent_by_attacker(1) == sent_by_attacker(1)
    assert sent_by_attacker(1) != sent_by_attacker(2)


def answered(status: int, content_type: str = "application/problem+json", **more: str) -> Answer:
    path, retry_after = more.get("path", "/api/v1/jobs/"), more.get("retry_after", "")
    return Answer("mallory", "request", "POST", path, status, content_type, retry_after)


def test_server_errors_and_html_answers_are_faults() -> None:
    assert answered(500).is_a_fault
    assert answered(502).is_a_fault
    assert answered(503).is_a_fault, "busy, without a word on when to come back"
    assert answered(400, "text/html").is_a_fault, "no problem document"
    for fine in (answered(400), answered(201, "application/json"), answered(503, retry_after="2")):
        assert not fine.is_a_fault


@pytest.mark.parametrize(
    ("outcome", "void_reason", "kept"),
    [
        ("met", "", True),
        ("void", "cancelled", True),
        ("void", "paused_by_owner", True),
        ("missed", "", False),
        ("open", "", False),
        ("void", "function_slower_than_profile", False),
        ("void", "failures_beyond_reserve", False),
    ],
)
def test_ends_of_promises_are_attributed_to_platform_or_user(
    outcome: str, void_reason: str, kept: bool
) -> None:
    assert is_kept({"outcome": outcome, "void_reason": void_reason}) is kept


def test_a_report_holds_only_if_everything_does() -> None:
    looked_at = Invariant("passes", "3 looked at", [])
    broken = Invariant("promises", "1 made", ["ada's work 3: missed"])
    assert Report(1, 60.0, [looked_at]).holds
    report = Report(1, 60.0, [looked_at, broken])
    assert not report.holds
    assert report.broken() == ["promises: ada's work 3: missed"]
    assert any(line.startswith("BROKEN  promises") for line in report.lines())


class NothingHappened:
    """A scene without any activity: no answers, no logs, and only counts have rows."""

    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger()
        self.platform = SimpleNamespace(folders=SimpleNamespace(logs=folder))

    def rows(self, sql: str, *_parameters: Any) -> list[dict[str, Any]]:
        return [{"number": 0}] if sql.startswith("select count(") else []


def test_an_invariant_without_evidence_does_not_hold(tmp_path: Path) -> None:
    for name in ("web", "agent-api", "streams"):
        (tmp_path / f"{name}.log").touch()
    seen = Seen(metrics={"punctual_planner_failed_passes_total": 0.0})
    scene: Any = NothingHappened(tmp_path)
    checked = invariants(scene, seen, [], least_promises=1, timing=False, killed={})
    assert [invariant.text for invariant in checked if invariant.holds] == [
        "every promise to a function that is in order is kept",  # the next invariant demands a number of them
        "the honest user is never turned away",
        "no pass of the planner fails",
        "no job of a function that is in order is set aside",
    ]
