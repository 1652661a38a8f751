"""The stream server as a separate process, with real PostgreSQL and Valkey."""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.utils import timezone
from redis import Redis

from launch.valkey import EmbeddedValkey
from scheduling.choices import JobState
from scheduling.models import Job
from tests import factories
from tests.dashboard.waiting import wait_until
from tests.streams.server import CLIENT, STREAMS_PER_CALLER, StreamServer, start_stream_server, stop

pytestmark = pytest.mark.django_db(transaction=True)

#: Limit of each wait; only a hang reaches it.
PATIENCE_SECONDS = 60.0


class Reader:
    """Reads one stream in a thread and queues its events."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.opened = threading.Event()
        self.response_headers: httpx.Headers = httpx.Headers()
        self.status = 0
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._read, args=(url, headers), daemon=True)
        self._thread.start()
        assert self.opened.wait(PATIENCE_SECONDS), f"{url} did not answer"

    def _read(self, url: str, headers: dict[str, str]) -> None:
        try:
            with CLIENT.stream("GET", url, headers=headers, timeout=PATIENCE_SECONDS) as response:
                self.status, self.response_headers = response.status_code, response.headers
                self._socket = response.extensions["network_stream"].get_extra_info("socket")
                self.opened.set()
                event: dict[str, Any] = {}
                for line in response.iter_lines():
                    if not line and "data" in event:
                        self.events.put(event)
                        event = {}
                    name, colon, value = line.partition(": ")
                    if colon and name:
                        event[name] = json.loads(value) if name == "data" else value
                self.events.put({"closed": True})
        except httpx.TransportError as error:
            self.opened.set()
            self.events.put({"closed": True, "error": error})

    def next(self, timeout_seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        return self.events.get(timeout=timeout_seconds)

    def next_where(self, **wanted: Any) -> dict[str, Any]:
        while True:
            event = self.next()
            if all(event.get(name) == value for name, value in wanted.items()):
                return event

    def close(self) -> None:
        # Closing alone would leave it open for the server while the thread waits for data.
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_SECONDS)


@contextmanager
def reading(server: StreamServer, path: str, headers: dict[str, str]) -> Iterator[Reader]:
    reader = Reader(f"{server.url}/stream/{path}", headers)
    try:
        yield reader
    finally:
        reader.close()


def get(server: StreamServer, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    return CLIENT.get(f"{server.url}/stream/{path}", headers=headers, timeout=PATIENCE_SECONDS)


@pytest.fixture
def redis() -> Redis:
    return Redis.from_url(os.environ["REDIS_URL"])


def bearer(user: Any) -> dict[str, str]:
    token = f"pt_{user.username}_secret"
    factories.ApiTokenFactory.create(user=user, secret=token)
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def job() -> Job:
    job = factories.JobFactory.create(state=JobState.RUNNING)
    factories.MembershipFactory.create(project=job.project, user=job.owner)
    return job


def publish_until_seen(redis: Redis, reader: Reader, channel: str, payload: dict[str, Any]) -> dict[str, Any]:
    """A note may come before the server has subscribed to the broker, so it is repeated until one arrives."""
    for _ in range(300):
        redis.publish(channel, json.dumps(payload))
        try:
            while True:
                event = reader.next(0.2)
                if event.get("event") is None or event["event"] == "desired":
                    return event
        except queue.Empty:
            continue
    raise AssertionError("no note arrived")


def test_a_stream_needs_authentication(stream_server: StreamServer, job: Job) -> None:
    for path in ("cluster", f"jobs/{job.id}/events", f"jobs/{job.id}/logs", "agents/wakeups"):
        answer = get(stream_server, path)
        assert answer.status_code == 401
        assert answer.headers["content-type"] == "application/problem+json"
        wrong = get(stream_server, path, {"Authorization": "Bearer pt_wrong"})
        assert wrong.status_code == 401


def test_a_strangers_job_is_answered_like_an_unknown_one(stream_server: StreamServer, job: Job) -> None:
    headers = bearer(factories.UserFactory.create())
    for kind in ("events", "logs"):
        foreign = get(stream_server, f"jobs/{job.id}/{kind}", headers)
        missing = get(stream_server, f"jobs/doesnotexist/{kind}", headers)
        assert foreign.status_code == missing.status_code == 404
        assert foreign.json() == missing.json()


def test_revoked_and_expired_tokens_open_nothing(stream_server: StreamServer) -> None:
    user = factories.UserFactory.create()
    factories.ApiTokenFactory.create(user=user, secret="pt_revoked", revoked_at=timezone.now())
    factories.ApiTokenFactory.create(user=user, secret="pt_expired", expires_at=timezone.now())
    for token in ("pt_revoked", "pt_expired"):
        assert get(stream_server, "cluster", {"Authorization": f"Bearer {token}"}).status_code == 401


def test_the_cluster_stream_carries_only_the_kind_of_change(
    stream_server: StreamServer, redis: Redis
) -> None:
    with reading(stream_server, "cluster", bearer(factories.UserFactory.create())) as reader:
        assert reader.status == 200
        assert reader.response_headers["content-type"].startswith("text/event-stream")
        event = publish_until_seen(
            redis, reader, "punctual:cluster:1", {"kind": "planned", "job": "of somebody else's"}
        )
        assert event["data"] == {"kind": "planned"}


def test_a_job_stream_carries_only_that_jobs_notes(
    stream_server: StreamServer, job: Job, redis: Redis
) -> None:
    with reading(stream_server, f"jobs/{job.id}/events", bearer(job.owner)) as reader:
        redis.publish("punctual:job:another", json.dumps({"kind": "logs"}))
        event = publish_until_seen(redis, reader, f"punctual:job:{job.id}", {"kind": "metrics"})
        assert event["data"] == {"kind": "metrics"}


def test_malformed_notes_do_not_end_a_stream(stream_server: StreamServer, job: Job, redis: Redis) -> None:
    with reading(stream_server, f"jobs/{job.id}/events", bearer(job.owner)) as reader:
        channel = f"punctual:job:{job.id}"
        publish_until_seen(redis, reader, channel, {"kind": "changed"})
        for nonsense in ("", "{", "[1]", "\xff", '"text"'):
            redis.publish(channel, nonsense)
        redis.publish(channel, json.dumps({"kind": "logs"}))
        assert reader.next_where(data={"kind": "logs"})


def test_a_log_is_followed_from_the_database_and_on_to_its_end(
    stream_server: StreamServer, job: Job, redis: Redis
) -> None:
    first, second = (factories.LogChunkFactory.create(job=job) for _ in range(2))
    with reading(stream_server, f"jobs/{job.id}/logs?after={first.id}", bearer(job.owner)) as reader:
        event = reader.next()
        assert event["data"]["text"] == second.text
        assert event["id"] == str(second.id)
        hostile = factories.LogChunkFactory.create(
            job=job, text='</script>\n\ndata: {"forged": 1}\n\nµ\x1b[31m'
        )
        redis.publish(f"punctual:job:{job.id}", json.dumps({"kind": "logs"}))
        wait_until(lambda: not reader.events.empty() or not _publish(redis, job), "the new piece arrives")
        event = reader.next()
        assert event["data"]["text"] == hostile.text
        Job.objects.filter(pk=job.id).update(state=JobState.COMPLETED, finished_at=timezone.now())
        redis.publish(f"punctual:job:{job.id}", json.dumps({"kind": "changed"}))
        assert reader.next_where(event="end")["data"] == {"state": "completed"}


def _publish(redis: Redis, job: Job) -> int:
    return int(redis.publish(f"punctual:job:{job.id}", json.dumps({"kind": "logs"})))


def test_a_log_chunk_committed_late_with_a_lower_id_is_not_lost(
    stream_server: StreamServer, job: Job, redis: Redis
) -> None:
    late = factories.LogChunkFactory.create(job=job, rank=1, text="late\n")
    late_id = late.id
    late.delete()
    early = factories.LogChunkFactory.create(job=job, rank=0, text="early\n")
    with reading(stream_server, f"jobs/{job.id}/logs", bearer(job.owner)) as reader:
        assert reader.next()["data"]["id"] == early.id
        factories.LogChunkFactory.create(id=late_id, job=job, rank=1, text="late\n")
        wait_until(lambda: not reader.events.empty() or not _publish(redis, job), "the late piece arrives")
        assert reader.next()["data"]["text"] == "late\n"


def test_a_reader_that_reconnects_resumes_after_its_last_chunk(stream_server: StreamServer, job: Job) -> None:
    chunks = [factories.LogChunkFactory.create(job=job) for _ in range(3)]
    headers = {**bearer(job.owner), "Last-Event-ID": str(chunks[1].id)}
    with reading(stream_server, f"jobs/{job.id}/logs?after=0", headers) as reader:
        assert reader.next()["data"]["id"] == chunks[2].id


def test_an_agent_receives_the_present_and_every_later_version(
    stream_server: StreamServer, redis: Redis
) -> None:
    server = factories.ServerFactory.create(desired_version=7, agent="agent-secret")
    headers = {"Authorization": "Agent agent-secret"}
    with reading(stream_server, "agents/wakeups", headers) as reader:
        first = reader.next()
        assert (first["event"], first["data"]) == ("desired", 7)
        channel = f"punctual:agent:{server.id}"
        wait_until(
            lambda: redis.publish(channel, json.dumps({"desired_version": 8})) > 0, "the server listens"
        )
        assert reader.next_where(data=8)["event"] == "desired"


def test_an_agent_receives_no_versions_of_other_servers(stream_server: StreamServer, redis: Redis) -> None:
    holder = factories.ServerFactory.create(desired_version=3)
    neighbour = factories.ServerFactory.create(
        cluster=holder.cluster, desired_version=7, agent="neighbour-secret"
    )
    with reading(stream_server, "agents/wakeups", {"Authorization": "Agent neighbour-secret"}) as reader:
        assert reader.next()["data"] == 7
        own = f"punctual:agent:{neighbour.id}"
        wait_until(lambda: redis.publish(own, json.dumps({"desired_version": 7})) > 0, "the server listens")
        redis.publish(f"punctual:agent:{holder.id}", json.dumps({"desired_version": 4}))
        redis.publish(own, json.dumps({"desired_version": 8}))
        heard = [reader.next()["data"]]
        while heard[-1] != 8:
            heard.append(reader.next()["data"])
        assert set(heard) <= {7, 8}


def test_a_revoked_agent_and_a_users_token_open_no_wakeups(stream_server: StreamServer) -> None:
    server = factories.ServerFactory.create(agent="revoked-secret")
    server.agent.revoked_at = timezone.now()
    server.agent.save()
    for headers in ({"Authorization": "Agent revoked-secret"}, bearer(factories.UserFactory.create())):
        assert get(stream_server, "agents/wakeups", headers).status_code == 401


def test_streams_per_caller_are_limited_while_open(
    stream_server: StreamServer,
) -> None:
    headers = bearer(factories.UserFactory.create())
    readers = [Reader(f"{stream_server.url}/stream/cluster", headers) for _ in range(STREAMS_PER_CALLER)]
    try:
        refused = get(stream_server, "cluster", headers)
        assert refused.status_code == 429
        assert refused.headers["retry-after"]
    finally:
        for reader in readers:
            reader.close()

    def admitted() -> bool:
        url = f"{stream_server.url}/stream/cluster"
        with CLIENT.stream("GET", url, headers=headers, timeout=PATIENCE_SECONDS) as response:
            return response.status_code == 200

    wait_until(admitted, "closed streams are no longer counted")


def test_streams_survive_a_broker_restart_and_send_a_resync(tmp_path: Path, django_db_setup: None) -> None:
    from tests.plugins import embedded_servers

    valkey = EmbeddedValkey(tmp_path / "valkey", tmp_path / "broker", durable=False)
    valkey.prepare()
    embedded_servers._start("Valkey", valkey, tmp_path)
    broker, signal_number = embedded_servers._servers.pop()
    server = start_stream_server(tmp_path, valkey.url())
    try:
        with reading(server, "cluster", bearer(factories.UserFactory.create())) as reader:
            publish_until_seen(Redis.from_url(valkey.url()), reader, "punctual:cluster:1", {"kind": "jobs"})
            broker.kill()
            broker.wait()
            embedded_servers._start("Valkey", valkey, tmp_path)
            broker, signal_number = embedded_servers._servers.pop()
            assert reader.next_where(event="resync")
            again = Redis.from_url(valkey.url())
            assert publish_until_seen(again, reader, "punctual:cluster:1", {"kind": "planned"})
    finally:
        stop(server.process)
        broker.send_signal(signal_number)
        broker.wait(PATIENCE_SECONDS)
