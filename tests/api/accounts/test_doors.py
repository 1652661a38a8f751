"""Password guessing at every login, and the security headers for browsers."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from projects import login_attempts
from projects.client_address import client_address, throttled_address
from tests import factories as make

DOORS = ["/api/v1/login/", "/login/", "/admin/login/"]


@pytest.fixture
def few_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_attempts, "MAXIMUM_FAILURES", {"both": 3, "address": 5, "name": 5})


def knock(door: str, username: str, password: str = "wrong", **more: Any) -> Any:
    """Try one login; the admin redirects to the login page."""
    body = {"username": username, "password": password}
    if door.startswith("/api/"):
        return APIClient().post(door, body, format="json", **more)
    client = Client()
    if door.startswith("/admin/"):
        door = client.get(door, follow=True).redirect_chain[-1][0]
    return client.post(door, body, **more)


@pytest.mark.usefixtures("few_failures")
@pytest.mark.parametrize("door", DOORS)
def test_guessing_blocks_every_door_even_for_the_right_password(db: None, door: str) -> None:
    make.UserFactory.create(username="owner", is_staff=True)
    for _ in range(3):
        assert knock(door, "owner").status_code in (200, 401)
    for other in DOORS:
        answer = knock(other, "owner", make.PASSWORD)
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) > 0


@pytest.mark.usefixtures("few_failures")
@pytest.mark.parametrize("door", DOORS)
def test_another_spelling_of_the_name_is_no_fresh_start(db: None, door: str) -> None:
    make.UserFactory.create(username="owner")
    for _ in range(3):
        knock(door, "owner")
    for spelling in ("  owner", "owner \t", "OWNER", "\uff4fwner", "o\uff37ner\u00a0", "\u3000owner"):
        assert knock(door, spelling).status_code == 429, spelling


@pytest.mark.usefixtures("few_failures")
@pytest.mark.parametrize("door", DOORS)
def test_attempts_are_limited_by_address_and_by_username(db: None, door: str) -> None:
    answers = [knock(door, f"person{n}", REMOTE_ADDR="192.0.2.1").status_code for n in range(6)]
    assert answers[-1] == 429
    assert 429 not in answers[:-1]
    answers = [knock(door, "owner", REMOTE_ADDR=f"192.0.3.{n}").status_code for n in range(6)]
    assert answers[-1] == 429


@pytest.mark.usefixtures("few_failures")
@pytest.mark.parametrize("door", DOORS)
def test_behind_a_proxy_the_address_is_the_one_that_the_proxy_saw(db: None, settings: Any, door: str) -> None:
    settings.TRUSTED_PROXIES = 1
    for n in range(6):
        # The caller writes the entries to the left of the proxy's own.
        answer = knock(door, f"person{n}", HTTP_X_FORWARDED_FOR=f"203.0.113.{n}, 192.0.2.1")
    assert answer.status_code == 429
    assert knock(door, "person9", HTTP_X_FORWARDED_FOR="192.0.2.2").status_code in (200, 401)


@pytest.mark.usefixtures("few_failures")
def test_forwarded_address_is_ignored_without_a_trusted_proxy(db: None) -> None:
    for n in range(6):
        answer = knock("/login/", f"person{n}", HTTP_X_FORWARDED_FOR=f"203.0.113.{n}")
    assert answer.status_code == 429


@pytest.mark.usefixtures("few_failures")
def test_correct_logins_are_never_throttled(db: None) -> None:
    make.UserFactory.create(username="owner")
    for _ in range(12):
        assert knock("/api/v1/login/", "owner", make.PASSWORD).status_code == 201


@pytest.mark.parametrize(
    ("forwarded", "proxies", "address"),
    [
        ("203.0.113.9", 0, "127.0.0.1"),
        ("203.0.113.9", 1, "203.0.113.9"),
        ("198.51.100.1, 203.0.113.9", 1, "203.0.113.9"),
        ("198.51.100.1, 203.0.113.9", 2, "198.51.100.1"),
        ("203.0.113.9", 5, "203.0.113.9"),
        ("203.0.113.9:4711", 1, "203.0.113.9"),
        ("[2001:db8::1]:4711", 1, "2001:db8::1"),
        ("unknown", 1, "127.0.0.1"),
        ("\u202e1.2.3.4", 1, "127.0.0.1"),
        ("", 1, "127.0.0.1"),
    ],
)
def test_the_address_of_a_caller(rf: Any, settings: Any, forwarded: str, proxies: int, address: str) -> None:
    settings.TRUSTED_PROXIES = proxies
    assert client_address(rf.get("/", HTTP_X_FORWARDED_FOR=forwarded).META) == address


def test_addresses_of_one_ipv6_network_count_as_one(rf: Any) -> None:
    first, second, other = (
        throttled_address(rf.get("/", REMOTE_ADDR=address).META)
        for address in ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", "2001:db8:1:3::1")
    )
    assert first == second != other
    assert throttled_address(rf.get("/", REMOTE_ADDR="::ffff:192.0.2.1").META) == "192.0.2.1"


def test_the_admin_has_no_login_of_its_own(db: None, client: Client) -> None:
    answer = client.get("/admin/", follow=True)
    assert answer.redirect_chain[-1][0] == "/login/?next=/admin/"
    elsewhere = client.get("/admin/login/?next=https://evil.example/", follow=True)
    assert elsewhere.redirect_chain[-1][0] == "/login/?next=/admin/"
    client.force_login(make.UserFactory.create())
    assert client.get("/admin/", follow=True).status_code == 403
    client.force_login(make.UserFactory.create(is_staff=True, is_superuser=True))
    assert client.get("/admin/").status_code == 200
    assert client.get("/admin/login/?next=/admin/projects/user/", follow=True).status_code == 200


@pytest.mark.parametrize(
    ("address", "status", "page"),
    [
        ("/admin/", 200, True),
        ("/admin/projects/user/", 200, True),
        ("/api/v1/docs/", 200, True),
        ("/nowhere/", 404, True),
        ("/", 200, True),
        ("/jobs/nosuchjob/", 404, True),
        ("/api/v1/me/", 200, False),
        ("/api/v1/nowhere/", 404, False),
        ("/api/v1/docs/?script=", 200, False),
        ("/api/v1/schema/", 200, False),
        ("/healthz", 200, False),
        ("/static/dashboard/page.js", 200, False),
    ],
)
def test_every_answer_has_a_content_security_policy(
    db: None, client: Client, address: str, status: int, page: bool
) -> None:
    client.force_login(make.UserFactory.create(is_staff=True, is_superuser=True))
    answer = client.get(address)
    assert answer.status_code == status
    policy = dict(
        part.strip().partition(" ")[::2] for part in answer.headers["Content-Security-Policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy.get("script-src") == ("'self'" if page else None)
    assert ("sandbox" in policy) is not page
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    if page:
        assert "<script>" not in answer.content.decode()
    answer.close()


def test_error_pages_have_the_content_security_policy_too(
    db: None, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.raise_request_exception = False
    client.force_login(make.UserFactory.create())
    monkeypatch.setattr("dashboard.views.overview.render_page", lambda *_, **__: 1 / 0)
    broken, elsewhere = client.get("/"), client.get("/", headers={"host": "evil.example"})
    assert (broken.status_code, elsewhere.status_code) == (500, 400)
    for answer in (broken, elsewhere):
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
