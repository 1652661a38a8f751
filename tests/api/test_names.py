"""Deceptive names are refused in every field that takes a name, and the error names the field."""

from __future__ import annotations

import io
import unicodedata
import zipfile
from typing import Any, Literal

import pytest
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import SimpleUploadedFile

from projects.models import ApiToken, User
from scheduling.models import FunctionVersion, Job
from tests.api.conftest import SOURCE, World

EVIL = "vision\u202e\u200b"


@pytest.mark.parametrize(
    ("person", "address", "body", "field"),
    [
        ("owner", "tokens/", {"name": EVIL}, "name"),
        ("owner", "projects/", {"name": EVIL}, "name"),
        ("owner", "projects/", {"name": "fine", "description": EVIL}, "description"),
        ("owner", "projects/vision/invitations/", {"username": EVIL}, "username"),
        ("owner", "jobs/", {"name": EVIL}, "name"),
        ("owner", "jobs/", {"labels": {"team": EVIL}}, "labels.team"),
        ("owner", "jobs/", {"hyperparameters": {"global_batch_size": 64, "\u202egpj": 1}}, "hyperparameters"),
        ("owner", "jobs/", {"hyperparameters": {"global_batch_size": 64, "layers": [{"width": {EVIL: 1}}]}},
         "hyperparameters"),
        ("owner", "jobs/", {"data": [{"name": "a", "url": f"https://example.org/{EVIL}"}]}, "data.0.url"),
        ("owner", "jobs/", {"data": [{"name": "a", "path": f"/data/{EVIL}"}]}, "data.0.path"),
        ("owner", "what-if/", {"hyperparameters": {"global_batch_size": 64, EVIL: 1}}, "hyperparameters"),
        ("owner", "jobs/", {"termination": {"max_iterations": 9, "target": {"metric": EVIL, "at_most": 1}}},
         "termination.target.metric"),
        ("operator", "simulations/", {"source": "live", "policies": ["edf"], "name": EVIL}, "name"),
        ("operator", "enrolment-tokens/", {"server_name": EVIL}, "server_name"),
        ("operator", "inference-clusters/", {"name": EVIL}, "name"),
        ("operator", "servers/SERVER/drain/", {"reason": EVIL}, "reason"),
    ],
)  # fmt: skip
def test_a_name_that_deceives_is_refused(
    world: World, person: str, address: str, body: dict[str, Any], field: str
) -> None:
    client = world.client(getattr(world, person))
    if address in ("jobs/", "what-if/"):
        body = world.body(**body)
    answer = client.post(f"/api/v1/{address.replace('SERVER', str(world.server.pk))}", body, format="json")
    assert (answer.status_code, list(answer.json()["errors"])) == (400, [field])


def test_login_refuses_a_deceptive_token_name(world: World) -> None:
    body = {"username": "owner", "password": "x", "token_name": EVIL}
    answer = world.client(None).post("/api/v1/login/", body, format="json")
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["token_name"])
    assert not ApiToken.objects.filter(name__contains="\u202e").exists()


def test_names_are_stored_in_one_spelling(world: World) -> None:
    body = world.body(name="e\u0301te\u0301", labels={"team": "u\u0308bung"})
    answer = world.client(world.owner).post("/api/v1/jobs/", body, format="json")
    made = Job.objects.get(pk=answer.json()["id"])
    assert (made.name, made.labels) == ("\u00e9t\u00e9", {"team": "\u00fcbung"})


def test_deceptive_names_in_bundles_are_refused_or_replaced(world: World) -> None:
    client = world.client(world.owner)

    def upload(name: str, content: bytes) -> Any:
        fields = {"project": "vision", "name": "classifier", "bundle": SimpleUploadedFile(name, content)}
        return client.post("/api/v1/functions/", fields, format="multipart")

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("train.py", SOURCE)
        archive.writestr("data\u202etxt.exe", "x")
    assert upload("bundle.zip", packed.getvalue()).status_code == 400
    source = SOURCE.replace("Tells shapes apart.", "Tells shapes\u202e apart.")
    assert upload("train.py", source.encode()).status_code == 201
    newest = FunctionVersion.objects.filter(function__name="classifier").latest("pk")
    assert newest.description == "Tells shapes\N{REPLACEMENT CHARACTER} apart."


@pytest.mark.parametrize("field", ["username", "first_name", "last_name"])
def test_accounts_have_names_that_can_be_seen(db: None, field: str) -> None:
    person = User(**{"username": "ada", "password": "x", field: "ada\u3164"})
    with pytest.raises(ValidationError) as refused:
        person.full_clean()
    assert list(refused.value.message_dict) == [field]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("query", ["search=modèle", "label=team:modèle"])
def test_names_are_found_in_either_spelling(world: World, form: Literal["NFC", "NFD"], query: str) -> None:
    Job.objects.filter(pk=world.job.pk).update(name="Le modèle", labels={"team": "modèle"})
    written = unicodedata.normalize(form, query)
    rows = world.client(world.owner).get(f"/api/v1/jobs/?{written}").json()["results"]
    assert [row["id"] for row in rows] == [world.job.pk]
