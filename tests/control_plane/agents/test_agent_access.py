"""Every message of an agent, sent by the holding server, a stranger, a neighbour and a revoked agent."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from cluster.models import Agent, Gpu, Server
from scheduling.models import (
    AppliedEvent,
    Artifact,
    Assignment,
    Checkpoint,
    CurveLevel,
    Environment,
    Generation,
    Job,
    JobEvent,
    JobMetric,
    JobProtection,
    LogChunk,
    Recovery,
    ScalingCurve,
    StateShard,
    Worker,
)
from scheduling.services.agents.enrolment import enrolment_token_create
from tests.control_plane.agent_api import (
    EVENT_FIELDS,
    authorization,
    busy_server,
    event,
    fetch,
    log_piece,
    metric,
    send,
    stored_in_memory,
    training_job,
    worker,
)
from tests.factories import GenerationFactory, ServerFactory

pytestmark = [pytest.mark.django_db, pytest.mark.urls("config.urls_agents")]

ENVIRONMENT = "e" * 64
Sender = Server | str | None


class World:
    """A job with rank 0 on `holder` and rank 1 on `second`, and other servers with work of their own."""

    def __init__(self) -> None:
        self.holder = busy_server("holder")
        self.second = busy_server("second")
        self.neighbour = busy_server("neighbour")
        self.stranger = ServerFactory.create(name="stranger", cluster__name="elsewhere")
        self.revoked = busy_server("revoked")
        self.job, self.generation = training_job(self.holder)
        version = self.job.function_version
        version.requirements_digest = ENVIRONMENT
        version.save()
        for server, rank in ((self.second, 1), (self.revoked, 2)):
            Assignment.objects.create(
                generation=self.generation,
                job=self.job,
                gpu=Gpu.objects.get(server=server, index=0),
                rank=rank,
                state="held",
                held_at=timezone.now(),
            )
        self.profiling: Generation = GenerationFactory.create(
            job=self.job,
            number=2,
            purpose="profiling",
            profile={"levels": [1]},
            held_at=timezone.now(),
            gpus=[Gpu.objects.get(server=self.holder, index=1)],
        )
        training_job(self.neighbour)
        Agent.objects.filter(server=self.revoked).update(revoked_at=timezone.now())
        self.senders: dict[str, Sender] = {
            "a server beside it, with other work": self.neighbour,
            "a server of another cluster": self.stranger,
            "an agent that was revoked": self.revoked,
            "a sender without a credential": None,
            "a sender with a wrong credential": "agent_wrong",
        }


@pytest.fixture
def world(tmp_path: Path, settings: Any) -> World:
    settings.CHECKPOINT_URL = tmp_path.as_uri()
    created = World()
    (tmp_path / "environment.tar.gz").write_bytes(b"packages")
    Environment.objects.create(
        digest=ENVIRONMENT,
        requirements="x",
        state="done",
        finished_at=timezone.now(),
        uri=(tmp_path / "environment.tar.gz").as_uri(),
    )
    return created


OUTSIDERS = (
    "a server beside it, with other work",
    "a server of another cluster",
    "an agent that was revoked",
    "a sender without a credential",
    "a sender with a wrong credential",
)


def _event(kind: str) -> Callable[[World], dict[str, Any]]:
    def make(world: World) -> dict[str, Any]:
        generation = world.profiling if kind.startswith("profile") else world.generation
        return {"events": [event(generation, kind)]}

    return make


ITEMS: dict[str, Callable[[World], dict[str, Any]]] = {
    "workers": lambda world: {"workers": [worker(world.generation)]},
    "workers that ended": lambda world: {
        "workers": [worker(world.generation, phase="exited", exit={"code": 1})]
    },
    "metrics": lambda world: {"metrics": [metric(world.generation)]},
    "logs": lambda world: {"logs": [log_piece(world.generation)]},
    "memory_store": lambda world: {"memory_store": stored_in_memory(world.generation)},
    **{f"event {kind}": _event(kind) for kind in EVENT_FIELDS},
}
#: Reports that only ever concern the sender's own server.
OF_ITS_SERVER: dict[str, dict[str, Any]] = {
    "inventory": {"inventory": {"gpus": [{"index": 0, "kind": "emulated-other"}], "hostname": "new"}},
    "link_load": {"link_load": {"network": {"state": 12_345.0}}},
    "memory_store": {"memory_store": stored_in_memory()},
}
DOWNLOADS: dict[str, Callable[[World], str]] = {
    "bundle": lambda world: f"functions/{world.job.function_version.bundle_id}",
    "environment": lambda world: f"environments/{ENVIRONMENT}",
}


def everything_of(job: Job) -> dict[str, Any]:
    """Return all rows of a job that an agent's message may change."""
    of_job = {"job": job}
    rows: dict[str, Any] = {
        model.__name__: list(model.objects.filter(**where).order_by("pk").values())
        for model, where in (
            (Job, {"pk": job.pk}),
            (Generation, of_job),
            (Assignment, of_job),
            (Worker, {"generation__job": job}),
            (JobMetric, of_job),
            (LogChunk, of_job),
            (JobEvent, of_job),
            (Checkpoint, of_job),
            (Artifact, of_job),
            (StateShard, {"checkpoint__job": job}),
            (Recovery, of_job),
            (JobProtection, of_job),
            (ScalingCurve, {"pk": job.curve_id}),
            (CurveLevel, {"curve_id": job.curve_id}),
        )
    }
    stores = Agent.objects.order_by("pk").values_list("memory_store", flat=True)
    holdings = [entry for store in stores for entry in store.get("holdings", []) if entry["job"] == job.pk]
    return {**rows, "in memory": holdings}


def servers_but(sender: Sender) -> list[dict[str, Any]]:
    """Return all facts of servers other than the sender's."""
    others = [(Server, "pk"), (Agent, "server"), (Gpu, "server")]
    return [
        row
        for model, server in others
        for row in model._default_manager.exclude(
            **{server: sender.pk if isinstance(sender, Server) and sender.name != "revoked" else 0}
        )
        .order_by("pk")
        .values()
    ]


@pytest.mark.parametrize("message", ITEMS)
def test_message_of_the_holding_server_is_accepted(world: World, message: str) -> None:
    before = everything_of(world.job)
    answer = send(world.holder, ITEMS[message](world))
    assert answer.status_code == 200
    assert answer.json()["refused"] == []
    assert everything_of(world.job) != before


@pytest.mark.parametrize("name", OUTSIDERS)
def test_messages_of_other_senders_are_refused(world: World, name: str) -> None:
    sender = world.senders[name]
    before = everything_of(world.job)
    for message, make in ITEMS.items():
        report = make(world)
        answer = send(sender, report)
        assert everything_of(world.job) == before, message
        if isinstance(sender, Server) and sender is not world.revoked:
            assert [item["part"] for item in answer.json()["refused"]] == [next(iter(report))], message
        else:
            assert answer.status_code == 401, message
            assert "lease_seconds" not in answer.json()


def test_messages_of_rank_0_are_refused_from_the_server_of_rank_1(world: World) -> None:
    before = everything_of(world.job)
    before.pop("JobEvent")
    kinds = [f"event {kind}" for kind in EVENT_FIELDS if kind not in ("failed", "refused")]
    for number, message in enumerate(("metrics", "memory_store", *kinds), start=1):
        answer = send(world.second, ITEMS[message](world))
        assert len(answer.json()["refused"]) == 1, message
        after = everything_of(world.job)
        events = after.pop("JobEvent")
        assert after == before, message
        refusals = [line["kind"] for line in events]
        assert refusals == ["report_refused"] * number, "the job's events record the refusal"


@pytest.mark.parametrize("download", DOWNLOADS)
def test_only_running_servers_download_functions_and_environments(world: World, download: str) -> None:
    path = DOWNLOADS[download](world)
    assert fetch(world.holder, path).status_code == 200
    for name in OUTSIDERS:
        refused = fetch(world.senders[name], path)
        assert refused.status_code in (401, 404), name
        assert refused.headers["Content-Type"] == "application/problem+json"


def test_desired_state_holds_only_the_work_of_its_server(world: World) -> None:
    own = fetch(world.holder, "desired").json()["generations"]
    assert [entry["job"] for entry in own] == [world.job.pk] * 2
    for name in OUTSIDERS:
        desired = fetch(world.senders[name], "desired")
        assert desired.status_code in (200, 401), name
        assert world.job.pk not in desired.content.decode(), name
        assert world.generation.secret not in desired.content.decode(), name


def test_an_event_cannot_be_used_up_by_another_agent(world: World) -> None:
    done = event(world.generation, "completed")
    send(world.neighbour, {"events": [done]})
    assert AppliedEvent.objects.exists()
    send(world.holder, {"events": [done]})
    world.job.refresh_from_db()
    assert world.job.state == "completed"


@pytest.mark.parametrize(
    "uri", ["file:///etc/passwd", "s3://other/state.pt", "file://{store}/jobs/other/checkpoints/1-9.pt"]
)
def test_reported_uris_never_leave_the_folder_of_the_job(world: World, settings: Any, uri: str) -> None:
    reported = uri.format(store=settings.CHECKPOINT_URL.removeprefix("file://"))
    send(world.holder, {"events": [event(world.generation, "shard_stored", uri=reported)]})
    artifact = {"name": "weights.pt", "uri": reported, "bytes": 4, "sha256": "0" * 64}
    send(world.holder, {"events": [event(world.generation, "completed", artifacts=[artifact])]})
    folder = f"{settings.CHECKPOINT_URL}/jobs/{world.job.pk}"
    assert StateShard.objects.get().uri == f"{folder}/checkpoints/1-9/0.pt"
    assert Artifact.objects.get().uri == f"{folder}/artifacts/1/weights.pt"


@pytest.mark.parametrize("name", ["the server that holds the work", *OUTSIDERS])
def test_server_facts_change_only_the_server_of_the_sender(world: World, name: str) -> None:
    sender = world.senders.get(name, world.holder)
    before = servers_but(sender)
    expected = {"inventory": "new", "link_load": {"network": {"state": 12_345.0}}, "memory_store": 10_000}
    for message, report in OF_ITS_SERVER.items():
        answer = send(sender, report)
        assert servers_but(sender) == before, message
        if not isinstance(sender, Server) or sender is world.revoked:
            assert answer.status_code == 401, message
            continue
        assert answer.status_code == 200, message
        agent = Agent.objects.select_related("server").get(server=sender)
        stored = {
            "inventory": agent.server.hostname,
            "link_load": agent.link_load,
            "memory_store": agent.memory_store.get("limit_bytes"),
        }
        assert stored[message] == expected[message]


def test_no_agent_becomes_another_server_by_enrolling(world: World) -> None:
    """The enrolment token names no server, or a server other than the body's."""
    before = servers_but(None)
    for name, server_name in itertools.product(OUTSIDERS, ("", "neighbour")):
        token = enrolment_token_create(created_by=None, cluster=world.holder.cluster, server_name=server_name)
        body = {
            "token": token,
            "name": "holder",
            "address": "203.0.113.66",
            "port_range": [20_000, 20_100],
            "inventory": {"gpus": [{"index": 0, "kind": "emulated-other"}]},
        }
        answer = Client().post(
            "/agent/v1/enrol",
            json.dumps(body),
            content_type="application/json",
            headers=authorization(world.senders[name]),
        )
        assert (answer.status_code, answer.json()["code"]) == (401, "enrolment_refused")
        assert world.generation.secret not in answer.content.decode()
    assert servers_but(None) == before
