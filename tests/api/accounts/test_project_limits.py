"""The number of projects is limited, and projects are archived and deleted by rules."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from projects.models import Project, Role, UserQuota
from scheduling.models import Assignment, Bundle, Job
from scheduling.services.verdicts.quotas import profiling_refusal
from tests import factories as make
from tests.api.conftest import SOURCE, World


def create(world: World, name: str) -> Any:
    return world.client(world.owner).post("/api/v1/projects/", {"name": name}, format="json")


def upload(world: World, project: str, source: str = SOURCE) -> Any:
    fields = {"project": project, "name": "classifier", "bundle": SimpleUploadedFile("c.py", source.encode())}
    return world.client(world.owner).post("/api/v1/functions/", fields, format="multipart")


def limit(world: World, **limits: Any) -> None:
    answer = world.client(world.operator).patch("/api/v1/users/owner/quota/", limits, format="json")
    assert answer.status_code == 200


def test_project_quota_counts_archived_and_left_but_not_deleted_ones(world: World) -> None:
    limit(world, projects=2)
    assert [create(world, f"mine{n}").status_code for n in range(3)] == [201, 201, 429]
    client = world.client(world.owner)
    # A project that its creator left or archived still counts.
    make.MembershipFactory.create(
        project=Project.objects.get(name="mine0"), user=world.stranger, role=Role.OWNER
    )
    assert client.delete("/api/v1/projects/mine0/members/owner/").status_code == 204
    assert client.post("/api/v1/projects/mine1/archive/").status_code == 200
    assert create(world, "mine3").status_code == 429
    assert client.delete("/api/v1/projects/mine1/").status_code == 204
    assert create(world, "mine3").status_code == 201


def test_unfinished_jobs_count_over_all_projects_of_their_creator(world: World) -> None:
    limit(world, active_jobs=2)
    for name in ("mine0", "mine1"):
        create(world, name)
        assert upload(world, name).status_code == 201
    client = world.client(world.owner)
    answers = [
        client.post("/api/v1/jobs/", world.body(project=f"mine{n % 2}"), format="json") for n in range(3)
    ]
    assert [answer.status_code for answer in answers] == [201, 201, 429]
    assert "All projects that owner created" in answers[2].json()["detail"]
    # The project of the fixture has no creator, so its own limit holds.
    assert client.post("/api/v1/jobs/", world.body(), format="json").status_code == 201


def test_stored_code_counts_over_all_projects_of_their_creator(world: World) -> None:
    limit(world, stored_bundle_bytes=len(SOURCE) + 10)
    create(world, "mine0")
    create(world, "mine1")
    assert upload(world, "mine0").status_code == 201
    assert upload(world, "mine1").status_code == 201, "the same bytes are stored once"
    assert upload(world, "mine1", SOURCE + "# another\n").status_code == 429


def test_measuring_counts_over_all_projects_of_their_creator(world: World) -> None:
    create(world, "mine0")
    create(world, "mine1")
    first, second = (
        make.JobFactory.create(project=Project.objects.get(name=name), owner=world.owner, state="running")
        for name in ("mine0", "mine1")
    )
    make.GenerationFactory.create(job=first, purpose="profiling", held_at=timezone.now(), gpus=[])
    limit(world, profiling_seconds_per_day=0)
    refusal = profiling_refusal(Job.objects.get(pk=second.pk).project, timezone.now())
    assert refusal is not None
    assert refusal.startswith("All projects that owner created measured functions for 0 s within a day")
    limit(world, profiling_seconds_per_day=100)
    assert profiling_refusal(Job.objects.get(pk=second.pk).project, timezone.now()) is None
    assert profiling_refusal(world.project, timezone.now()) is None


def test_operators_create_projects_beyond_their_quota(world: World) -> None:
    UserQuota.objects.create(user=world.operator, projects=0, active_jobs=0)
    client = world.client(world.operator)
    assert client.post("/api/v1/projects/", {"name": "theirs"}, format="json").status_code == 201


def test_only_operators_set_quotas_and_strangers_cannot_read_them(world: World) -> None:
    address = "/api/v1/users/owner/quota/"
    assert world.client(world.owner).get(address).json()["projects"] == 20
    assert world.client(world.owner).patch(address, {"projects": 99}, format="json").status_code == 403
    for username in ("owner", "nobody"):
        answer = world.client(world.stranger).get(f"/api/v1/users/{username}/quota/")
        assert answer.status_code == 404
    assert world.client(world.operator).patch(address, {"projects": -1}, format="json").status_code == 400


# --- closing ------------------------------------------------------------------------------------------------


def finish(world: World) -> None:
    Assignment.objects.filter(job__project=world.project).delete()
    Job.objects.filter(project=world.project).update(state="completed", finished_at=timezone.now())


def test_project_with_unfinished_jobs_cannot_be_archived_or_deleted(world: World) -> None:
    client = world.client(world.owner)
    for answer in (
        client.post("/api/v1/projects/vision/archive/"),
        client.delete("/api/v1/projects/vision/"),
    ):
        assert answer.status_code == 409
        assert "not finished" in answer.json()["detail"]
    assert Project.objects.get(name="vision").archived_at is None


def test_archived_project_is_readable_and_read_only_until_restored(world: World) -> None:
    finish(world)
    client = world.client(world.owner)
    assert client.post("/api/v1/projects/vision/archive/").json()["archived_at"]
    assert client.get("/api/v1/projects/").json()["results"] == []
    assert [row["name"] for row in client.get("/api/v1/projects/?archived=true").json()["results"]] == [
        "vision"
    ]
    assert client.get(f"/api/v1/jobs/{world.job.pk}/").status_code == 200
    refused = [
        client.post("/api/v1/jobs/", world.body(), format="json"),
        client.post(f"/api/v1/jobs/{world.job.pk}/clone/", {}, format="json"),
        upload(world, "vision", SOURCE + "# new\n"),
        client.post("/api/v1/projects/vision/invitations/", {"username": "x"}, format="json"),
        client.post("/api/v1/projects/vision/archive/"),
    ]
    assert [answer.status_code for answer in refused] == [409] * 5
    assert client.post("/api/v1/projects/vision/restore/").json()["archived_at"] is None
    assert client.post("/api/v1/jobs/", world.body(), format="json").status_code == 201


def test_project_with_jobs_is_not_deleted_and_an_empty_one_is(world: World) -> None:
    finish(world)
    client = world.client(world.owner)
    refused = client.delete("/api/v1/projects/vision/")
    assert refused.status_code == 409
    assert "archive" in refused.json()["detail"]
    create(world, "mine")
    uploaded = upload(world, "mine", SOURCE + "# mine alone\n").json()
    bundles = Bundle.objects.count()
    assert client.delete("/api/v1/projects/mine/").status_code == 204
    assert not Project.objects.filter(name="mine").exists()
    assert client.get(f"/api/v1/functions/{uploaded['id']}/").status_code == 404
    assert Bundle.objects.count() == bundles - 1


@pytest.mark.parametrize("action", ["archive", "delete_without_jobs", "delete_selected"])
def test_the_admin_closes_by_the_same_rules(world: World, action: str) -> None:
    admin = make.UserFactory.create(is_staff=True, is_superuser=True)
    client = Client()
    client.force_login(admin)
    chosen = {"action": action, "_selected_action": [world.project.pk], "post": "yes"}
    page = client.post("/admin/projects/project/", chosen, follow=True)
    assert page.status_code == 200
    assert client.get(f"/admin/projects/project/{world.project.pk}/delete/").status_code == 403
    assert Job.objects.filter(pk=world.job.pk).exists()
    assert Project.objects.get(name="vision").archived_at is None
    if action == "archive":
        finish(world)
        client.post("/admin/projects/project/", chosen, follow=True)
        assert Project.objects.get(name="vision").archived_at is not None
