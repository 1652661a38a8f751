"""Membership needs the invitee's consent, and invitations reveal no user names."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from projects.models import Invitation, Membership
from projects.services import invitations
from tests import factories as make
from tests.api.accounts.test_token_limits import client_of
from tests.api.conftest import World

INVITATIONS = "/api/v1/projects/vision/invitations/"


def invite(world: World, username: str, role: str = "member") -> Any:
    return world.client(world.owner).post(INVITATIONS, {"username": username, "role": role}, format="json")


def test_an_owner_cannot_make_a_stranger_a_member(world: World) -> None:
    answer = world.client(world.owner).post(
        "/api/v1/projects/vision/members/", {"username": "stranger"}, format="json"
    )
    assert answer.status_code == 403
    assert "invite" in answer.json()["detail"]
    invite(world, "stranger")
    assert not Membership.objects.filter(project=world.project, user=world.stranger).exists()


def test_the_answer_is_the_same_whether_the_name_exists_or_not(world: World) -> None:
    make.UserFactory.create(username="disabled", is_active=False)
    answers = [invite(world, name) for name in ("stranger", "disabled", "nobody")]
    assert {answer.status_code for answer in answers} == {201}
    varying = {"id", "username", "created_at", "expires_at"}
    shapes = [{k: v for k, v in answer.json().items() if k not in varying} for answer in answers]
    assert shapes[0] == shapes[1] == shapes[2]
    # A second invitation and the person's answer reveal nothing either.
    client = world.client(world.stranger)
    mine = client.get("/api/v1/invitations/").json()["results"][0]
    assert client.post(f"/api/v1/invitations/{mine['id']}/decline/").status_code == 204
    assert [invite(world, name).status_code for name in ("stranger", "disabled", "nobody")] == [409] * 3
    listed = world.client(world.owner).get(INVITATIONS).json()["results"]
    assert {"stranger", "disabled", "nobody"} <= {row["username"] for row in listed}
    gone = [
        world.client(world.owner).delete(f"/api/v1/projects/vision/members/{name}/").status_code
        for name in ("stranger", "nobody")
    ]
    assert gone == [404, 404]


def test_the_invited_accepts_and_has_the_role_that_was_offered(world: World) -> None:
    invite(world, "  stranger ", "viewer")
    client = world.client(world.stranger)
    (mine,) = client.get("/api/v1/invitations/").json()["results"]
    assert (mine["project"], mine["role"], mine["invited_by"]) == ("vision", "viewer", "owner")
    assert client.get("/api/v1/projects/vision/").status_code == 404
    assert client.post(f"/api/v1/invitations/{mine['id']}/accept/").json()["role"] == "viewer"
    assert client.get("/api/v1/projects/vision/").json()["role"] == "viewer"
    assert client.post(f"/api/v1/invitations/{mine['id']}/accept/").status_code == 404
    assert invite(world, "stranger").status_code == 409


def test_invitation_is_answered_only_by_its_invitee(world: World) -> None:
    made = invite(world, "stranger").json()
    for person in (world.colleague, world.owner, world.operator):
        for answer in ("accept", "decline"):
            client = world.client(person)
            assert client.post(f"/api/v1/invitations/{made['id']}/{answer}/").status_code == 404
    assert Invitation.objects.filter(pk=made["id"], declined_at=None).exists()


@pytest.mark.parametrize("end", ["declined", "withdrawn", "expired", "archived"])
def test_ended_invitation_cannot_be_accepted(world: World, end: str) -> None:
    client = world.client(world.stranger)
    made = invite(world, "stranger").json()
    address = f"/api/v1/invitations/{made['id']}/"
    if end == "declined":
        client.post(f"{address}decline/")
    elif end == "withdrawn":
        assert world.client(world.owner).delete(f"{INVITATIONS}{made['id']}/").status_code == 204
    elif end == "expired":
        Invitation.objects.filter(pk=made["id"]).update(expires_at=timezone.now())
    else:
        world.project.archived_at = timezone.now()
        world.project.save()
    assert client.post(f"{address}accept/").status_code == (409 if end == "archived" else 404)
    assert not Membership.objects.filter(project=world.project, user=world.stranger).exists()


def test_a_token_for_single_projects_does_not_join_another(world: World) -> None:
    made = invite(world, "stranger").json()
    client = client_of(world.stranger, project_ids=[world.foreign_project.pk])
    assert client.post(f"/api/v1/invitations/{made['id']}/accept/").status_code == 403
    assert not Membership.objects.filter(project=world.project, user=world.stranger).exists()


def test_invitations_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invitations, "MAXIMUM_OPEN", 2)
    answers = [invite(world, f"nobody{n}").status_code for n in range(3)]
    assert answers == [201, 429, 429]
