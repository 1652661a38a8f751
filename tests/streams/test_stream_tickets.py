"""Pages read streams with a ticket, never with a cookie, which browsers send to every port of a host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core import signing
from django.test import Client
from redis import Redis

from projects.services import token_issue, user_update
from scheduling.choices import JobState
from scheduling.models import Job
from streams import tickets
from tests import factories
from tests.streams.server import CLIENT, StreamServer
from tests.streams.test_streams import Reader, publish_until_seen, reading, redis

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["redis"]

ORIGIN = "http://testserver"


@pytest.fixture
def person(client: Client, settings: Any, stream_server: StreamServer) -> Any:
    """Return a user who is logged in with ``client``."""
    settings.STREAM_URL = stream_server.url
    user = factories.UserFactory.create()
    client.force_login(user)
    return user


@pytest.fixture
def job(person: Any) -> Job:
    made: Job = factories.JobFactory.create(state=JobState.RUNNING, owner=person)
    factories.MembershipFactory.create(project=made.project, user=person)
    return made


def ticket_for(client: Client, stream: str) -> str:
    answer = client.get("/stream-address/", {"stream": stream})
    assert answer.status_code == 200, answer.content
    return parse_qs(urlsplit(answer.json()["address"]).query)["ticket"][0]


def status_of(server: StreamServer, path: str, **headers: str) -> int:
    with CLIENT.stream("GET", f"{server.url}/stream/{path}", headers=headers) as response:
        return response.status_code


def test_a_page_reads_a_stream_with_a_ticket_and_no_credentials(
    stream_server: StreamServer, client: Client, person: Any, redis: Redis
) -> None:
    ticket = ticket_for(client, "cluster")
    with reading(stream_server, f"cluster?ticket={ticket}", {"Origin": ORIGIN}) as reader:
        assert reader.status == 200
        assert reader.response_headers["access-control-allow-origin"] == ORIGIN
        assert "access-control-allow-credentials" not in reader.response_headers
        assert publish_until_seen(redis, reader, "punctual:cluster:1", {"kind": "jobs"})


def test_a_cookie_opens_no_stream(stream_server: StreamServer, client: Client, person: Any) -> None:
    cookie = "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items())
    assert status_of(stream_server, "cluster", Cookie=cookie) == 401
    assert status_of(stream_server, "cluster", Cookie=cookie, Origin="http://127.0.0.1:9999") == 401


def test_a_page_of_another_port_can_do_nothing_with_a_ticket(
    stream_server: StreamServer, client: Client, person: Any
) -> None:
    path = f"cluster?ticket={ticket_for(client, 'cluster')}"
    assert status_of(stream_server, path, Origin=f"{ORIGIN}:9999") == 401
    assert status_of(stream_server, path, Origin="https://evil.example") == 401


def test_a_ticket_is_for_one_stream(stream_server: StreamServer, client: Client, job: Job) -> None:
    ticket = ticket_for(client, f"jobs/{job.pk}/events")
    assert status_of(stream_server, f"jobs/{job.pk}/events?ticket={ticket}") == 200
    assert status_of(stream_server, f"jobs/{job.pk}/logs?ticket={ticket}") == 401
    assert status_of(stream_server, f"cluster?ticket={ticket}") == 401


def test_no_ticket_is_given_for_a_stream_without_access(client: Client, person: Any) -> None:
    foreign = factories.JobFactory.create()
    for stream in (f"jobs/{foreign.pk}/logs", "jobs/doesnotexist/logs", "agents/wakeups", "", "../admin"):
        assert client.get("/stream-address/", {"stream": stream}).status_code == 404
    assert Client().get("/stream-address/", {"stream": "cluster"}).status_code == 401


@pytest.mark.parametrize("forge", ["old", "key", "tampered", "nonsense", "list"])
def test_old_and_forged_tickets_open_nothing(
    stream_server: StreamServer, client: Client, person: Any, monkeypatch: pytest.MonkeyPatch, forge: str
) -> None:
    ticket = ticket_for(client, "cluster")
    content = signing.loads(ticket, salt=tickets._SALT)
    if forge == "old":
        moment = time.time() - tickets.VALID_SECONDS - 1
        monkeypatch.setattr(time, "time", lambda: moment)
        ticket = ticket_for(client, "cluster")
    ticket = {
        "old": ticket,
        "key": signing.dumps(content, key="another", salt=tickets._SALT),
        "tampered": "A" + ticket[1:],
        "nonsense": "%00",
        # Signed by the platform for another purpose.
        "list": signing.dumps(content, salt="elsewhere"),
    }[forge]
    assert status_of(stream_server, f"cluster?ticket={ticket}") == 401


@pytest.fixture
def reader(stream_server: StreamServer, client: Client, job: Job, redis: Redis) -> Iterator[Reader]:
    """Yield a page that follows a job."""
    ticket = ticket_for(client, f"jobs/{job.pk}/events")
    with reading(stream_server, f"jobs/{job.pk}/events?ticket={ticket}", {"Origin": ORIGIN}) as reader:
        publish_until_seen(redis, reader, f"punctual:job:{job.pk}", {"kind": "changed"})
        yield reader


def test_logging_out_ends_the_sessions_streams_and_its_tickets(
    stream_server: StreamServer, client: Client, reader: Reader
) -> None:
    ticket = ticket_for(client, "cluster")
    client.post("/logout/")
    assert reader.next_where(closed=True)
    assert status_of(stream_server, f"cluster?ticket={ticket}") == 401


def test_a_changed_password_ends_tickets(stream_server: StreamServer, client: Client, person: Any) -> None:
    ticket = ticket_for(client, "cluster")
    person.set_password("another correct horse")
    person.save()
    assert status_of(stream_server, f"cluster?ticket={ticket}") == 401


def test_disabling_an_account_ends_its_streams_at_once(
    stream_server: StreamServer, person: Any, reader: Reader
) -> None:
    user_update(user=person, actor=None, is_active=False)
    assert reader.next_where(closed=True)


def test_disabling_an_account_ends_its_tokens_streams_at_once(
    stream_server: StreamServer, person: Any, job: Job, redis: Redis
) -> None:
    _, secret = token_issue(user=person, name="follower")
    headers = {"Authorization": f"Bearer {secret}"}
    with reading(stream_server, f"jobs/{job.pk}/events", headers) as reader:
        publish_until_seen(redis, reader, f"punctual:job:{job.pk}", {"kind": "changed"})
        user_update(user=person, actor=None, is_active=False)
        assert reader.next_where(closed=True)


def test_a_disabled_person_opens_nothing(stream_server: StreamServer, client: Client, person: Any) -> None:
    ticket = ticket_for(client, "cluster")
    person.is_active = False
    person.save()
    assert status_of(stream_server, f"cluster?ticket={ticket}") == 401


def test_the_sessions_key_is_in_no_ticket(client: Client, person: Any) -> None:
    ticket = signing.loads(ticket_for(client, "cluster"), salt=tickets._SALT)
    assert str(client.session.session_key) not in str(ticket)
