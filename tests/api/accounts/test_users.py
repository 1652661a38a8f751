"""Accounts: operators create and disable them and reset their passwords."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from rest_framework.test import APIClient

from lending.services.inference_clusters import inference_cluster_create
from projects.errors import NotAllowed
from projects.models import Invitation, Membership, User
from projects.services import user_update
from tests import factories as make
from tests.api.conftest import World

GOOD = "a long and quiet password"


def log_in(username: str, password: str | None) -> int:
    body = {"username": username, "password": password}
    return APIClient().post("/api/v1/login/", body, format="json").status_code


def create(world: World, **body: Any) -> Any:
    return world.client(world.operator).post("/api/v1/users/", body, format="json")


def change(world: World, username: str, **body: Any) -> Any:
    return world.client(world.operator).patch(f"/api/v1/users/{username}/", body, format="json")


def test_a_created_person_logs_in_with_the_generated_password(world: World) -> None:
    Invitation.objects.create(project=world.project, username="ada", expires_at="2100-01-01T00:00Z")
    answer = create(world, username="ada", projects=[{"name": "vision", "role": "viewer"}])
    assert answer.status_code == 201
    made = answer.json()
    assert made["projects"] == [{"name": "vision", "role": "viewer"}]
    assert (made["is_active"], made["is_operator"]) == (True, False)
    assert len(made["password"]) == 16
    assert log_in("ada", made["password"]) == 201
    shown = world.client(world.operator).get("/api/v1/users/ada/").json()
    assert shown == {**{k: v for k, v in made.items() if k != "password"}, "last_login": shown["last_login"]}
    assert not Invitation.objects.filter(username="ada").exists()


def test_a_password_that_is_sent_is_never_shown_or_logged(
    world: World, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    answer = create(world, username="ada", password=GOOD, is_operator=True)
    assert (answer.status_code, answer.json()["password"]) == (201, None)
    assert log_in("ada", GOOD) == 201
    reset = world.client(world.operator).post("/api/v1/users/ada/password/", {}, format="json").json()
    assert log_in("ada", reset["password"]) == 201
    logged = caplog.text + "".join(capfd.readouterr())
    assert "user_created" in logged
    assert GOOD not in logged
    assert reset["password"] not in logged


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"username": "owner"}, 409, "username"),
        ({"username": "a person"}, 400, "username"),
        ({"username": ""}, 400, "username"),
        ({"username": "x" * 151}, 400, "username"),
        ({"username": "a\u202eb"}, 400, "username"),
        ({"username": "inference-scheduler@serving"}, 400, "username"),
        ({}, 400, "username"),
        ({"username": "ada", "password": "hjkl"}, 400, "password"),
        ({"username": "ada", "password": "iloveyou"}, 400, "password"),
        ({"username": "ada", "password": "x" * 1001}, 400, "password"),
        ({"username": "ada", "password": ""}, 400, "password"),
        ({"username": "ada", "is_operator": "yes"}, 400, "is_operator"),
        ({"username": "ada", "projects": [{"name": "nosuch"}]}, 400, "projects"),
        ({"username": "ada", "projects": [{"name": "vision"}] * 2}, 400, "projects"),
        ({"username": "ada", "projects": [{"name": "vision", "role": "king"}]}, 400, "projects.0.role"),
        ({"username": "ada", "staff": True}, 400, "staff"),
    ],
)
def test_invalid_account_is_refused_by_field(
    world: World, body: dict[str, Any], status: int, field: str
) -> None:
    before = User.objects.count(), Membership.objects.count()
    answer = create(world, **body)
    assert answer.status_code == status, answer.json()
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert field in answer.json()["errors"]
    assert (User.objects.count(), Membership.objects.count()) == before
    assert (body.get("password") or GOOD) not in answer.content.decode()


def test_a_disabled_persons_doors_are_shut_at_once(world: World) -> None:
    token, browser = world.client(world.owner), Client()
    browser.force_login(world.owner)
    assert (token.get("/api/v1/me/").status_code, browser.get("/jobs/").status_code) == (200, 200)
    assert change(world, "owner", is_active=False).json()["is_active"] is False
    assert token.get("/api/v1/me/").status_code == 401
    assert browser.get("/jobs/").status_code == 302
    assert browser.get("/api/v1/me/").status_code == 401
    assert log_in("owner", make.PASSWORD) == 401
    world.job.refresh_from_db()
    assert world.job.state == "running"
    assert change(world, "owner", is_active=True).status_code == 200
    assert token.get("/api/v1/me/").status_code == 200


def test_another_password_ends_sessions_and_no_token(world: World) -> None:
    token, browser = world.client(world.owner), Client()
    browser.force_login(world.owner)
    body = {"password": GOOD}
    answer = world.client(world.operator).post("/api/v1/users/owner/password/", body, format="json")
    assert answer.json() == {"username": "owner", "password": None}
    assert browser.get("/api/v1/me/").status_code == 401
    assert token.get("/api/v1/me/").status_code == 200
    assert (log_in("owner", make.PASSWORD), log_in("owner", GOOD)) == (401, 201)


@pytest.mark.parametrize("body", [{"is_active": False}, {"is_operator": False}])
def test_the_last_active_operator_stays_one(world: World, body: dict[str, bool]) -> None:
    make.UserFactory.create(is_operator=True, is_active=False)
    refused = change(world, "operator", **body)
    assert refused.status_code == 409
    assert "last active operator" in refused.json()["detail"]
    another = make.UserFactory.create(is_superuser=True)
    assert change(world, "operator", **body).status_code == 200
    assert world.client(world.operator).get("/api/v1/users/").status_code in (401, 403)
    assert not User.objects.get(username="operator").operates()
    assert User.objects.get(pk=another.pk).operates()


def test_superuser_without_operator_role_is_no_operator(world: World) -> None:
    make.UserFactory.create(username="root", is_superuser=True, is_staff=True)
    assert change(world, "root", is_operator=False).json()["is_operator"] is False
    assert not User.objects.get(username="root").operates()


def test_bad_changes_and_unknown_people_are_refused(world: World) -> None:
    assert change(world, "owner").status_code == 400
    assert change(world, "owner", is_active="no").json()["errors"].keys() == {"is_active"}
    assert change(world, "nobody", is_active=False).status_code == 404
    client = world.client(world.operator)
    weak = client.post("/api/v1/users/owner/password/", {"password": "12345"}, format="json")
    assert (weak.status_code, list(weak.json()["errors"])) == (400, ["password"])
    assert log_in("owner", make.PASSWORD) == 201


def test_accounts_of_programs_cannot_be_changed(world: World) -> None:
    inference_cluster_create(name="more", actor=world.operator, settings={})
    client = world.client(world.operator)
    names = {row["username"] for row in client.get("/api/v1/users/").json()["results"]}
    assert names >= {"owner", "operator"}
    assert not any(name.startswith("inference-scheduler@") for name in names)
    assert change(world, "inference-scheduler@more", is_active=True).status_code == 404


# --- the admin ----------------------------------------------------------------------------------------------


def test_an_operator_enters_the_admin_and_changes_accounts(world: World) -> None:
    browser = Client()
    browser.force_login(world.operator)
    assert browser.get("/admin/login/?next=/admin/", follow=True).status_code == 200
    page = browser.get(f"/admin/projects/user/{world.owner.pk}/change/")
    assert page.status_code == 200
    assert "_save" in page.content.decode()
    browser.force_login(world.owner)
    assert browser.get("/admin/", follow=True).status_code == 403


def test_the_admin_keeps_the_last_operator_too(world: World) -> None:
    browser = Client()
    browser.force_login(world.operator)
    address = f"/admin/projects/user/{world.operator.pk}/change/"
    fields = {
        "username": "operator", "date_joined_0": "2026-01-01", "date_joined_1": "00:00:00",
        "quota-TOTAL_FORMS": "0", "quota-INITIAL_FORMS": "0", "is_active": "on",
    }  # fmt: skip
    assert "last active operator" in browser.post(address, fields).content.decode()
    assert browser.post(address, {**fields, "is_operator": "on"}).status_code == 302
    assert User.objects.get(username="operator").operates()


# --- manage.py ----------------------------------------------------------------------------------------------


@contextmanager
def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdin", StringIO(text))
        yield


def manage(*arguments: str) -> str:
    call_command("users", *arguments, stdout=(output := StringIO()), stderr=StringIO())
    return output.getvalue().strip()


def test_manage_makes_the_first_operator(db: None) -> None:
    password = manage("create", "ada", "--operator")
    assert User.objects.get(username="ada").check_password(password)
    assert manage("list") == "ada                  operator"
    with pytest.raises(CommandError, match="last active operator"):
        manage("disable", "ada")


def test_manage_disables_enables_and_resets(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with typed(monkeypatch, f"{GOOD}\n"):
        assert manage("create", "ada", "--project", "vision", "--password-stdin") == ""
    assert log_in("ada", GOOD) == 201
    manage("disable", "ada")
    assert "ada                  disabled, vision (member)" in manage("list").splitlines()
    assert log_in("ada", GOOD) == 401
    manage("enable", "ada")
    assert log_in("ada", manage("reset-password", "ada")) == 201
    manage("promote", "ada")
    assert User.objects.get(username="ada").operates()
    manage("demote", "ada")
    assert not User.objects.get(username="ada").operates()
    for wrong in (("create", "ada"), ("create", "a b"), ("disable", "nobody")):
        with pytest.raises(CommandError):
            manage(*wrong)
    with typed(monkeypatch, "short\n"), pytest.raises(CommandError, match="at least 8"):
        manage("reset-password", "ada", "--password-stdin")


def test_disabled_operator_cannot_disable_users(world: World) -> None:
    change(world, "stranger", is_operator=True)
    user_update(user=world.operator, actor=User.objects.get(username="stranger"), is_active=False)
    with pytest.raises(NotAllowed):
        user_update(user=world.owner, actor=User.objects.get(username="operator"), is_active=False)
