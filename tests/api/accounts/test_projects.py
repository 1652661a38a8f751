"""Login, tokens, projects and their members."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from projects.models import ApiToken, Membership
from tests import factories as make
from tests.api.conftest import World


def log_in(username: str, password: str = make.PASSWORD, **more: Any) -> Any:
    return APIClient().post(
        "/api/v1/login/", {"username": username, "password": password, **more}, format="json"
    )


def with_token(token: str) -> APIClient:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
    return client


def test_user_name_and_password_become_a_token(world: World) -> None:
    answer = log_in("owner", token_name="laptop")
    assert answer.status_code == 201
    me = with_token(answer.json()["token"]).get("/api/v1/me/").json()
    assert (me["username"], me["projects"]) == ("owner", [{"name": "vision", "role": "owner"}])
    assert not ApiToken.objects.filter(digest=answer.json()["token"]).exists()


@pytest.mark.parametrize(("username", "password"), [("owner", "wrong"), ("nobody", make.PASSWORD)])
def test_wrong_credentials_look_alike(world: World, username: str, password: str) -> None:
    answer = log_in(username, password)
    assert (answer.status_code, answer.json()["detail"]) == (401, "User name or password is wrong.")


def test_disabled_user_can_neither_log_in_nor_use_a_token(world: World) -> None:
    client = world.client(world.owner)
    world.owner.is_active = False
    world.owner.save()
    assert log_in("owner").status_code == 401
    assert client.get("/api/v1/me/").status_code == 401


def test_login_works_without_the_broker(world: World, settings: Any) -> None:
    settings.CACHES = {
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": "unix:///nowhere/r.sock",
        }
    }
    assert log_in("owner").status_code == 201


@pytest.mark.parametrize("header", ["Bearer nonsense", "Bearer", "Basic abc", "Bearer \xff\xfe"])
def test_a_useless_token_is_refused(db: None, header: str) -> None:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=header)
    assert client.get("/api/v1/me/").status_code == 401


def test_a_token_expires(world: World) -> None:
    client = world.client(world.owner)
    ApiToken.objects.filter(user=world.owner).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert client.get("/api/v1/me/").status_code == 401


def test_a_token_is_created_rotated_and_revoked(world: World) -> None:
    client = world.client(world.owner)
    created = client.post("/api/v1/tokens/", {"name": "ci"}, format="json").json()
    rotated = client.post(f"/api/v1/tokens/{created['id']}/rotate/", format="json").json()
    assert with_token(created["token"]).get("/api/v1/me/").status_code == 401
    assert with_token(rotated["token"]).get("/api/v1/me/").status_code == 200
    assert client.delete(f"/api/v1/tokens/{created['id']}/").status_code == 204
    assert with_token(rotated["token"]).get("/api/v1/me/").status_code == 401
    assert created["id"] not in [row["id"] for row in client.get("/api/v1/tokens/").json()["results"]]


def test_no_list_shows_a_secret(world: World) -> None:
    client = world.client(world.owner)
    client.post("/api/v1/tokens/", {"name": "ci"}, format="json")
    assert all(
        "token" not in row and "digest" not in row for row in client.get("/api/v1/tokens/").json()["results"]
    )


def test_a_creator_becomes_owner(world: World) -> None:
    client = world.client(world.stranger)
    answer = client.post("/api/v1/projects/", {"name": "mine"}, format="json")
    assert (answer.status_code, answer.json()["role"]) == (201, "owner")
    assert client.post("/api/v1/projects/", {"name": "mine"}, format="json").status_code == 409
    assert client.post("/api/v1/projects/", {"name": "a b"}, format="json").status_code == 400


def test_the_last_owner_cannot_go(world: World) -> None:
    client = world.client(world.owner)
    mine = "/api/v1/projects/vision/members/owner/"
    assert client.delete(mine).status_code == 409
    assert client.patch(mine, {"role": "viewer"}, format="json").status_code == 409
    client.patch("/api/v1/projects/vision/members/colleague/", {"role": "owner"}, format="json")
    assert client.delete(mine).status_code == 204
    assert client.get("/api/v1/projects/vision/").status_code == 404


def test_anyone_may_leave(world: World) -> None:
    client = world.client(world.viewer)
    assert client.delete("/api/v1/projects/vision/members/viewer/").status_code == 204
    assert not Membership.objects.filter(user=world.viewer).exists()


def test_an_operator_sets_and_takes_away_limits(world: World) -> None:
    client = world.client(world.operator)
    address = "/api/v1/projects/vision/quota/"
    assert client.get(address).json()["active_jobs"] == 1000
    changed = client.patch(address, {"active_jobs": None, "promised_gpu_hours": 10}, format="json").json()
    assert (changed["active_jobs"], changed["promised_gpu_hours"]) == (None, 10.0)
    assert client.get(address).json() == changed


def test_a_session_needs_the_forgery_token(world: World) -> None:
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(world.owner)
    assert client.get("/api/v1/me/").status_code == 200
    refused = client.post("/api/v1/projects/", {"name": "x"}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
