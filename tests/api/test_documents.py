"""The OpenAPI document is complete, and query counts of lists do not grow with their length. `make check`
compares the committed document with the present one."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests import factories as make
from tests.api.conftest import World

COMMITTED = Path(settings.BASE_DIR) / "docs" / "openapi.yaml"


def test_every_operation_is_described() -> None:
    document = yaml.load(COMMITTED.read_text(), yaml.CSafeLoader)
    assert document["openapi"] == "3.1.0"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            where = f"{method} {path}"
            assert operation["summary"], where
            assert operation["operationId"], where
            problems = {status for status in operation["responses"] if int(status) >= 400}
            assert "503" in problems, where
            for status in problems:
                assert "application/problem+json" in operation["responses"][status]["content"], where


def test_interactive_page_loads_nothing_from_other_hosts(db: None) -> None:
    page = Client().get("/api/v1/docs/").content.decode()
    assert "swagger-ui" in page
    assert "https://" not in page
    assert "cdn" not in page
    assert Client().get("/api/v1/schema/").status_code == 200


def _more_jobs(world: World) -> None:
    for _ in range(4):
        job = make.JobFactory.create(
            project=world.project,
            owner=make.UserFactory.create(),
            curve=make.ScalingCurveFactory.create(),
            verdict={"decision": "admitted", "reason": f"would make job {world.foreign_job.pk} late"},
        )
        decision = make.DecisionFactory.create(summary={"verdicts": [{"job": job.pk, "reason": "fits"}]})
        decision.jobs.add(job)
    for n in range(4):
        make.JobEventFactory.create(job=world.job, decision=world.decision)
        make.LogChunkFactory.create(job=world.job)
        make.JobMetricFactory.create(job=world.job, iteration=100 + n)
        make.CheckpointFactory.create(job=world.job)
        make.ArtifactFactory.create(job=world.job, name=f"{n}.pt")
        make.MembershipFactory.create(project=world.project)
        make.MembershipFactory.create(project=make.ProjectFactory.create(), user=world.owner)
        make.ApiTokenFactory.create(user=world.owner)
        make.FunctionVersionFactory.create(function__project=world.project)
        make.FunctionVersionFactory.create(function=world.version.function, number=n + 2)
        make.ServerFactory.create()


LISTS = [
    "jobs/", "functions/", "functions/{function}/versions/", "projects/", "projects/vision/members/",
    "tokens/",
    "servers/", "gpus/", "agents/", "decisions/", "decisions/{decision}/", "cluster/", "me/",
    *(f"jobs/{{job}}/{name}/" for name in ("events", "metrics", "logs", "checkpoints", "artifacts", "plan",
    "curve", "recoveries", "memory-point")),
]  # fmt: skip


def test_a_longer_list_asks_no_more_queries(world: World) -> None:
    client = world.client(world.owner)
    addresses = {
        path: "/api/v1/"
        + path.format(function=world.version.function_id, decision=world.decision.pk, job=world.job.pk)
        for path in LISTS
    }
    for address in addresses.values():
        client.get(address)
    short = {path: _queries(client, address) for path, address in addresses.items()}
    _more_jobs(world)
    for path, address in addresses.items():
        # The first foreign name in a sentence takes two queries to hide it; further names take none.
        assert _queries(client, address) <= short[path] + (2 if path == "jobs/" else 0), path


def test_query_count_is_constant_in_the_number_of_missed_jobs(world: World) -> None:
    client, address = world.client(world.owner), "/api/v1/jobs/"

    def one_missed() -> None:
        job = make.JobFactory.create(
            project=world.project, state="completed", promised=True, promise_outcome="missed",
            deadline_at=timezone.now() - timedelta(hours=1), finished_at=timezone.now(),
        )  # fmt: skip
        for kind in ("at_risk", "interrupted", "interrupted"):
            make.JobEventFactory.create(job=job, kind=kind, message="its server was lost")

    one_missed()
    client.get(address)
    short = _queries(client, address)
    for _ in range(3):
        one_missed()
    assert _queries(client, address) == short
    texts = [job["standing"]["text"] for job in client.get(address).json()["results"]]
    assert sum("interrupted 2 times" in text for text in texts) == 4


def _queries(client: Any, address: str) -> int:
    with CaptureQueriesContext(
        connection,
    ) as captured:
        answer = client.get(address)
    assert answer.status_code == 200
    return len(captured)
