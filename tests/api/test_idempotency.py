"""A repeated request with an Idempotency-Key is executed once."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.utils import timezone

from projects.models import IdempotencyRecord
from projects.services import expire_idempotency_records, idempotency
from scheduling.models import Job
from tests.api.conftest import SOURCE, World, build_world

KEY: Any = {"HTTP_IDEMPOTENCY_KEY": "7c0a6f2e"}


def submit(world: World, body: dict[str, Any] | None = None, **headers: Any) -> Any:
    return world.client(world.colleague).post("/api/v1/jobs/", body or world.body(), format="json", **headers)


def test_the_first_answer_is_given_again(world: World) -> None:
    before = Job.objects.count()
    first, again = submit(world, **KEY), submit(world, **KEY)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert "Idempotency-Replayed" not in first.headers
    assert again.headers["Idempotency-Replayed"] == "true"
    assert Job.objects.count() == before + 1


def test_a_refusal_is_remembered_as_the_problem_it_was(world: World) -> None:
    body = world.body(function="nothing")
    first, again = submit(world, body, **KEY), submit(world, body, **KEY)
    assert (again.status_code, again.json()) == (400, first.json())
    assert again.headers["Content-Type"] == "application/problem+json"


def test_the_key_belongs_to_one_body(world: World) -> None:
    submit(world, **KEY)
    answer = submit(world, world.body(seed=5), **KEY)
    assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_key_reused")


def test_the_key_belongs_to_one_person(world: World) -> None:
    first = submit(world, **KEY)
    other = world.client(world.owner).post("/api/v1/jobs/", world.body(), format="json", **KEY)
    assert first.json()["id"] != other.json()["id"]


def test_a_running_first_request_is_waited_for(world: World) -> None:
    IdempotencyRecord.objects.create(user=world.colleague, key="7c0a6f2e", request_digest=_digest_of(world))
    answer = submit(world, **KEY)
    assert (answer.status_code, answer.json()["code"]) == (409, "idempotent_request_running")
    assert answer.headers["Retry-After"] == "1"


def test_a_first_request_whose_process_died_is_taken_over(world: World) -> None:
    digest = _digest_of(world)
    long_ago = timezone.now() - idempotency.TAKE_OVER_AFTER - timedelta(seconds=1)
    record = IdempotencyRecord.objects.create(
        user=world.colleague, key="7c0a6f2e", request_digest=digest, created_at=long_ago
    )
    assert submit(world, **KEY).status_code == 201
    with pytest.raises(idempotency.StillRunning):
        idempotency.idempotency_finish(record=record, status_code=201, body={}, headers={})


def _claim_of_ten_seconds_ago(world: World) -> IdempotencyRecord:
    return IdempotencyRecord.objects.create(
        user=world.colleague,
        key="7c0a6f2e",
        request_digest=_digest_of(world),
        created_at=timezone.now() - timedelta(seconds=10),
    )


@pytest.mark.django_db(transaction=True)
def test_whose_process_died_shows_by_its_session(settings: Any, tmp_path: Path) -> None:
    """A web process killed during a request must not cause two minutes of refusals."""
    world = build_world(settings, tmp_path)
    record = _claim_of_ten_seconds_ago(world)
    working, goes = threading.Event(), threading.Event()

    def work() -> None:
        with idempotency.idempotency_held(record):
            working.set()
            goes.wait(60)
        connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    assert working.wait(60)
    answer = submit(world, **KEY)
    assert (answer.status_code, answer.json()["code"]) == (409, "idempotent_request_running")
    goes.set()
    thread.join()
    assert submit(world, **KEY).status_code == 201, "nobody works on it any more"


def test_not_now_is_not_remembered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from projects.errors import Unavailable
    from scheduling.api.views import jobs

    def away(**_: Any) -> Job:
        raise Unavailable("No server is connected.")

    with monkeypatch.context() as context:
        context.setattr(jobs, "job_submit", away)
        assert submit(world, **KEY).status_code == 503
    assert submit(world, **KEY).status_code == 201


def test_a_defect_leaves_no_claim_behind(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from scheduling.api.views import jobs

    def broken(**_: Any) -> Job:
        raise ZeroDivisionError

    client = world.client(world.colleague)
    with monkeypatch.context() as context:
        context.setattr(jobs, "job_submit", broken)
        with pytest.raises(ZeroDivisionError):
            client.post("/api/v1/jobs/", world.body(), format="json", **KEY)
    assert not IdempotencyRecord.objects.exists()


def test_an_upload_is_recognised_behind_another_boundary(world: World) -> None:
    client = world.client(world.colleague)

    def upload() -> Any:
        fields = {"project": "vision", "name": "f", "bundle": SimpleUploadedFile("f.py", SOURCE.encode())}
        return client.post("/api/v1/functions/", fields, format="multipart", **KEY)

    assert upload().status_code == 201
    again = upload()
    assert (again.status_code, again.headers["Idempotency-Replayed"]) == (201, "true")


@pytest.mark.parametrize("key", ["", "with space", "x" * 201, "ü"])
def test_a_key_is_visible_ascii(world: World, key: str) -> None:
    answer = submit(world, HTTP_IDEMPOTENCY_KEY=key)
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["Idempotency-Key"])


def test_answers_with_secrets_are_never_stored(world: World) -> None:
    client = world.client(world.colleague)
    client.post("/api/v1/tokens/", {"name": "ci"}, format="json", **KEY)
    assert not IdempotencyRecord.objects.exists()


def test_records_are_forgotten_after_a_day(world: World) -> None:
    submit(world, **KEY)
    assert expire_idempotency_records() == 0
    IdempotencyRecord.objects.update(created_at=timezone.now() - timedelta(hours=25))
    assert submit(world, **KEY).headers.get("Idempotency-Replayed") is None
    IdempotencyRecord.objects.update(created_at=timezone.now() - timedelta(hours=25))
    assert expire_idempotency_records() == 1


@pytest.mark.django_db(transaction=True)
def test_of_many_requests_at_once_one_submits(settings: Any, tmp_path: Path) -> None:
    world = build_world(settings, tmp_path)
    before = Job.objects.count()
    clients = [world.client(world.colleague) for _ in range(6)]
    barrier = threading.Barrier(len(clients))
    answers: list[Any] = []

    def run(client: Any) -> None:
        barrier.wait(60)
        answers.append(client.post("/api/v1/jobs/", world.body(), format="json", **KEY))
        connection.close()

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert len({answer.json()["id"] for answer in answers if answer.status_code == 201}) == 1
    assert all(answer.headers["Retry-After"] for answer in answers if answer.status_code == 409)
    assert Job.objects.count() == before + 1


def _digest_of(world: World) -> str:
    """Return the digest that identifies the request of :func:`submit`."""
    submit(world, HTTP_IDEMPOTENCY_KEY="probe")
    record = IdempotencyRecord.objects.get(key="probe")
    record.delete()
    return record.request_digest
