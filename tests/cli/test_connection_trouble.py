"""Lost connections, unreachable servers, and answers of other services."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.wrappers import Request, Response

from punctual.client import Client
from punctual.client.requests import JobOptions
from punctual.errors import (
    ChecksumError,
    ConflictError,
    ConnectionFailedError,
    InvalidInputError,
    InvalidRequestError,
    LimitReachedError,
    NotFoundError,
    NotLoggedInError,
    PunctualError,
    ServerError,
)
from tests.cli.fake_platform import FakePlatform, function_document, job_document, page, problem

OPTIONS = JobOptions(batch_size=256, max_iterations=500, deadline="20m")


@pytest.fixture
def client(platform: FakePlatform) -> Client:
    return Client(retry_seconds=5)


def test_a_submission_with_a_lost_answer_is_repeated_with_its_key(
    platform: FakePlatform, client: Client
) -> None:
    platform.answers["POST jobs/"] = job_document()
    platform.trouble.extend([None, "drop", 503])  # the first request asks for the user

    assert client.submit("train@1", **OPTIONS).state == "admitted"

    keys = [seen.headers["Idempotency-Key"] for seen in platform.requests("POST jobs/")]
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_different_submissions_have_different_keys(platform: FakePlatform, client: Client) -> None:
    platform.answers["POST jobs/"] = job_document()
    client.submit("train@1", **OPTIONS)
    client.submit("train@1", **OPTIONS)
    assert len({seen.headers["Idempotency-Key"] for seen in platform.requests("POST jobs/")}) == 2


@pytest.mark.parametrize("wrong", [{"deadlin": "20m"}, {"gpus": 4}, {"hyperparameters": {"x": object()}}])
def test_wrong_options_of_a_submission_are_refused(
    platform: FakePlatform, client: Client, wrong: dict[str, Any]
) -> None:
    options: Any = OPTIONS | wrong
    with pytest.raises(InvalidInputError):
        client.submit("train@1", **options)
    assert not platform.requests("POST jobs/")


def test_a_given_idempotency_key_is_used(platform: FakePlatform, client: Client) -> None:
    platform.answers["POST jobs/"] = job_document()
    client.submit("train@1", idempotency_key="nightly-2030-01-31", **OPTIONS)
    assert platform.requests("POST jobs/")[0].headers["Idempotency-Key"] == "nightly-2030-01-31"


def test_a_repeated_submission_waits_for_the_first_ones_answer(
    platform: FakePlatform, client: Client
) -> None:
    platform.answers["POST jobs/"] = job_document()
    platform.trouble.extend([None, (409, {"Retry-After": "0"})])
    assert client.submit("train@1", **OPTIONS).state == "admitted"


def test_a_conflict_that_does_not_pass_is_not_repeated(platform: FakePlatform, client: Client) -> None:
    platform.answers["GET jobs/abc/"] = job_document(id="abc")
    platform.answers["POST jobs/abc/cancel/"] = lambda _: problem(409, detail="The job is completed.")
    with pytest.raises(ConflictError, match="The job is completed"):
        client.job("abc").cancel()
    assert platform.counted["POST jobs/abc/cancel/"] == 1


def test_a_refusal_by_quota_is_not_retried(platform: FakePlatform, client: Client) -> None:
    platform.answers["POST jobs/"] = lambda _: problem(
        429, code="quota_exceeded", detail="8 of 8 jobs are active."
    )
    with pytest.raises(LimitReachedError, match="8 of 8"):
        client.submit("train@1", **OPTIONS)
    assert platform.counted["POST jobs/"] == 1


def test_requests_answered_with_a_secret_are_never_repeated(platform: FakePlatform, client: Client) -> None:
    platform.answers["POST tokens/7/rotate/"] = {"id": 7, "token": "fresh"}
    platform.trouble.append("drop")
    with pytest.raises(ConnectionFailedError):
        client.tokens.rotate(7)
    assert len(platform.requests("POST tokens/7/rotate/")) == 1


def test_an_unreachable_server_is_given_up_with_a_hint() -> None:
    with pytest.raises(ConnectionFailedError) as failed:
        Client("http://127.0.0.1:9", "token", retry_seconds=0.3).me()
    assert "nothing answers at http://127.0.0.1:9" in failed.value.message
    assert failed.value.hint


def test_retries_are_reported_to_the_caller(platform: FakePlatform) -> None:
    messages: list[str] = []
    platform.trouble.append(503)
    Client(retry_seconds=5, on_retry=lambda message, seconds: messages.append(message)).me()
    assert messages == ["trouble 503"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, InvalidRequestError), (401, NotLoggedInError), (404, NotFoundError), (500, ServerError)],
)
def test_problems_become_exceptions(
    platform: FakePlatform, client: Client, status: int, kind: type[PunctualError]
) -> None:
    platform.answers["GET jobs/abc/"] = lambda _: problem(status)
    with pytest.raises(kind):
        client.job("abc")


def test_field_errors_are_named_once(platform: FakePlatform, client: Client) -> None:
    errors = {"termination": {"max_iterations": ["Must be positive."]}, "data": [{}, {"url": ["Not a URL."]}]}
    platform.answers["POST jobs/"] = lambda _: problem(400, detail="Must be positive.", errors=errors)
    with pytest.raises(InvalidRequestError) as refused:
        client.submit("train@1", **OPTIONS)
    assert refused.value.errors == {
        "termination.max_iterations": ["Must be positive."],
        "data.1.url": ["Not a URL."],
    }
    assert refused.value.message == "Must be positive; data.1.url: Not a URL"


@pytest.mark.parametrize(
    "body",
    ["<html>hello</html>", "[]", "null", "7", '{"id": 5, "deadline_at": 12}', '{"state": "running"}', "{"],
)
def test_an_answer_from_another_service_is_an_error_and_no_crash(
    platform: FakePlatform, client: Client, body: str
) -> None:
    platform.answers["GET jobs/abc/"] = lambda _: Response(body, content_type="text/html")
    with pytest.raises(ServerError, match="could not be understood"):
        client.job("abc")


def test_a_web_page_that_is_no_platform_is_named(platform: FakePlatform, client: Client) -> None:
    platform.answers["GET jobs/abc/"] = lambda _: Response("<html>", status=404)
    with pytest.raises(NotFoundError) as failed:
        client.job("abc")
    assert "Punctual server" in (failed.value.hint or "")


def test_a_redirect_is_not_followed_with_the_token(platform: FakePlatform, client: Client) -> None:
    platform.answers["GET jobs/abc/"] = lambda _: Response(
        status=301, headers={"Location": "https://elsewhere/"}
    )
    with pytest.raises(PunctualError, match="elsewhere"):
        client.job("abc")


def test_unknown_fields_of_a_newer_server_are_kept(platform: FakePlatform, client: Client) -> None:
    platform.answers["GET jobs/abc/"] = job_document(id="abc", colour="blue")
    assert client.job("abc").raw["colour"] == "blue"


def test_lists_are_read_through_all_pages(platform: FakePlatform, client: Client) -> None:
    def answer(request: Request) -> dict[str, Any]:
        cursor = request.args.get("cursor")
        document = page(job_document(id=cursor or "first"))
        return document | {"next": None if cursor else "http://inside:1/api/v1/jobs/?cursor=second"}

    platform.answers["GET jobs/"] = answer
    assert [job.id for job in client.jobs()] == ["first", "second"]
    assert [job.id for job in client.jobs(limit=1)] == ["first"]


def test_waiting_for_a_verdict_backs_off_from_a_busy_server(platform: FakePlatform, client: Client) -> None:
    answers = iter([job_document("submitted"), job_document("profiling"), job_document("admitted")])
    platform.answers["GET jobs/abcdefghjkmn/"] = lambda _: next(answers)
    job = client.job("abcdefghjkmn")
    job.wait_for_verdict()
    assert job.decided
    assert [seen.query for seen in platform.requests("GET jobs/abcdefghjkmn/")] == [
        {},
        {"wait": ["30"]},
        {"wait": ["30"]},
    ]


def test_following_through_an_outage_neither_loses_nor_repeats_events(platform: FakePlatform) -> None:
    events: list[dict[str, Any]] = [
        {"id": n, "kind": "running", "message": f"event {n}", "detail": {}, "actor": ""} for n in range(1, 7)
    ]
    looks = iter(range(1, 7))
    known = {"upto": 0}

    def job(_: Request) -> Any:
        known["upto"] = next(looks, 6)
        return job_document("completed" if known["upto"] == 6 else "running", id="abc")

    def newest_first(_: Request) -> Any:
        if platform.counted["GET jobs/abc/events/"] == 4:
            return problem(503)
        return page(*(event for event in reversed(events) if event["id"] <= known["upto"]))

    platform.answers |= {"GET jobs/abc/": job, "GET jobs/abc/events/": newest_first}
    client = Client(retry_seconds=0)
    job_of_mine = client.job("abc")
    assert [event.id for event in job_of_mine.follow()] == [1, 2, 3, 4, 5, 6]
    assert job_of_mine.state == "completed"


def test_a_stream_wakes_the_follower_and_may_end(platform: FakePlatform) -> None:
    asked, opened = threading.Event(), threading.Event()

    def stream(_: Request) -> Response:
        def body() -> Iterator[bytes]:
            opened.set()
            asked.wait(60)
            yield b': hello\n\nevent: job\ndata: {"kind": "changed"}\nid: 5\n\n'

        return Response(body(), content_type="text/event-stream")

    def job(_: Request) -> Any:
        if platform.counted["GET jobs/abc/"] == 2:
            opened.wait(60)
            asked.set()
        return job_document("completed" if platform.counted["GET jobs/abc/"] > 2 else "running", id="abc")

    platform.answers["GET me/"] = platform.answers["GET me/"] | {"stream_url": platform.url}
    platform.answers |= {"GET jobs/abc/": job, "GET /stream/jobs/abc/events": stream}
    with Client() as client:
        assert client.job("abc").wait().state == "completed"
    assert (
        platform.requests("GET /stream/jobs/abc/events")[0].headers["Authorization"] == "Bearer token-of-ada"
    )


def test_a_localhost_stream_address_of_a_remote_platform_is_ignored() -> None:
    client = Client("http://platform.example", "secret")
    client._me = {"stream_url": "http://127.0.0.1:8002"}
    assert client.stream_address("stream/cluster") is None
    client._me = {"stream_url": "http://platform.example:8002"}
    assert client.stream_address("stream/cluster") == "http://platform.example:8002/stream/cluster"


def test_a_damaged_download_is_refused_and_leaves_nothing(
    platform: FakePlatform, client: Client, tmp_path: Path
) -> None:
    platform.answers["GET jobs/abc/"] = job_document("completed", id="abc")
    listed = {"name": "weights.pt", "size_bytes": 4, "sha256": "0" * 64}
    platform.answers["GET jobs/abc/artifacts/"] = page(listed)
    platform.answers["GET jobs/abc/artifacts/weights.pt/"] = lambda _: Response(b"evil")
    job = client.job("abc")
    with pytest.raises(ChecksumError):
        job.download(job.artifacts()[0], tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/../../b", "..", "a\\..\\b"])
def test_an_artifact_cannot_leave_the_folder(
    platform: FakePlatform, client: Client, tmp_path: Path, name: str
) -> None:
    platform.answers["GET jobs/abc/"] = job_document("completed", id="abc")
    platform.answers["GET jobs/abc/artifacts/"] = page({"name": name, "size_bytes": 4, "sha256": ""})
    job = client.job("abc")
    with pytest.raises(PunctualError, match="leads out of the folder"):
        job.download(job.artifacts()[0], tmp_path)


def test_an_upload_sends_the_bundle_with_its_project_and_name(
    platform: FakePlatform, client: Client, tmp_path: Path
) -> None:
    platform.answers["POST functions/"] = function_document()
    (tmp_path / "my train.py").write_text("class Train: ...\n")
    assert client.functions.upload(tmp_path / "my train.py").reference == "train@1"
    body = platform.requests("POST functions/")[0].body
    assert b'name="project"\r\n\r\nvision' in body
    assert b'name="name"\r\n\r\nmy-train' in body
    assert b"class Train: ..." in body
