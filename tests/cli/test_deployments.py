"""`punctual deploy` and `punctual deployments` against the real API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.models import Server
from deployments.choices import DeploymentState, ReplicaState
from deployments.models import Deployment, Replica
from lending.models import InferenceCluster
from projects.models import Membership, Role, User
from scheduling.models import Job
from tests.cli.conftest import Run
from tests.cli.test_real_api import log_in
from tests.deployments.conftest import completed_job
from tests.factories import (
    PASSWORD,
    ClusterFactory,
    InferenceClusterFactory,
    InferenceServerFactory,
    ProjectFactory,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def job(live_server: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Return a completed job of the logged-in user."""
    user = User.objects.create_user("mia", password=PASSWORD)
    member = Membership.objects.create(user=user, project=ProjectFactory.create(), role=Role.MEMBER)
    cluster = ClusterFactory.create()
    inference = InferenceClusterFactory.create(cluster=cluster)
    InferenceServerFactory.create(name="serving-1", cluster=cluster, inference_cluster=inference, gpus=1)
    log_in(run, live_server.url, "mia", monkeypatch)
    return completed_job(member)


def serve(deployment: Deployment) -> None:
    """Let one replica serve the deployment, as steering and agents would."""
    server = Server.objects.get()
    Replica.objects.create(
        deployment=deployment, rollout=deployment.rollouts.get(), server=server, gpu=server.gpus.get(),
        port=21000, state=ReplicaState.SERVING, told_version=1, log="loaded\n",
        ring={
            "layers": 8, "sections": 6, "section_bytes": 100, "other_bytes": 50, "calls": 2, "entered": 16,
            "loads": 8, "copy_seconds": 0.16, "compute_seconds": 0.16, "stall_seconds": 0.01,
        },
    )  # fmt: skip
    Deployment.objects.update(state=DeploymentState.READY)


def test_a_job_is_deployed_changed_and_deleted(job: Job, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No deployment yet" in run("deployments").err
    bounds = ("--servers", "2", "--min", "1", "--max", "4", "--latency-target", "200ms")
    made = json.loads(run("deploy", job.pk, *bounds, "--device-memory", "1.5GB", "--json").out)
    assert made["servers"] == {"min": 1, "max": 4, "wanted": 2, "reason": "as requested"}
    assert (made["latency_target_seconds"], made["device_memory_bytes"]) == (0.2, 1_500_000_000)
    deployment_id = made["id"]
    serve(Deployment.objects.get())
    assert "1-4" in run("deployments").out
    shown = run("deployments", "show", deployment_id).out
    assert "ready, 1 of 2 servers serve." in shown
    assert "http://127.0.0.1:21000" in shown
    assert "4 stay, 4 stream, a call waits 5.0 ms" in shown
    changed = run("deployments", "set", deployment_id, "--max", "3", "--latency-target", "0.1s")
    assert (changed.code, "ready" in changed.out) == (0, True)
    assert "deployed the weights" in run("deployments", "events", deployment_id).out
    assert "loaded" in run("deployments", "logs", deployment_id).out
    monkeypatch.setattr(
        "deployments.services.predicting._send", lambda *request: (200, {"outputs": [[1, 2], "b"]})
    )
    assert run("deployments", "predict", deployment_id, '"a"', "2").out.splitlines() == ["[1, 2]", '"b"']
    assert run("deployments", "predict", made["name"], "2").out.splitlines()[1] == '"b"', "or by name"
    assert "no deployment elsewhere" in run("deployments", "show", "elsewhere").err
    token = run("deployments", "token", deployment_id, "shop").out
    assert token.startswith("pd_")
    (listed,) = json.loads(run("deployments", "tokens", deployment_id, "--json").out)
    assert run("deployments", "revoke", deployment_id, str(listed["id"])).code == 0
    assert "draining" in run("deployments", "delete", deployment_id).out


def test_a_plain_number_of_servers_is_both_bounds(job: Job, run: Run) -> None:
    made = json.loads(run("deploy", job.pk, "--servers", "3", "--json").out)
    assert (made["servers"]["min"], made["servers"]["max"]) == (3, 3)
    assert InferenceCluster.objects.get().name == made["inference_cluster"]


def test_a_function_is_deployed_with_hyperparameters(job: Job, run: Run) -> None:
    name = job.function_version.function.name
    made = json.loads(run("deploy", "--function", name, "--set", "global_batch_size=1", "--json").out)
    assert made["generations"][0]["function"] == f"{name}@1"


def test_wrong_input_is_named_in_a_line(job: Job, run: Run) -> None:
    for arguments, code, words in (
        (("deploy",), 2, "either a job or --function"),
        (("deploy", job.pk, "--latency-target", "soonms"), 2, "is not a duration"),
        (("deploy", job.pk, "--device-memory", "much"), 2, "is not a size"),
        (("deploy", job.pk, "--servers", "5", "--max", "4"), 2, "min <= wanted <= max"),
        (("deploy", "nosuchjob"), 2, "nosuchjob"),
        (("deployments", "show", "nosuchone"), 4, "no deployment nosuchone"),
        (("deployments", "set", "x"), 2, "at least one change"),
        (("deployments", "predict", "x"), 2, "at least one input"),
        (("deployments", "predict", "x", "text"), 2, "is not JSON"),
    ):
        outcome = run(*arguments)
        assert (outcome.code, words in outcome.err) == (code, True), outcome


def test_limits_are_shown_and_changed_by_operators(job: Job, run: Run) -> None:
    project = job.project.name
    assert "128" in run("projects", "quota", project).out
    refused = run("projects", "quota", project, "deployments=5")
    assert (refused.code != 0, "operator" in refused.err) == (True, True)
    User.objects.update(is_operator=True)
    changed = json.loads(
        run("projects", "quota", project, "deployments=5", "deployment-servers=none", "--json").out
    )
    assert (changed["deployments"], changed["deployment_servers"]) == (5, None)
    assert json.loads(run("users", "quota", "mia", "deployments=7", "--json").out)["deployments"] == 7
    for wrong in ("deployments", "deployments=many", "deployments=nan", "servers=3", "deployments=-1"):
        assert run("projects", "quota", project, wrong).code != 0, wrong
