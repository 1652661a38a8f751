"""Every address with every role: a stranger must not learn that it exists, and a viewer must not change it.

The table is checked against the URL resolver: an address without a line here fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from django.core.cache import cache
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from rest_framework.test import APIClient

from deployments.models import Deployment
from tests.api import test_moe as moe
from tests.api.conftest import SOURCE, World, undone
from tests.api.test_deployments import URL as DEPLOYMENTS
from tests.api.test_deployments import body, completed_job
from tests.control_plane.simulated_time import BEGINS_AT

ANYONE, MEMBERS, WRITERS, OWNERS, OPERATORS = "anyone", "members", "writers", "owners", "operators"
#: By the permitted people: the statuses that others receive.
REFUSED = {
    MEMBERS: {"stranger": 404},
    WRITERS: {"stranger": 404, "viewer": 403},
    OWNERS: {"stranger": 404, "viewer": 403, "colleague": 403},
    OPERATORS: {"stranger": 403, "viewer": 403, "colleague": 403, "owner": 403},
    ANYONE: {},
}


@dataclass(frozen=True)
class Line:
    """One method of one address. ``allowed``: the statuses for permitted callers."""

    name: str
    method: str
    who: str
    allowed: tuple[int, ...] = (200,)
    body: Any = None
    #: A stranger's status where it is not that of the table (a foreign name in a body is a 400).
    stranger: int | None = None


LINES = [
    Line("me", "get", ANYONE),
    Line("tokens", "get", ANYONE),
    Line("tokens", "post", ANYONE, (201,), {"name": "ci"}),
    Line("projects", "get", ANYONE),
    Line("projects", "post", ANYONE, (201, 409), {"name": "fresh"}),
    Line("project", "get", MEMBERS),
    Line("project", "patch", OWNERS, (200,), {"description": "new"}),
    Line("members", "get", MEMBERS),
    Line("project", "delete", OWNERS, (409,)),  # it has jobs
    Line("project-archive", "post", OWNERS, (409,), {}),  # one of which runs
    Line("project-restore", "post", OWNERS, (409,), {}),
    Line("project-invitations", "get", OWNERS),
    Line("project-invitations", "post", OWNERS, (201,), {"username": "nobody", "role": "viewer"}),
    Line("project-invitation", "delete", OWNERS, (204,)),
    Line("invitations", "get", ANYONE),
    Line("members", "post", OPERATORS, (201, 409), {"username": "stranger", "role": "viewer"}, stranger=404),
    Line("member", "get", MEMBERS),
    Line("member", "patch", OWNERS, (200,), {"role": "viewer"}),
    Line("member", "delete", OWNERS, (204,)),
    Line("quota", "get", MEMBERS),
    Line("quota", "patch", OPERATORS, (200,), {"active_jobs": 5}, stranger=404),
    Line("users", "get", OPERATORS),
    Line("users", "post", OPERATORS, (201,), {"username": "newcomer"}),
    Line("user", "get", OPERATORS),
    Line("user", "patch", OPERATORS, (200,), {"is_active": True}),
    Line("user-password", "post", OPERATORS, (200,), {}),
    Line("functions", "get", ANYONE),
    Line("functions", "post", WRITERS, (201, 200), "upload", stranger=400),
    Line("function", "get", MEMBERS),
    Line("function-versions", "get", MEMBERS),
    Line("function-version", "get", MEMBERS),
    Line("function-bundle", "get", MEMBERS),
    Line("function-environment-cancel", "post", WRITERS, (409,), {}),  # it has no requirements
    Line("function-environment-build", "post", WRITERS, (409,), {}),
    Line("jobs", "get", ANYONE),
    Line("jobs", "post", WRITERS, (201,), "job", stranger=400),
    Line("what-if", "post", WRITERS, (200,), "job", stranger=400),
    Line("job", "get", MEMBERS),
    Line("job-cancel", "post", WRITERS, (200,), {}),
    Line("job-pause", "post", WRITERS, (200,), {}),
    Line("job-resume", "post", WRITERS, (409,), {}),
    Line("job-accept-offer", "post", WRITERS, (409,), {}),
    Line("job-decline-offer", "post", WRITERS, (409,), {}),
    Line("job-clone", "post", WRITERS, (201,), {}),
    Line("job-deadline", "post", WRITERS, (200,), {"deadline_at": None}),
    Line("job-events", "get", MEMBERS),
    Line("job-metrics", "get", MEMBERS),
    Line("job-logs", "get", MEMBERS),
    Line("job-checkpoints", "get", MEMBERS),
    Line("job-recoveries", "get", MEMBERS),
    Line("job-memory-point", "get", MEMBERS),
    Line("job-artifacts", "get", MEMBERS),
    Line("job-artifact", "get", MEMBERS),
    Line("job-plan", "get", MEMBERS),
    Line("job-communication", "get", MEMBERS),
    Line("job-experts", "get", MEMBERS),
    Line("job-curve", "get", MEMBERS),
    Line("deployments", "get", ANYONE),
    Line("deployments", "post", WRITERS, (201,), "deployment", stranger=400),
    Line("deployment", "get", MEMBERS),
    Line("deployment", "patch", WRITERS, (200,), {"latency_target_seconds": 0.3}),
    Line("deployment", "delete", WRITERS, (202,)),
    Line("deployment-rollback", "post", WRITERS, (409,), {}),
    Line("deployment-drain", "post", WRITERS, (404,), {"server": "serving-1"}),
    Line("deployment-predict", "post", WRITERS, (503,), {"inputs": [1]}),
    Line("deployment-experts", "get", MEMBERS),
    Line("deployment-health", "get", MEMBERS),
    Line("deployment-samples", "get", MEMBERS),
    Line("deployment-events", "get", MEMBERS),
    Line("deployment-logs", "get", MEMBERS),
    Line("deployment-tokens", "get", WRITERS, (200,)),
    Line("deployment-tokens", "post", WRITERS, (201,), {"name": "shop"}),
    Line("deployment-token", "delete", WRITERS, (204,)),
    Line("moe-fit", "post", ANYONE, (200,), moe.SHAPE | {"device": moe.DEVICE}),
    Line("moe-elastic", "post", ANYONE, (200,), {"tasks": moe.TABLE_3, "gpus": 4}),
    Line("moe-placement", "post", ANYONE, (200,), moe.GANG),
    Line("moe-ring", "post", ANYONE, (200,), moe.V8),
    Line("cluster", "get", ANYONE),
    Line("cluster", "patch", OPERATORS, (200,), {"standby_servers": 0}),
    Line("cluster-links", "get", ANYONE),
    Line("cluster-codecs", "get", ANYONE),
    Line("servers", "get", ANYONE),
    Line("server", "get", ANYONE),
    Line("server", "patch", OPERATORS, (200,), {"available_until": None}),
    Line("server-drain", "post", OPERATORS, (200,), {"force": True}),
    Line("server-undrain", "post", OPERATORS, (409,), {}),
    Line("gpus", "get", ANYONE),
    Line("agents", "get", ANYONE),
    Line("agent-revoke", "post", OPERATORS, (200,), {}),
    Line("enrolment-tokens", "post", OPERATORS, (201,), {}),
    Line("decisions", "get", ANYONE),
    Line("decision", "get", MEMBERS, stranger=200),  # it decided a job of hers as well
    Line("decision-snapshot", "get", OPERATORS, (200,)),
    Line("inference-clusters", "get", OPERATORS),
    Line("inference-clusters", "post", OPERATORS, (201,), {"name": "another"}),
    Line("inference-cluster", "get", OPERATORS),
    Line("inference-cluster", "patch", OPERATORS, (200,), {"lending": False}),
    Line("inference-cluster-credential", "post", OPERATORS, (201,), {}),
    Line("inference-cluster-servers", "get", OPERATORS),
    Line("inference-cluster-usage", "get", OPERATORS),
    Line(
        "inference-cluster-usage",
        "post",
        OPERATORS,
        (200,),
        {"samples": [{"period_ends_at": BEGINS_AT.isoformat(), "usage": 0.5}]},
    ),
    Line("inference-cluster-forecasts", "get", OPERATORS),
    Line("inference-cluster-events", "get", OPERATORS),
    Line("inference-cluster-trainings", "get", OPERATORS),
    Line("inference-cluster-trainings", "post", OPERATORS, (201,), {"forecaster": "ridge"}),
    Line("inference-cluster-training-cancel", "post", OPERATORS, (200,), {}),
    Line("inference-cluster-loan-orders", "get", OPERATORS),
    Line("inference-cluster-loan-orders", "post", OPERATORS, (201,), {"id": str(uuid4()), "servers": []}),
    Line("inference-cluster-loan-order", "get", OPERATORS),
    Line("inference-cluster-reclaim-orders", "get", OPERATORS),
    Line("inference-cluster-reclaim-orders", "post", OPERATORS, (201,), {"id": str(uuid4()), "count": 0}),
    Line("inference-cluster-reclaim-order", "get", OPERATORS),
    Line("inference-cluster-reclaim-confirm", "post", OPERATORS, (200,), {"servers": ["serving-1"]}),
    Line("simulations", "get", OPERATORS),
    Line("simulations", "post", OPERATORS, (201,), {"source": "live", "policies": ["edf"]}),
    Line("simulation-choices", "get", OPERATORS),
    Line("simulation", "get", OPERATORS),
    Line("simulation", "delete", OPERATORS, (204,)),
    Line("simulation-cancel", "post", OPERATORS, (200,), {}),
    Line("simulation-report", "get", OPERATORS),
    Line("simulation-run-cancel", "post", OPERATORS, (200,), {}),
    Line("simulation-result", "get", OPERATORS),
]
#: Outside the table: open to everyone, or to the owner of the object alone (tested below).
APART = {
    "login",
    "schema",
    "docs",
    "token",
    "token-rotate",
    "invitation-accept",
    "invitation-decline",
    "user-quota",
}
PEOPLE = ("owner", "colleague", "viewer", "stranger", "operator")


def address(world: World, name: str) -> str:
    """Return the address of the project's own object."""
    arguments: dict[str, dict[str, Any]] = {
        "project": {"name": "vision"},
        "project-archive": {"name": "vision"},
        "project-restore": {"name": "vision"},
        "project-invitations": {"name": "vision"},
        "project-invitation": {"name": "vision", "invitation_id": world.invitation.pk},
        "invitation-accept": {"invitation_id": world.invitation.pk},
        "invitation-decline": {"invitation_id": world.invitation.pk},
        "user": {"username": "guest"},
        "user-password": {"username": "guest"},
        "user-quota": {"username": "owner"},
        "members": {"name": "vision"},
        "member": {"name": "vision", "username": "guest"},
        "quota": {"name": "vision"},
        "function": {"function_id": world.version.function_id},
        "function-versions": {"function_id": world.version.function_id},
        "function-version": {"function_id": world.version.function_id, "number": 1},
        "function-bundle": {"function_id": world.version.function_id, "number": 1},
        "function-environment-cancel": {"function_id": world.version.function_id, "number": 1},
        "function-environment-build": {"function_id": world.version.function_id, "number": 1},
        "job-artifact": {"job_id": world.job.pk, "name": "weights.pt"},
        "agent-revoke": {"agent_id": world.server.agent.pk},
        "decision": {"decision_id": world.decision.pk},
        "decision-snapshot": {"decision_id": world.decision.pk},
        "simulation": {"study_id": world.study.pk},
        "simulation-cancel": {"study_id": world.study.pk},
        "simulation-report": {"study_id": world.study.pk},
        "simulation-run-cancel": {"study_id": world.study.pk, "run_id": world.queued_run.pk},
        "simulation-result": {
            "study_id": world.study.pk,
            "run_id": world.done_run.pk,
            "name": "jobs.parquet",
        },
        "inference-cluster-training-cancel": {
            "inference_name": "serving",
            "training_id": world.training.pk,
        },
        "inference-cluster-loan-order": {"inference_name": "serving", "order_id": world.loan_order.pk},
        "inference-cluster-reclaim-order": {"inference_name": "serving", "order_id": world.reclaim_order.pk},
        "inference-cluster-reclaim-confirm": {
            "inference_name": "serving",
            "order_id": world.reclaim_order.pk,
        },
        "token": {"token_id": world.token.pk},
        "token-rotate": {"token_id": world.token.pk},
    }
    if name in arguments:
        return reverse(f"api:{name}", kwargs=arguments[name])
    if name == "job" or name.startswith("job-"):
        return reverse(f"api:{name}", kwargs={"job_id": world.job.pk})
    if name.startswith("inference-cluster-") or name == "inference-cluster":
        return reverse(f"api:{name}", kwargs={"inference_name": "serving"})
    if name == "deployment" or name.startswith("deployment-"):
        return reverse(f"api:{name}", kwargs=deployed(world, with_token=name == "deployment-token"))
    if name == "server" or name.startswith("server-"):
        return reverse(f"api:{name}", kwargs={"server_id": world.server.pk})
    return reverse(f"api:{name}")


def deployed(world: World, *, with_token: bool) -> dict[str, Any]:
    """Deploy a completed job once; return the arguments of its addresses."""
    if not Deployment.objects.filter(pk=world.deployed.get("deployment_id")).exists():
        owner = world.client(world.owner)
        made = owner.post(DEPLOYMENTS, body(world, completed_job(world)), format="json").json()
        token = owner.post(f"{DEPLOYMENTS}{made['id']}/tokens/", {"name": "shop"}, format="json").json()
        world.deployed.update(deployment_id=made["id"], token_id=token["id"])
    return {name: made for name, made in world.deployed.items() if with_token or name != "token_id"}


def ask(world: World, line: Line, person: str | None) -> Any:
    return ask_as(world, line, world.client(getattr(world, person) if person else None))


def ask_as(world: World, line: Line, client: APIClient) -> Any:
    send = getattr(client, line.method)
    if line.body == "upload":
        bundle = SimpleUploadedFile("classifier.py", SOURCE.encode())
        fields = {"project": "vision", "name": "classifier", "bundle": bundle}
        return send(address(world, line.name), fields, format="multipart")
    content = line.body
    if content == "job":
        content = world.body()
    elif content == "deployment":
        content = body(world, completed_job(world))
    return send(address(world, line.name), content, format="json")


@pytest.mark.parametrize("who", REFUSED)
def test_every_address_answers_each_role_as_tabulated(world: World, who: str) -> None:
    wrong = []
    for line in LINES:
        if line.who != who:
            continue
        cache.clear()  # no request counts against a limit
        address(world, line.name)  # creates the object once, outside the undone block
        for person in PEOPLE:
            with undone():
                answer = ask(world, line, person)
            expected = REFUSED[who].get(person)
            if person == "stranger" and line.stranger is not None:
                expected = line.stranger
            if expected is None or expected in line.allowed:
                is_right = answer.status_code in line.allowed
            else:
                problem = answer.headers["Content-Type"] == "application/problem+json"
                is_right = answer.status_code == expected and problem
            if not is_right:
                wrong.append((line.method, line.name, person, answer.status_code, answer.content))
    assert wrong == []


def test_without_a_token_nothing_is_answered(world: World) -> None:
    for line in LINES:
        answer = ask(world, line, None)
        assert answer.status_code == 401, line
        assert answer.headers["WWW-Authenticate"] == "Bearer", line
        assert answer.headers["Content-Type"] == "application/problem+json", line


def test_every_address_and_method_has_a_line_in_the_table() -> None:
    known = {(line.name, line.method) for line in LINES}
    missing = [
        (pattern.name, method)
        for pattern in _patterns(get_resolver("config.urls_api"))
        if pattern.name not in APART
        for method in _methods(pattern)
        if (pattern.name, method) not in known
    ]
    assert missing == []


def test_token_is_visible_only_to_its_owner(world: World) -> None:
    for person in (world.colleague, world.viewer, world.stranger, world.operator):
        client = world.client(person)
        for method, name in (("get", "token"), ("delete", "token"), ("post", "token-rotate")):
            answer = getattr(client, method)(address(world, name))
            assert answer.status_code == 404, (person.username, method, name)


def test_lists_hold_only_what_the_caller_may_see(world: World) -> None:
    for person, jobs in {
        "viewer": {world.job.pk},
        "stranger": {world.foreign_job.pk},
        "operator": {world.job.pk, world.foreign_job.pk},
    }.items():
        client = world.client(getattr(world, person))
        assert {job["id"] for job in client.get("/api/v1/jobs/").json()["results"]} == jobs
    assert [
        row["name"] for row in world.client(world.stranger).get("/api/v1/projects/").json()["results"]
    ] == ["elsewhere"]
    assert [
        row["project"] for row in world.client(world.viewer).get("/api/v1/functions/").json()["results"]
    ] == ["vision"]


def test_undeclared_fields_are_refused(world: World) -> None:
    client = world.client(world.owner)
    for name, value in {"state": "completed", "promised": True, "owner": "operator", "id": "abc"}.items():
        answer = client.post("/api/v1/jobs/", world.body(**{name: value}), format="json")
        assert answer.status_code == 400
        assert name in answer.json()["errors"]
    answer = client.patch("/api/v1/projects/vision/", {"name": "other"}, format="json")
    assert answer.status_code == 400


def _patterns(resolver: URLResolver) -> list[URLPattern]:
    patterns: list[URLPattern] = []
    for entry in resolver.url_patterns:
        patterns += _patterns(entry) if isinstance(entry, URLResolver) else [entry]
    return patterns


def _methods(pattern: URLPattern) -> list[str]:
    view = pattern.callback.view_class  # type: ignore[attr-defined]
    return [method for method in ("get", "post", "put", "patch", "delete") if hasattr(view, method)]
