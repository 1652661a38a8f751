"""Every error is an RFC 9457 problem document."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import OperationalError
from django.test import RequestFactory
from rest_framework.test import APIClient

from projects.api.problems import server_error
from tests.api.conftest import World

MEMBERS = {"type", "title", "status", "detail", "code"}


def check(answer: Any, status: int, code: str | None = None) -> None:
    assert answer.status_code == status, answer.content
    assert answer.headers["Content-Type"] == "application/problem+json"
    document = json.loads(answer.content)
    assert set(document) >= MEMBERS
    assert document["status"] == status
    assert code in (None, document["code"])


def raw(world: World, body: bytes, content_type: str = "application/json") -> Any:
    return world.client(world.owner).generic(
        "POST",
        "/api/v1/projects/",
        body,  # type: ignore[arg-type]
        content_type=content_type,
    )


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xff\xfe\xfd",
        b"[" * 200_000,
        b'{"name": NaN}',
        b'{"name": 1e999}',
        b'{"name": "a\\u0000b"}',
        b'{"name": "\\ud800"}',
        b'{"\\u0000": 1}',
        b"[]",
        b'"text"',
        b"null",
        b"1" * 6000,
    ],
)
def test_a_body_that_cannot_be_read_is_a_400(world: World, body: bytes) -> None:
    check(raw(world, body), 400)


def test_a_body_that_is_too_large_is_a_413(world: World, settings: Any) -> None:
    check(raw(world, b'{"name": "' + b"x" * settings.DATA_UPLOAD_MAX_MEMORY_SIZE + b'"}'), 413, "too_large")


def test_another_content_type_is_a_415(world: World) -> None:
    check(raw(world, b"<x/>", "application/xml"), 415)


def test_an_unknown_address_is_a_404(db: None) -> None:
    check(APIClient().get("/api/v1/nothing/"), 404, "not_found")
    check(APIClient().get("/api/v1/jobs/NOT-AN-ID/"), 404)


def test_another_method_is_a_405(world: World) -> None:
    client = world.client(world.owner)
    for method in ("put", "delete", "options", "patch"):
        check(getattr(client, method)("/api/v1/jobs/"), 405)


@pytest.mark.parametrize(
    "query", ["cursor=nonsense", "cursor=cD1ub25zZW5zZQ==", "page_size=0", "page_size=x", "page_size=9999"]
)
@pytest.mark.parametrize("path", ["jobs/", "projects/", "functions/", "servers/"])
def test_a_made_up_page_is_a_400(world: World, path: str, query: str) -> None:
    check(world.client(world.owner).get(f"/api/v1/{path}?{query}"), 400, "invalid")


def test_a_database_that_is_away_is_a_503(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from projects import selectors

    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(selectors, "projects_for_list", away)
    answer = world.client(world.owner).get("/api/v1/projects/")
    check(answer, 503, "unavailable")
    assert answer.headers["Retry-After"]


def test_agents_get_503_while_the_database_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    from scheduling.agents import views

    def away(*_: Any) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(views, "agent_of", away)
    monkeypatch.setattr(views, "_parse", lambda request, model: model.model_construct())
    for view, method in ((views.report, "POST"), (views.desired, "GET"), (views.enrol, "POST")):
        answer = view(RequestFactory().generic(method, "/agent/v1/x"))
        check(answer, 503, "unavailable")
        assert answer.headers["Retry-After"]


@pytest.mark.parametrize("path", ["/api/v1/jobs/", "/agent/v1/report", "/jobs/"])
def test_database_errors_outside_views_give_503(path: str) -> None:
    """For example, when a session is read before any view runs."""
    try:
        raise OperationalError("connection refused")
    except OperationalError:
        answer = server_error(RequestFactory().get(path))
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    if not path.startswith("/jobs"):
        check(answer, 503, "unavailable")
    assert server_error(RequestFactory().get(path)).status_code == 500, "what nobody foresaw is a defect"


def test_error_500_reveals_no_internals(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from projects import selectors

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(selectors, "projects_for_list", broken)
    client = world.client(world.owner)
    client.raise_request_exception = False
    answer = client.get("/api/v1/projects/")
    check(answer, 500, "defect")
    assert b"secret" not in answer.content


def test_answers_are_not_cached_on_the_way(world: World) -> None:
    assert world.client(world.owner).get("/api/v1/me/").headers["Cache-Control"] == "private, no-store"


def test_too_many_parameters_are_counted_in_our_words(world: World) -> None:
    answer = world.client(world.owner).get("/api/v1/jobs/?" + "a=1&" * 3000)
    assert (answer.status_code, answer.json()["detail"]) == (400, "A request has at most 1000 parameters.")
