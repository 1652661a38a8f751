"""Cluster, decisions and metrics: public facts without the names of other users' jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.utils import timezone

from cluster.models import Agent, EnrolmentToken, Server, ServerLink
from emulated_links.rates import DEFAULT_LINKS, LINKS, ServerLinks
from projects.errors import Conflict
from projects.models import token_digest
from scheduling.api.views import cluster as views
from scheduling.models import GradientProfile
from tests.api.conftest import World
from tests.factories import ServerFactory


def get(world: World, path: str, person: str = "viewer") -> Any:
    return world.client(getattr(world, person)).get(f"/api/v1/{path}")


def by_index(gpus: list[dict[str, Any]]) -> list[Any]:
    return [gpu["job"] for gpu in sorted(gpus, key=lambda gpu: gpu["index"])]


def test_other_peoples_jobs_are_busy(world: World) -> None:
    for path, key in (("gpus/", "results"), (f"servers/{world.server.pk}/", "gpus")):
        shown = by_index(get(world, path).json()[key])
        assert shown[0]["id"] == world.job.pk
        assert shown[2] is None
        assert (shown[3]["id"], shown[3]["name"]) == (None, "busy")
        assert by_index(get(world, path, "operator").json()[key])[3]["id"] == world.foreign_job.pk


def test_no_answer_to_a_member_names_a_foreign_job(world: World) -> None:
    for path in ("gpus/", "servers/", "cluster/", "agents/", "decisions/", f"decisions/{world.decision.pk}/"):
        text = get(world, path).content.decode()
        assert world.foreign_job.pk not in text
        assert world.foreign_job.name not in text


def test_an_operator_sees_the_whole_decision(world: World) -> None:
    decision = get(world, f"decisions/{world.decision.pk}/", "operator").json()
    assert len(decision["summary"]["verdicts"]) == 2
    assert decision["summary"]["notes"]
    assert [event["kind"] for event in decision["events"]] == ["admitted"]
    assert get(world, f"decisions/{world.decision.pk}/snapshot/", "operator").content == b"packed"


def test_decisions_can_be_filtered_by_job(world: World) -> None:
    assert len(get(world, f"decisions/?job={world.job.pk}").json()["results"]) == 1
    assert get(world, "decisions/?job=zzzzzzzzzzzz").json()["results"] == []
    assert get(world, "decisions/?kind=reallocation").json()["results"] == []


def test_links_are_shown_with_their_age_and_source(world: World) -> None:
    assert get(world, "cluster/links/").json()["links"] == []
    other = ServerFactory.create(cluster=world.server.cluster, name="z-other", gpus=1)
    (link,) = get(world, "cluster/links/").json()["links"]
    assert (link["told_by"], link["since"], link["emulated"]) == ("default", None, False)
    first, second = sorted((world.server, other), key=lambda server: server.pk)
    ServerLink.objects.create(
        first=first, second=second, latency_seconds=1e-3, bytes_per_second=5e6, emulated=True,
        measured_at=timezone.now(), tried_at=timezone.now(), problem="void", secret="of two agents alone",
    )  # fmt: skip
    answer = get(world, "cluster/links/")
    (link,) = answer.json()["links"]
    assert (link["told_by"], link["bytes_per_second"], link["emulated"]) == ("measured", 5e6, True)
    assert link["problem"] == "void"
    assert link["since"] is not None
    assert "of two agents" not in answer.content.decode()


def test_times_of_codecs_are_measured_or_the_librarys(world: World) -> None:
    rows = get(world, "cluster/codecs/").json()["codecs"]
    kind = world.server.gpus.get(index=0).kind
    assert {(row["gpu_kind"], row["told_by"], row["since"]) for row in rows} == {(kind, "default", None)}
    measured = {"codec": "fp16", "device": "gpu", "elements": [10, 20]}
    times = {"encode_seconds": [1e-3, 2e-3], "decode_seconds": [3e-3, 4e-3]}
    GradientProfile.objects.create(
        key="k", gpu_kind=kind, gpus=2, content={"codecs": [{**measured, **times}], "tensors": []}
    )
    GradientProfile.objects.create(key="newer", gpu_kind=kind, gpus=1, content={"codecs": [], "tensors": []})
    by_codec = {row["codec"]: row for row in get(world, "cluster/codecs/").json()["codecs"]}
    assert by_codec["fp16"]["told_by"] == "measured"
    assert by_codec["fp16"]["since"] is not None
    assert by_codec["fp16"]["elements"] == [10, 20]
    assert {name: by_codec["fp16"][name] for name in times} == times
    assert by_codec["onebit"]["told_by"] == "default"


def test_a_servers_emulated_links_are_shown(world: World) -> None:
    assert get(world, f"servers/{world.server.pk}/").json()["links"] == []
    Server.objects.update(links=ServerLinks.from_message(DEFAULT_LINKS).to_message())
    Agent.objects.update(link_load={"disk": {"state": 1e8}})
    links = {link["name"]: link for link in get(world, f"servers/{world.server.pk}/").json()["links"]}
    assert list(links) == list(LINKS)
    assert links["disk"] == {
        "name": "disk",
        "emulated": True,
        "bytes_per_second": 5e8,
        "latency_seconds": 0.0,
        "load_bytes_per_second": {"state": 1e8},
        "load": 0.2,
    }


def test_the_summary_counts_each_gpu_once(world: World) -> None:
    summary = get(world, "cluster/").json()
    uses = summary["gpus"]["by_use"]
    assert sum(uses.values()) == summary["gpus"]["total"] == 4
    assert (uses["best_effort"], uses["idle"]) == (3, 1)
    assert (summary["emulated"], summary["servers"]["up"], summary["jobs"]["running"]) == (True, 1, 2)


def test_an_empty_installation_has_a_summary(db: None) -> None:
    from rest_framework.test import APIClient

    from tests import factories as make

    client = APIClient()
    client.force_authenticate(make.UserFactory.create())
    summary = client.get("/api/v1/cluster/").json()
    assert (summary["name"], summary["planner"], summary["gpus"]["total"]) == (None, None, 0)


def test_a_drain_lists_the_promises_it_would_break(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*, server: Server, actor: Any, force: bool, reason: str) -> Server:
        raise Conflict(
            "Would break 1 promise.",
            extra={
                "broken_promises": [
                    {"job": world.job.pk, "name": "n", "project": "vision", "deadline_at": None}
                ]
            },
        )

    monkeypatch.setattr(views, "server_drain", refuse)
    answer = world.client(world.operator).post(f"/api/v1/servers/{world.server.pk}/drain/", {}, format="json")
    assert answer.status_code == 409
    assert [promise["job"] for promise in answer.json()["broken_promises"]] == [world.job.pk]


def patch_server(world: World, person: str = "operator", **body: Any) -> Any:
    address = f"/api/v1/servers/{world.server.pk}/"
    return world.client(getattr(world, person)).patch(address, body, format="json")


def test_operator_sets_and_clears_the_end_of_a_server(world: World) -> None:
    answer = patch_server(world, available_until="2100-01-31T14:00:00+02:00", force=True)
    assert (answer.status_code, answer.json()["available_until"]) == (200, "2100-01-31T12:00:00Z")
    assert get(world, f"servers/{world.server.pk}/").json()["available_until"] == "2100-01-31T12:00:00Z"
    assert patch_server(world, available_until=None).json()["available_until"] is None


@pytest.mark.parametrize(
    ("until", "word"),
    [
        ("2100-01-31T14:00:00", "offset"),
        ("2001-01-31T14:00:00Z", "future time"),
        ("tomorrow", "RFC 3339"),
        (5, "RFC 3339"),
    ],
)
def test_end_of_a_server_in_the_past_is_refused(world: World, until: Any, word: str) -> None:
    answer = patch_server(world, available_until=until)
    assert answer.status_code == 400
    assert word in answer.json()["errors"]["available_until"][0]
    assert Server.objects.get(pk=world.server.pk).available_until is None


def test_only_operators_set_the_end_of_a_server(world: World) -> None:
    assert patch_server(world, "owner", available_until="2100-01-31T14:00:00Z").status_code == 403
    assert patch_server(world, cores=5).status_code == 400
    assert Server.objects.get(pk=world.server.pk).available_until is None


def test_an_enrolment_token_is_shown_once(world: World) -> None:
    answer = world.client(world.operator).post(
        "/api/v1/enrolment-tokens/", {"server_name": "node-b"}, format="json"
    )
    assert answer.status_code == 201
    stored = EnrolmentToken.objects.get()
    assert (stored.digest, stored.server_name) == (token_digest(answer.json()["token"]), "node-b")


def test_a_revoked_agent_is_shown_as_revoked(world: World) -> None:
    agent = Agent.objects.get(server=world.server)
    answer = world.client(world.operator).post(f"/api/v1/agents/{agent.pk}/revoke/", format="json")
    assert answer.json()["revoked_at"] is not None


def test_metrics_are_for_operators(world: World) -> None:
    assert world.client(None).get("/metrics").status_code == 401
    assert world.client(world.owner).get("/metrics").status_code == 403
    answer = world.client(world.operator).get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    lines = answer.content.decode().splitlines()
    assert 'punctual_gpus{use="idle"} 1.0' in lines
    assert 'punctual_jobs{service_class="best_effort",state="running"} 2.0' in lines
    assert any(line.startswith('punctual_agent_silent_seconds{server="node-a"}') for line in lines)


def patch_cluster(world: World, person: str = "operator", **body: Any) -> Any:
    return world.client(getattr(world, person)).patch("/api/v1/cluster/", body, format="json")


def test_summary_shows_present_and_advised_standby_servers(world: World) -> None:
    answer = patch_cluster(world, failures_per_server_day=48.0, replacement_seconds=3600)
    assert answer.status_code == 200
    standby = answer.json()["standby"]
    (pool,) = standby["pools"]
    assert (standby["standby_servers"], standby["failures_per_server_day"]) == (0, 48.0)
    assert (pool["servers"], pool["wanted"], pool["ready"], pool["advised"]) == (1, 0, [], 1)
    assert get(world, "cluster/").json()["standby"] == standby


@pytest.mark.parametrize(
    ("body", "field", "word"),
    [
        ({"standby_servers": 1}, "standby_servers", "at most 0 can stand by"),
        ({"standby_servers": -1}, "standby_servers", "greater than or equal to 0"),
        ({"standby_servers": "1"}, "standby_servers", "valid integer"),
        ({"replacement_seconds": 1e12}, "replacement_seconds", "less than or equal to"),
        ({"failures_per_server_day": float("nan")}, "failures_per_server_day", ""),
        ({}, "standby_servers", "Give a number"),
        ({"spares": 1}, "spares", ""),
    ],
)
def test_a_pool_that_makes_no_sense_is_refused(world: World, body: Any, field: str, word: str) -> None:
    client = world.client(world.operator)
    answer = client.patch("/api/v1/cluster/", json.dumps(body), content_type="application/json")
    assert answer.status_code == 400
    if body.get("failures_per_server_day") is None:
        assert word in answer.json()["errors"][field][0]
    assert get(world, "cluster/").json()["standby"]["standby_servers"] == 0


def test_only_operators_set_the_number_of_standby_servers(world: World) -> None:
    assert patch_cluster(world, "owner", standby_servers=0).status_code == 403
