"""Request rates: every request is counted, also concurrent ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from rest_framework.request import Request
from rest_framework.views import APIView

from projects.api.throttling import Throttle
from projects.redis_connection import redis_client
from tests.api.conftest import World

DAY = 86_400.0
_MAKE_OLDER = """
for _, request in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    redis.call('ZINCRBY', KEYS[1], -tonumber(ARGV[1]), request)
end
"""


class Submissions(APIView):
    throttle_scope = "submissions"


@pytest.fixture
def asked(rf: Any) -> Request:
    return Request(rf.post("/"))


def make_older(seconds: float) -> None:
    """Move the requests counted so far into the past."""
    client = redis_client()
    for key in client.keys("punctual:throttle_*"):
        client.register_script(_MAKE_OLDER)(keys=[key], args=[seconds])


def rate(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(Throttle, "THROTTLE_RATES", {"submissions": text})


def test_throttled_user_gets_retry_after_and_others_are_served(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate(monkeypatch, "1/day")

    def submit(person: Any) -> Any:
        return world.client(person).post("/api/v1/jobs/", world.body(), format="json")

    assert submit(world.colleague).status_code == 201
    refused = submit(world.colleague)
    assert refused.status_code == 429
    assert 0 < int(refused.headers["Retry-After"]) <= DAY
    assert submit(world.owner).status_code == 201


def test_requests_that_come_at_once_are_all_counted(monkeypatch: pytest.MonkeyPatch, asked: Request) -> None:
    rate(monkeypatch, "5/day")
    with ThreadPoolExecutor(8) as pool:
        allowed = list(pool.map(lambda _: Throttle().allow_request(asked, Submissions()), range(40)))
    assert sum(allowed) == 5


def test_request_counts_only_within_its_window(monkeypatch: pytest.MonkeyPatch, asked: Request) -> None:
    rate(monkeypatch, "1/day")
    throttle = Throttle()
    assert throttle.allow_request(asked, Submissions())
    assert not throttle.allow_request(asked, Submissions())
    left = throttle.wait()
    assert left is not None
    assert 0.0 < left <= DAY
    make_older(left)
    assert throttle.allow_request(asked, Submissions())
    assert not throttle.allow_request(asked, Submissions()), "the second one counts"
