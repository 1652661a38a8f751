"""For any request to any address of the three processes, an error is a problem document and never HTML."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver

from tests.api.conftest import World

URLS = {"web": "config.urls", "agents": "config.urls_agents", "streams": "config.urls_streams"}
FOR_PROGRAMS = ("/api/", "/agent/", "/stream/")
FILLERS = {"id": "1", "digest": "0" * 64, "job_id": "abc", "name": "vision"}
DEEP = b'{"hyperparameters": ' + b'{"a": ' * 900 + b"1" + b"}" * 900 + b"}"
BODIES = {
    "20,000 brackets": b"[" * 20_000,
    "hyperparameters nested 900 deep": DEEP,
    "very many empty lists": b"[" + b"[]," * 20_000 + b"[]]",
    "no JSON": b"{",
    "another encoding": "{}".encode("utf-16"),
    "no text": b"\xff\xfe\xfd",
    "nothing": b"",
    "a number": b"1",
}


def addresses(process: str) -> Iterator[str]:
    """Return an example of each address of the programming interfaces."""
    for path in patterns(import_module(URLS[process]).urlpatterns, "/"):
        if path.startswith(FOR_PROGRAMS):
            yield path


def patterns(urlpatterns: list[Any], prefix: str) -> Iterator[str]:
    for pattern in urlpatterns:
        if isinstance(pattern, URLResolver):
            yield from patterns(pattern.url_patterns, prefix + example(pattern))
        elif isinstance(pattern, URLPattern):
            yield prefix + example(pattern)


def example(pattern: Any) -> str:
    """Return an address that matches the pattern."""
    matched = pattern.pattern
    route = getattr(matched, "_route", None)
    if route is None:  # the streams' regular expressions
        return str(matched._regex).strip("^$").replace("/?", "").replace("(?P<job_id>[a-z0-9]{1,16})", "abc")
    for name, converter in matched.converters.items():
        kind = next(
            part
            for part in route.split("<")
            if part.startswith((f"{name}>", f"{name}:")) or f":{name}>" in part
        )
        filler = FILLERS.get(name, "1")
        if "uuid" in type(converter).__name__.lower():
            filler = "00000000-0000-4000-8000-000000000000"
        route = route.replace(f"<{kind.partition('>')[0]}>", filler)
    return str(route)


def client(world: World, process: str, settings: Any) -> Client:
    settings.ROOT_URLCONF = URLS[process]
    return Client(
        raise_request_exception=False, headers={"Authorization": world.authorization(world.operator)}
    )


def check(path: str, answer: Any) -> None:
    assert 400 <= answer.status_code < 500, (path, answer.status_code, answer.content[:300])
    assert answer.headers["Content-Type"] == "application/problem+json", path
    document = json.loads(answer.content)
    assert document["status"] == answer.status_code
    assert document["detail"]


@pytest.mark.parametrize("process", URLS)
def test_no_request_body_causes_a_server_error(world: World, process: str, settings: Any) -> None:
    caller = client(world, process, settings)
    for path in addresses(process):
        for body in BODIES.values():
            answer = caller.generic("POST", path, body, content_type="application/json")
            if answer.status_code >= 400:  # some addresses need no body and ignore it
                check(path, answer)


@pytest.mark.parametrize("process", URLS)
def test_a_method_that_an_address_does_not_have_is_a_405(world: World, process: str, settings: Any) -> None:
    caller = client(world, process, settings)
    for path in addresses(process):
        answer = caller.generic("PROPFIND", path)
        check(path, answer)
        assert answer.status_code == 405


@pytest.mark.parametrize(
    "path", ["/api/v1/nowhere/", "/agent/v1/nowhere", "/stream/nowhere", "/api/v1/jobs/%00/"]
)
@pytest.mark.parametrize("process", URLS)
def test_an_address_that_is_none_is_a_404(world: World, process: str, path: str, settings: Any) -> None:
    answer = client(world, process, settings).get(path)
    check(path, answer)
    assert answer.status_code == 404


@pytest.mark.parametrize("process", URLS)
def test_a_host_that_is_none_is_a_400(world: World, process: str, settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["localhost"]
    path = next(path for path in addresses(process))
    answer = client(world, process, settings).get(path, headers={"Host": "bad_host!"})
    if answer.status_code != 401:
        check(path, answer)


def test_a_report_that_is_too_large_is_a_413(world: World, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    answer = client(world, "agents", settings).generic(
        "POST", "/agent/v1/enrol", b'"' + b"x" * 2000 + b'"', content_type="application/json"
    )
    check("/agent/v1/enrol", answer)
    assert answer.status_code == 413


def test_a_defect_of_the_agent_api_is_a_problem_document(
    world: World, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduling.agents.views.Enrolment.model_validate", lambda body: 1 / 0)
    answer = client(world, "agents", settings).generic(
        "POST", "/agent/v1/enrol", b"{}", content_type="application/json"
    )
    assert answer.status_code == 500
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert b"division" not in answer.content
