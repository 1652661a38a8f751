"""Token limits: scopes of every address, projects, and what tokens may do to tokens."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.urls import URLPattern, get_resolver
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from rest_framework.test import APIClient

from projects.api.base import ApiView
from projects.models import ApiToken, Scope, User
from tests import factories as make
from tests.api.accounts.test_access import LINES as PEOPLES_LINES
from tests.api.accounts.test_access import OPERATORS, Line, _methods, _patterns, ask_as, deployed
from tests.api.conftest import World, undone

LINES = [
    *PEOPLES_LINES,
    Line("token", "get", "anyone"),
    Line("user-quota", "get", "anyone"),
    Line("user-quota", "patch", OPERATORS, (200,), {"projects": 5}),
    Line("invitation-accept", "post", "anyone"),
    Line("invitation-decline", "post", "anyone"),
]
#: Other requests that change something need ``manage``; those for operators alone need ``operate``.
SUBMITTING = {
    "functions",
    "function-environment-build",
    "function-environment-cancel",
    "jobs",
    "what-if",
    "deployments",
    "deployment",
    "deployment-rollback",
    "deployment-drain",
    "deployment-predict",
    "deployment-tokens",
    "deployment-token",
} | {
    f"job-{verb}"
    for verb in ("cancel", "pause", "resume", "accept-offer", "decline-offer", "clone", "deadline")
}
#: Questions that change nothing.
READING = {"moe-fit", "moe-elastic", "moe-placement", "moe-ring"}
#: Any token may read its owner. (Tests below show that it may also end and replace itself.)
OPEN_TO_ANY = {("me", "get")}


def needed(line: Line) -> str | None:
    """Return the scope in the table."""
    if (line.name, line.method) in OPEN_TO_ANY:
        return None
    if line.who == OPERATORS:
        return Scope.OPERATE
    if line.method == "get" or line.name in READING:
        return Scope.READ
    return Scope.SUBMIT if line.name in SUBMITTING else Scope.MANAGE


class TokenClient(APIClient):
    """A client with the row of its token."""

    token: ApiToken


def client_of(user: User, **limits: Any) -> TokenClient:
    """Return a client with a fresh token of the person, with these limits."""
    token = make.ApiTokenFactory.create(user=user, **limits)
    client = TokenClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer pt_secret_{int(token.prefix.removeprefix('pt_')):06d}")
    client.token = token
    return client


@pytest.mark.parametrize("scope", [None, *Scope.values])
def test_every_address_asks_for_its_scope_and_for_no_other(world: World, scope: str | None) -> None:
    deployed(world, with_token=True)
    for line in LINES:
        if needed(line) != scope:
            continue
        person = world.operator if line.who == OPERATORS else world.owner
        with undone():
            answer = ask_as(world, line, client_of(person, scopes=[scope] if scope else []))
        assert answer.status_code != 403 or answer.json()["code"] != "missing_scope", line
        if scope is not None:
            assert answer.status_code in (*line.allowed, 404), (line, answer.content)
            others = [other for other in Scope.values if other != scope]
            refused = ask_as(world, line, client_of(person, scopes=others))
            assert (refused.status_code, refused.json()["code"]) == (403, "missing_scope"), line
            assert refused.json()["scope"] == scope, line


def _api_patterns() -> list[URLPattern]:
    views = (
        pattern
        for pattern in _patterns(get_resolver("config.urls"))
        if hasattr(pattern.callback, "view_class")
    )
    return [pattern for pattern in views if issubclass(pattern.callback.view_class, ApiView)]  # type: ignore[attr-defined]


def test_every_method_of_every_address_declares_its_scope() -> None:
    patterns = _api_patterns()
    assert len(patterns) > 60
    undeclared = [
        (str(pattern.pattern), method)
        for pattern in patterns
        for method in _methods(pattern)
        if method.upper() not in pattern.callback.view_class.scopes_by_method()  # type: ignore[attr-defined]
    ]
    # Logging in carries no token.
    assert undeclared == [("login/", "post")]


def test_method_without_declared_scope_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from projects.api.views import ProjectsView

    monkeypatch.setattr(ProjectsView, "token_scopes", {})
    answer = client_of(world.owner).post("/api/v1/projects/", {"name": "fresh"}, format="json")
    assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed")


def test_unknown_method_is_answered_with_405(world: World) -> None:
    assert client_of(world.owner).put("/api/v1/projects/", {}, format="json").status_code == 405


# --- projects -----------------------------------------------------------------------------------------------


def test_token_of_one_project_reads_no_other(world: World) -> None:
    make.MembershipFactory.create(project=world.foreign_project, user=world.owner, role="owner")
    client = client_of(world.owner, project_ids=[world.project.pk])
    assert [row["name"] for row in client.get("/api/v1/projects/").json()["results"]] == ["vision"]
    assert [row["name"] for row in client.get("/api/v1/me/").json()["projects"]] == ["vision"]
    assert {row["id"] for row in client.get("/api/v1/jobs/").json()["results"]} == {world.job.pk}
    for path in (f"jobs/{world.foreign_job.pk}/", "projects/elsewhere/", "projects/elsewhere/members/"):
        assert client.get(f"/api/v1/{path}").status_code == 404
    assert client.post(f"/api/v1/jobs/{world.foreign_job.pk}/cancel/").status_code == 404
    assert client.post("/api/v1/jobs/", world.body(project="elsewhere"), format="json").status_code == 400
    assert client.get(f"/api/v1/jobs/{world.job.pk}/").status_code == 200
    refused = client.post("/api/v1/projects/", {"name": "fresh"}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed")


def test_a_token_for_a_project_that_is_gone_opens_nothing(world: World) -> None:
    gone = make.ProjectFactory.create()
    client = client_of(world.owner, project_ids=[gone.pk])
    gone.delete()
    assert client.get("/api/v1/projects/").json()["results"] == []
    assert client.get(f"/api/v1/jobs/{world.job.pk}/").status_code == 404


def test_an_operators_limited_token_does_not_operate(world: World) -> None:
    for limits in ({"scopes": ["read", "submit", "manage"]}, {"project_ids": [world.project.pk]}):
        client = client_of(world.operator, **limits)
        assert client.get("/api/v1/me/").json()["is_operator"] is False
        assert client.get(f"/api/v1/jobs/{world.foreign_job.pk}/").status_code == 404
        assert client.post(f"/api/v1/servers/{world.server.pk}/drain/", {}, format="json").status_code == 403
        assert client.get("/metrics").status_code == 403


# --- tokens that make tokens --------------------------------------------------------------------------------


def create(client: APIClient, **body: Any) -> Any:
    return client.post("/api/v1/tokens/", {"name": "child", **body}, format="json")


def test_a_child_ends_no_later_than_the_token_that_asks(world: World) -> None:
    end = timezone.now() + timedelta(seconds=20)
    client = client_of(world.owner, expires_at=end)
    assert parse_datetime(create(client).json()["expires_at"]) == end
    assert parse_datetime(create(client, expires_at=None).json()["expires_at"]) == end
    later = create(client, expires_at=(end + timedelta(seconds=1)).isoformat())
    assert later.status_code == 400
    assert later.json()["errors"]["expires_at"]
    sooner = end - timedelta(seconds=10)
    grandchild = create(client, expires_at=sooner.isoformat())
    assert parse_datetime(grandchild.json()["expires_at"]) == sooner
    assert grandchild.json()["issued_by"] == client.token.pk


def test_a_child_opens_no_more_than_the_token_that_asks(world: World) -> None:
    make.MembershipFactory.create(project=world.foreign_project, user=world.owner, role="owner")
    client = client_of(world.owner, scopes=["read", "manage"], project_ids=[world.project.pk])
    child = create(client).json()
    assert (child["scopes"], child["projects"]) == (["read", "manage"], ["vision"])
    assert create(client, scopes=["read"]).json()["scopes"] == ["read"]
    wider = create(client, scopes=["read", "submit"])
    assert (wider.status_code, wider.json()["errors"]["scopes"]) == (403, ["At most: read, manage."])
    assert create(client, projects=["elsewhere"]).status_code == 400
    assert create(client, projects=["nowhere"]).status_code == 400


@pytest.mark.parametrize(
    "wider",
    [{"scopes": ["read", "submit"]}, {"project_ids": None}, {"expires_at": None}],
    ids=["scopes", "projects", "end"],
)
def test_a_token_cannot_rotate_one_that_opens_more(world: World, wider: dict[str, Any]) -> None:
    limits = {
        "scopes": ["read", "manage"],
        "project_ids": [world.project.pk],
        "expires_at": timezone.now() + timedelta(hours=1),
    }
    client = client_of(world.owner, **limits)
    target = client_of(world.owner, **{**limits, **wider})
    address = f"/api/v1/tokens/{target.token.pk}/rotate/"
    assert client.post(address).status_code == 403
    assert target.get("/api/v1/me/").status_code == 200
    equal = make.ApiTokenFactory.create(user=world.owner, **limits)
    rotated = client.post(f"/api/v1/tokens/{equal.pk}/rotate/").json()
    assert parse_datetime(rotated["expires_at"]) == limits["expires_at"]
    assert (rotated["scopes"], rotated["projects"]) == (["read", "manage"], ["vision"])


def test_token_without_manage_scope_can_revoke_only_itself(world: World) -> None:
    client = client_of(world.owner, scopes=["submit"])
    other = f"/api/v1/tokens/{world.token.pk}/"
    assert client.delete(other).json()["code"] == "missing_scope"
    assert client.post(f"{other}rotate/").json()["code"] == "missing_scope"
    assert create(client).json()["code"] == "missing_scope"
    assert client.get("/api/v1/me/").json()["token"]["id"] == client.token.pk
    assert client.delete(f"/api/v1/tokens/{client.token.pk}/").status_code == 204
    assert client.get("/api/v1/me/").status_code == 401


def test_session_creates_unlimited_tokens_by_default(world: World) -> None:
    client = APIClient()
    client.force_authenticate(world.owner)
    assert create(client).json()["scopes"] == Scope.values
    limited = create(client, scopes=["submit", "read"], projects=["vision"]).json()
    assert (limited["scopes"], limited["projects"]) == (["read", "submit"], ["vision"])
    assert create(client, scopes=["everything"]).status_code == 400
    assert create(client, scopes=[]).status_code == 400
    assert ApiToken.objects.get(pk=limited["id"]).project_ids == [world.project.pk]
