"""Uploads of functions are content-addressed, atomic, and limited while bytes arrive."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone

from cluster.choices import WorkState
from projects.models import Quota
from scheduling.models import Bundle, Environment, Function, FunctionVersion
from scheduling.services.long_work.environments import BUILDS
from scheduling.services.verdicts.quotas import MOST_UNBUILT_ENVIRONMENTS
from tests.api.conftest import SOURCE, World
from tests.api.functions.test_bundles import LIMITS, MALFORMED, zipped


def upload(world: World, content: bytes | str = SOURCE, name: str = "fresh", **fields: Any) -> Any:
    data = content.encode() if isinstance(content, str) else content
    filename = fields.pop("filename", "fresh.py")
    body = {"project": "vision", "name": name, "bundle": SimpleUploadedFile(filename, data), **fields}
    return world.client(world.colleague).post("/api/v1/functions/", body, format="multipart")


def test_an_upload_becomes_the_next_version(world: World) -> None:
    first = upload(world).json()
    second = upload(world, SOURCE + "\n# changed\n").json()
    assert (first["version"], second["version"]) == (1, 2)
    assert first["id"] == second["id"]
    assert first["entry"] == "fresh:Classifier"
    assert first["created_by"] == "colleague"


def test_the_same_bytes_again_are_the_same_version(world: World) -> None:
    first, again = upload(world), upload(world)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert Bundle.objects.filter(digest=first.json()["digest"]).count() == 1


def test_downloaded_bundle_equals_the_upload(world: World) -> None:
    version = upload(world).json()
    answer = world.client(world.viewer).get(f"/api/v1/functions/{version['id']}/versions/1/bundle/")
    assert answer.content == SOURCE.encode()
    assert answer.headers["X-Content-SHA256"] == version["digest"]


def test_requirements_become_an_environment_to_be_built(world: World) -> None:
    content = zipped(("train.py", SOURCE), ("requirements.txt", "pandas\n"))
    version = upload(world, content, filename="train.zip").json()
    assert version["requirements"]["state"] == "pending"
    assert Environment.objects.get(pk=version["requirements"]["digest"]).requirements == "pandas\n"


def upload_needing(world: World, package: str) -> Any:
    return upload(world, zipped(("train.py", SOURCE), ("requirements.txt", f"{package}\n")), filename="a.zip")


def test_version_shows_the_build_state_of_its_requirements(world: World) -> None:
    upload_needing(world, "first")
    version = upload_needing(world, "pandas").json()
    address = f"/api/v1/functions/{version['id']}/versions/2/"
    asked = world.client(world.viewer)
    digest = version["requirements"]["digest"]
    waiting = {"digest": digest, "state": "pending", "builds_before": 1, "building_since": None}
    assert asked.get(address).json()["requirements"] == waiting | {"error": "", "log": ""}
    assert asked.get("/api/v1/functions/?name=fresh").json()["results"][0]["requirements"] == waiting
    attempt = BUILDS.attempt(digest)
    assert attempt is not None
    attempt.renew(log="looking for pandas")
    shown = asked.get(address).json()["requirements"]
    assert (shown["state"], shown["builds_before"], shown["log"]) == ("building", None, "looking for pandas")
    assert shown["building_since"]
    attempt.fail("not installed", log="no pandas")
    shown = asked.get(address).json()["requirements"]
    assert (shown["state"], shown["error"], shown["log"]) == ("failed", "not installed", "no pandas")
    assert shown["building_since"] is None


@pytest.mark.parametrize("state", [WorkState.FAILED, WorkState.CANCELLED])
def test_uploading_again_builds_what_failed_or_was_cancelled(world: World, state: WorkState) -> None:
    content = zipped(("train.py", SOURCE), ("requirements.txt", "pandas\n"))
    digest = upload(world, content, filename="a.zip").json()["requirements"]["digest"]
    Environment.objects.filter(pk=digest).update(state=state, finished_at=timezone.now(), error="no")
    again = upload(world, content, filename="a.zip")
    assert (again.status_code, again.json()["requirements"]["state"]) == (200, "pending")
    Environment.objects.filter(pk=digest).update(state=WorkState.DONE, finished_at=timezone.now())
    assert upload_needing(world, "pandas").json()["requirements"]["state"] == "ready"


def test_too_many_unbuilt_environments_store_nothing(world: World) -> None:
    for number in range(MOST_UNBUILT_ENVIRONMENTS):
        Environment.objects.create(digest=f"{number}", requirements="x", project=world.project)
    refused = upload_needing(world, "pandas")
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
    assert (
        "Project vision waits for 10 builds of requirements and may wait for 10" in refused.json()["detail"]
    )
    assert not Function.objects.filter(name="fresh").exists()
    assert not Environment.objects.filter(requirements="pandas\n").exists()
    assert upload(world).status_code == 201, "what needs no build"


def test_a_member_cancels_a_build_and_starts_it_again(world: World) -> None:
    version = upload_needing(world, "pandas").json()
    address = f"/api/v1/functions/{version['id']}/versions/1/environment"
    client = world.client(world.owner)
    cancelled = client.post(f"{address}/cancel/").json()["requirements"]
    assert (cancelled["state"], cancelled["error"]) == (
        "cancelled",
        "the build of its requirements was cancelled by owner.",
    )
    assert client.post(f"{address}/cancel/").status_code == 409
    assert client.post(f"{address}/build/").json()["requirements"]["state"] == "pending"
    assert world.client(world.viewer).post(f"{address}/cancel/").status_code == 403
    assert world.client(world.stranger).post(f"{address}/build/").status_code == 404


def test_verdict_of_a_job_shows_the_wait_for_its_requirements(world: World) -> None:
    upload_needing(world, "first")
    digest = upload_needing(world, "pandas").json()["requirements"]["digest"]
    client = world.client(world.colleague)
    job = client.post("/api/v1/jobs/", world.body(function="fresh"), format="json").json()

    def reason() -> str:
        return str(client.get(f"/api/v1/jobs/{job['id']}/").json()["verdict"]["reason"])

    assert reason() == "Its requirements wait to be installed; 1 build goes first."
    assert BUILDS.attempt(digest) is not None
    assert reason().startswith("Its requirements are being installed since ")


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=[] if what in ("half a zip", "two classes") else pytest.mark.slow)
        for what in MALFORMED
    ],
)
def test_a_refused_bundle_leaves_nothing_behind(
    world: World, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduling.services.requests.functions.BundleLimits", lambda unpacked_bytes: LIMITS)
    make_content, code = MALFORMED[what]
    before = (Bundle.objects.count(), Function.objects.count(), FunctionVersion.objects.count())
    answer = upload(world, make_content(), filename="bundle.zip")
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert (Bundle.objects.count(), Function.objects.count(), FunctionVersion.objects.count()) == before


def test_a_hundred_megabytes_are_refused_while_they_arrive(world: World) -> None:
    answer = upload(world, b"#" * (100 * 1024 * 1024))
    assert answer.status_code == 413
    assert answer.json()["code"] == "too_large"
    assert not Function.objects.filter(name="fresh").exists()


def test_an_absurd_length_is_refused_before_the_first_byte(world: World) -> None:
    answer = world.client(world.colleague).generic(
        "POST",
        "/api/v1/functions/",
        "--x\r\n",
        content_type="multipart/form-data; boundary=x",
        CONTENT_LENGTH=str(10**12),
    )
    assert answer.status_code == 413


def test_a_projects_bundles_are_limited(world: World) -> None:
    Quota.objects.create(project=world.project, stored_bundle_bytes=len(SOURCE) + 100)
    assert upload(world).status_code == 201
    assert upload(world).status_code == 200
    refused = upload(world, SOURCE + "\n#" + "x" * 200)
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")


def test_bundle_beyond_the_quota_is_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    Quota.objects.create(project=world.project, stored_bundle_bytes=10)

    def read(*_: Any) -> None:
        pytest.fail("a bundle beyond the quota was read")

    monkeypatch.setattr("scheduling.services.requests.functions.read_bundle_apart", read)
    refused = upload(world, SOURCE + "\nx = [" + "[]," * 100_000 + "]")
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")


def test_a_source_that_cannot_be_read_cheaply_is_refused(world: World, settings: Any) -> None:
    settings.BUNDLE_READING_BYTES = 256 * 1024**2
    refused = upload(world, SOURCE + "\nx = [" + "[[]]," * 300_000 + "]")
    assert (refused.status_code, refused.json()["code"]) == (400, "bundle_too_costly_to_read")
    assert "256 MiB" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", "no spaces"), ("name", ""), ("project", "nowhere"), ("entry", "nonsense"), ("surprise", "x")],
)
def test_a_wrong_field_is_named(world: World, field: str, value: str) -> None:
    answer = upload(world, **{field: value})
    assert answer.status_code == 400
    assert field in answer.json()["errors"]


def test_the_list_holds_the_newest_version_of_each_function(world: World) -> None:
    upload(world)
    upload(world, SOURCE + "\n# changed\n")
    client = world.client(world.viewer)
    rows = client.get("/api/v1/functions/?name=fresh").json()["results"]
    assert [row["version"] for row in rows] == [2]
    versions = client.get(f"/api/v1/functions/{rows[0]['id']}/versions/").json()["results"]
    assert [row["version"] for row in versions] == [2, 1]
    assert client.get("/api/v1/functions/?nmae=fresh").status_code == 400


def test_json_instead_of_a_form_is_an_unsupported_type(world: World) -> None:
    answer = world.client(world.colleague).post("/api/v1/functions/", {"name": "x"}, format="json")
    assert answer.status_code == 415
