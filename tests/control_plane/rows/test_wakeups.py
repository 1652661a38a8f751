"""Waking the planner: at once, once, and never too rarely."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction

from scheduling.services.rows import wakeups
from scheduling.services.rows.wakeups import planner_begins, wake

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def sent_topics(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the topics of the messages that reach the broker."""
    topics: list[str] = []

    def deliver(topic: str, payload: dict[str, Any]) -> bool:
        topics.append(topic)
        return True

    monkeypatch.setattr(wakeups, "_deliver_or_log", deliver)
    planner_begins()
    yield topics
    planner_begins()


def test_a_burst_wakes_the_planner_once_until_it_begins(sent_topics: list[str]) -> None:
    for _ in range(50):
        wake("plan", trigger="submitted")
    assert sent_topics == ["plan"]
    planner_begins()
    wake("plan", trigger="submitted")
    assert sent_topics == ["plan", "plan"], "a running pass may miss rows committed after it began"


def test_rolled_back_transaction_wakes_no_planner(sent_topics: list[str]) -> None:
    with transaction.atomic():
        wake("plan", trigger="submitted")
        transaction.set_rollback(True)
    assert sent_topics == []
    wake("plan", trigger="submitted")
    assert sent_topics == ["plan"], "a rolled-back wake-up does not suppress later ones"


def test_without_redis_nothing_fails(sent_topics: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner also polls every second."""

    class Away:
        def __getattr__(self, name: str) -> Any:
            raise ConnectionError("Redis is away")

    with monkeypatch.context() as gone:
        gone.setattr(wakeups, "redis_client", Away)
        wake("plan", trigger="submitted")
        planner_begins()
    assert sent_topics == []
