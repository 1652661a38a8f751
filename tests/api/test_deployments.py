"""Deployments through the API: creation, bounds, rights, tokens, and requests passed on to a replica."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.utils import timezone

from deployments.choices import DeploymentState, ReplicaState
from deployments.models import Deployment, Replica
from deployments.services import predicting
from projects.models import Project, Role, UserQuota
from scheduling.choices import JobState
from scheduling.models import Function, Job
from tests import factories as make
from tests.api.conftest import World
from tests.deployments.conftest import PREDICT, SOURCE

URL = "/api/v1/deployments/"


def completed_job(world: World, predict: str = PREDICT) -> Job:
    """Return a completed job of the project that left weights."""
    job: Job = make.JobFactory.create(
        project=world.project, owner=world.owner, cluster=world.server.cluster, state=JobState.COMPLETED
    )
    content = SOURCE.format(predict=predict).encode()
    job.function_version.bundle = make.BundleFactory.create(content=content)
    job.function_version.save()
    make.ArtifactFactory.create(job=job)
    return job


@pytest.fixture
def job(world: World) -> Job:
    return completed_job(world)


def body(world: World, job: Job, **changes: Any) -> dict[str, Any]:
    return {"job": job.pk, "inference_cluster": world.inference.name} | changes


@pytest.fixture
def deployment(world: World, job: Job) -> Deployment:
    answer = world.client(world.owner).post(URL, body(world, job, name="shapes"), format="json")
    assert answer.status_code == 201, answer.data
    return Deployment.objects.get(pk=answer.data["id"])


def test_a_completed_job_is_deployed_within_bounds(world: World, job: Job) -> None:
    asked = body(world, job, servers={"min": 1, "wanted": 2, "max": 4}, latency_target_seconds=0.2)
    answer = world.client(world.colleague).post(URL, asked, format="json")
    assert answer.status_code == 201, answer.data
    made = answer.data
    assert (made["state"], made["generation"], made["latency_target_seconds"]) == ("preparing", 1, 0.2)
    assert made["servers"] == {"min": 1, "max": 4, "wanted": 2, "reason": "as requested"}
    assert made["generations"][0]["job"] == job.pk
    listed = world.client(world.viewer).get(URL, {"job": job.pk}).data["results"]
    assert [row["id"] for row in listed] == [made["id"]]


def test_a_function_is_deployed_without_a_job(world: World, job: Job) -> None:
    version = job.function_version
    asked = {
        "function": f"{version.function.name}@1",
        "hyperparameters": {"global_batch_size": 1},
        "project": world.project.name,
        "inference_cluster": world.inference.name,
    }
    answer = world.client(world.owner).post(URL, asked, format="json")
    assert answer.status_code == 201, answer.data
    assert (answer.data["name"], answer.data["generations"][0]["job"]) == (version.function.name, None)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"servers": {"min": 0}}, "servers"),
        ({"servers": {"max": 65}}, "servers"),
        ({"servers": {"min": "2"}}, "servers"),
        ({"servers": {"min": 3, "max": 2}}, "servers"),
        ({"servers": {"wanted": 3, "max": 2}}, "servers"),
        ({"servers": {"most": 2}}, "servers"),
        ({"servers": 2}, "servers"),
        ({"latency_target_seconds": 0}, "latency_target_seconds"),
        ({"max_batch": 257}, "max_batch"),
        ({"max_wait_seconds": 1.5}, "max_wait_seconds"),
        ({"gpus": 1}, "gpus"),
        ({"job": "../x"}, "job"),
        ({"job": "nosuchjob"}, "job"),
        ({"function": "shapes"}, "job"),
        ({"project": "shapes"}, "project"),
        ({"inference_cluster": "nowhere"}, "inference_cluster"),
    ],
)
def test_a_wrong_field_is_named(world: World, job: Job, changes: dict[str, Any], field: str) -> None:
    answer = world.client(world.owner).post(URL, body(world, job) | changes, format="json")
    assert answer.status_code == 400
    assert [name for name in answer.data["errors"] if name.split(".")[0] == field]
    assert not Deployment.objects.exists()


@pytest.mark.parametrize(
    ("predict", "words"),
    [
        ("", "it is not defined"),
        ("def predict(self, batch): ...", "it is predict(self, batch)"),
        ("async def predict(self, batch, model): ...", "it is a coroutine"),
    ],
)
def test_a_class_without_predict_is_refused(world: World, predict: str, words: str) -> None:
    job = completed_job(world, predict)
    answer = world.client(world.owner).post(URL, body(world, job), format="json")
    assert answer.status_code == 400
    (text,) = answer.data["errors"]["job"]
    assert text.startswith("A deployed class must define predict(self, batch, model).")
    assert words in text


def test_a_job_without_weights_is_refused(world: World, job: Job) -> None:
    client = world.client(world.owner)
    running = client.post(URL, body(world, world.job), format="json")
    assert (running.status_code, running.data["code"]) == (409, "not_deployable")
    job.artifacts.all().delete()
    empty = client.post(URL, body(world, job), format="json")
    assert (empty.status_code, empty.data["detail"]) == (409, f"Job {job.pk} left no weights.pt.")


def test_strangers_see_nothing_and_viewers_only_look(world: World, deployment: Deployment, job: Job) -> None:
    url = f"{URL}{deployment.pk}/"
    stranger, viewer, nobody = world.client(world.stranger), world.client(world.viewer), world.client(None)
    for path in ("", "health/", "samples/", "events/", "logs/", "tokens/"):
        assert stranger.get(url + path).status_code == 404
        assert nobody.get(url + path).status_code == 401
    for path in ("", "health/", "samples/", "events/", "logs/"):
        assert viewer.get(url + path).status_code == 200
    assert viewer.get(f"{url}tokens/").status_code == 403
    changes: list[tuple[str, str, dict[str, Any]]] = [
        ("patch", url, {"servers": {"max": 2}}),
        ("delete", url, {}),
        ("post", f"{url}predict/", {"inputs": [1]}),
        ("post", f"{url}rollback/", {}),
        ("post", f"{url}drain/", {"server": "x"}),
        ("post", f"{url}tokens/", {"name": "x"}),
        ("delete", f"{url}tokens/1/", {}),
    ]
    for client, status in ((stranger, 404), (viewer, 403), (nobody, 401)):
        for method, address, sent in changes:
            assert getattr(client, method)(address, sent, format="json").status_code == status, address
    assert stranger.post(URL, body(world, job), format="json").status_code == 400
    assert viewer.post(URL, body(world, job), format="json").status_code == 403


def test_a_deployment_is_changed_and_deleted(world: World, deployment: Deployment) -> None:
    client, url = world.client(world.owner), f"{URL}{deployment.pk}/"
    asked = {"servers": {"max": 3}, "latency_target_seconds": 0.05}
    changed = client.patch(url, asked, format="json").data
    assert (changed["servers"]["wanted"], changed["servers"]["max"]) == (1, 3)
    assert (changed["latency_target_seconds"], changed["generation"]) == (0.05, 1)
    assert client.patch(url, {"servers": {"min": 2}}, format="json").data["servers"]["wanted"] == 2
    assert client.patch(url, {"max_batch": 4}, format="json").data["generation"] == 2
    for wrong in ({}, {"servers": {"wanted": 9}}, {"servers": {"max": 1}}, {"name": "x"}):
        assert client.patch(url, wrong, format="json").status_code == 400, wrong
    assert client.post(f"{url}rollback/").status_code == 409
    assert client.post(f"{url}drain/", {"server": "nowhere"}, format="json").status_code == 404
    deleted = client.delete(url)
    assert (deleted.status_code, deleted.data["state"]) == (202, "draining")
    assert client.delete(url).status_code == 202
    assert client.patch(url, {"max_batch": 8}, format="json").status_code == 409


def test_a_job_of_another_project_cannot_take_over(world: World, deployment: Deployment) -> None:
    other = make.JobFactory.create(project=world.foreign_project, cluster=world.server.cluster)
    answer = world.client(world.operator).patch(f"{URL}{deployment.pk}/", {"job": other.pk}, format="json")
    assert answer.status_code == 400
    assert "belongs to project" in answer.data["errors"]["job"][0]


def limit(world: World, **limits: int | None) -> None:
    """Change the project's limits as an operator."""
    address = f"/api/v1/projects/{world.project.name}/quota/"
    answer = world.client(world.operator).patch(address, limits, format="json")
    assert answer.status_code == 200
    assert answer.data.items() >= limits.items()


def test_a_project_has_limits_and_is_not_closed(world: World, deployment: Deployment) -> None:
    client = world.client(world.owner)
    again = body(world, completed_job(world), name="shapes")
    assert client.post(URL, again, format="json").status_code == 409
    limit(world, deployment_servers=3)
    more = again | {"name": "more", "servers": {"max": 3}}
    refused = client.post(URL, more, format="json")
    assert refused.status_code == 429
    assert (
        "at most 3 servers together. The others may use 1, and this one asks for 3" in refused.data["detail"]
    )
    assert client.patch(f"{URL}{deployment.pk}/", {"servers": {"max": 4}}, format="json").status_code == 429
    limit(world, deployments=1, deployment_servers=None)
    assert client.post(URL, again | {"name": "more"}, format="json").status_code == 429
    Job.objects.exclude(state=JobState.COMPLETED).delete()
    closed = client.post(f"/api/v1/projects/{world.project.name}/archive/")
    assert closed.status_code == 409
    assert "1 deployment of" in closed.data["detail"]


def test_deployments_count_over_all_projects_of_a_creator(world: World, deployment: Deployment) -> None:
    Project.objects.update(created_by=world.owner)
    UserQuota.objects.create(user=world.owner, deployments=1)
    other = make.ProjectFactory.create(created_by=world.owner)
    make.MembershipFactory.create(project=other, user=world.owner, role=Role.OWNER)
    version = completed_job(world).function_version
    Function.objects.filter(pk=version.function_id).update(project=other)
    asked = {
        "function": f"{version.function.name}@1",
        "hyperparameters": {"global_batch_size": 1},
        "project": other.name,
        "inference_cluster": world.inference.name,
    }
    answer = world.client(world.owner).post(URL, asked, format="json")
    assert answer.status_code == 429, answer.data
    assert "All projects that owner created: at most 1 deployments are allowed" in answer.data["detail"]


def test_a_token_is_shown_once_and_revoked(world: World, deployment: Deployment) -> None:
    client, tokens = world.client(world.owner), f"{URL}{deployment.pk}/tokens/"
    made = client.post(tokens, {"name": "shop"}, format="json")
    assert made.status_code == 201
    assert made.data["token"].startswith("pd_")
    (listed,) = client.get(tokens).data["results"]
    assert "token" not in listed
    stranger = world.client(None)
    stranger.credentials(HTTP_AUTHORIZATION=f"Bearer {made.data['token']}")
    assert stranger.get(URL).status_code == 401, "it opens replicas only"
    assert client.delete(f"{tokens}{listed['id']}/").status_code == 204
    assert client.get(tokens).data["results"][0]["revoked_at"]
    assert client.delete(f"{tokens}999/").status_code == 404


class StubReplica(BaseHTTPRequestHandler):
    """Answers as a replica (docs/protocols.md 2.12); its function triples integers."""

    def do_GET(self) -> None:
        self._answer(200, {"state": "serving", "generation": 1})

    def do_POST(self) -> None:
        inputs = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["inputs"]
        if self.headers["Authorization"] != "Bearer its-secret":
            self._answer(401, {"detail": "unknown token"})
        elif 13 in inputs:
            self._answer(500, {"detail": "a defect"})
        elif 14 in inputs:
            self._answer(504, {"detail": "no answer within 30 s"})
        elif not all(isinstance(value, int) for value in inputs):
            self._answer(400, {"detail": "an input is a whole number"})
        else:
            self._answer(200, {"outputs": [3 * value for value in inputs], "generation": 1})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        sent = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def replica(world: World, deployment: Deployment) -> Iterator[Replica]:
    """Return a replica that answers, beside one with a closed port."""
    server = make.InferenceServerFactory.create(
        cluster=world.server.cluster, inference_cluster=world.inference, name="answering", gpus=2
    )
    first, second = server.gpus.all()
    listening = ThreadingHTTPServer(("127.0.0.1", 0), StubReplica)
    thread = threading.Thread(target=listening.serve_forever, args=(0.02,))
    thread.start()
    common = {
        "deployment": deployment,
        "rollout": deployment.rollouts.get(),
        "server": server,
        "state": ReplicaState.SERVING,
        "told_version": 1,
        "secret": "its-secret",
    }
    made = Replica.objects.create(gpu=first, port=listening.server_address[1], **common)
    Replica.objects.create(gpu=second, port=1, **common)
    Deployment.objects.filter(pk=deployment.pk).update(state=DeploymentState.READY)
    yield made
    predicting._client().close()
    predicting._client.cache_clear()
    listening.shutdown()
    thread.join()
    listening.server_close()


def test_requests_reach_a_replica_that_answers(
    world: World, deployment: Deployment, replica: Replica
) -> None:
    client, predict = world.client(world.owner), f"{URL}{deployment.pk}/predict/"
    for _ in range(6):
        answer = client.post(predict, {"inputs": [1, 2]}, format="json")
        assert answer.status_code == 200, "a replica that does not answer is skipped"
        assert answer.data == {"outputs": [3, 6], "generation": 1, "server": "answering"}
    for inputs, status, detail in (
        (["one"], 400, "whole number"),
        ([13], 502, "a defect"),
        ([14], 504, "30 s"),
        (["x" * (1 << 20)], 413, "1048"),
        ([], 400, ""),
        ([1] * 257, 400, ""),
    ):
        answer = client.post(predict, {"inputs": inputs}, format="json")
        assert answer.status_code == status
        assert detail in answer.data["detail"]
    health = client.get(f"{URL}{deployment.pk}/health/").data
    assert health["healthy"]
    assert sorted(str(server["state"]) for server in health["servers"]) == ["None", "serving"]
    Replica.objects.filter(pk=replica.pk).update(state=ReplicaState.STOPPING)
    answer = client.post(predict, {"inputs": [1]}, format="json")
    assert (answer.status_code, answer.data["code"]) == (503, "unavailable")
    Deployment.objects.filter(pk=deployment.pk).update(
        state=DeploymentState.STOPPED, stopped_at=timezone.now()
    )
    answer = client.post(predict, {"inputs": [1]}, format="json")
    assert (answer.status_code, answer.data["code"]) == (409, "conflict")
