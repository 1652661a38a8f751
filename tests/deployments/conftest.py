"""Deployments on three inference servers with simulated agents, whose workers serve and end at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from cluster.models import Cluster, Server
from deployments.choices import ReplicaState
from deployments.models import Deployment
from deployments.services.deployments import DeploymentRequest, deployment_create
from deployments.services.servable import job_servable
from deployments.services.steering import steer_deployments
from lending.models import InferenceCluster
from projects.models import Membership, Role
from punctual.protocol.latencies import LATENCY_BUCKETS, latency_bucket
from scheduling.choices import JobState
from scheduling.models import Job
from scheduling.services.agents.reports import ReportAnswer
from tests.control_plane.conftest import SPEED, clock, cluster, inference
from tests.control_plane.simulated_agent import SimulatedAgent, SimulatedWorker
from tests.factories import ArtifactFactory, BundleFactory, JobFactory, MembershipFactory

__all__ = ["clock", "cluster", "inference"]  # fixtures

SOURCE = """
from punctual import TrainingFunction


class Classifier(TrainingFunction):
    def init_model(self): ...
    def init_dataset(self): ...
    def init_optimizer(self, model): ...
    def train(self, batch, model): ...
    {predict}
"""
PREDICT = "def predict(self, batch, model): ..."


@dataclass
class ServingAgent(SimulatedAgent):
    """An agent whose workers serve at once. ``broken_jobs``: generations whose workers fail, by number."""

    broken: dict[int, str] = field(default_factory=dict)

    def obey(self) -> None:
        """Fetch the desired state if its version is new, as the real agent does."""
        server = Server.objects.filter(pk=self.agent.server_id)
        if server.values_list("desired_version", flat=True).get() != self.desired_version:
            super().obey()
            return
        for worker in self.workers.values():
            self._follow(worker)

    def _follow(self, worker: SimulatedWorker) -> None:
        if worker.entry["purpose"] != "serving":
            super()._follow(worker)
            return
        goal = worker.entry["goal"]
        message = self.broken.get(worker.entry["generation"])
        if message is not None and worker.phase != "failed":
            worker.phase = "failed"
            self.event(worker, "failed", rank=0, reason="function_error", message=message)
        elif goal == "serve" and worker.phase == "preparing":
            worker.phase = "serving"
        elif goal == "drain" and worker.phase == "serving":
            worker.phase = "completed"

    def serving(self) -> list[str]:
        """Return the keys of the replicas that serve here."""
        return [job for (job, _, _), worker in self.workers.items() if worker.phase == "serving"]

    def answered(
        self, key: str, requests: int, seconds: float, busy_seconds: float, uptime: float, **more: Any
    ) -> ReportAnswer:
        """Report the answers of one replica since it started."""
        latencies = [0] * LATENCY_BUCKETS
        latencies[latency_bucket(seconds)] = requests
        entry = {
            "job": key,
            "generation": next(number for job, number, _ in self.workers if job == key),
            "rank": 0,
            "requests": requests,
            "inputs": 2 * requests,
            "batches": requests,
            "busy_seconds": busy_seconds,
            "uptime_seconds": uptime,
            "latencies": latencies,
        }
        return self.report(serving=[entry | more])


Agents = tuple[ServingAgent, ServingAgent, ServingAgent]
Deploy = Callable[..., Deployment]


def settle(*agents: ServingAgent, rounds: int = 12) -> None:
    """Alternate control plane and agents until nothing changes."""
    for exchange in range(rounds):
        steer_deployments()
        before = [agent.shown() for agent in agents]
        for agent in agents:
            agent.obey()
            if agent.reported != agent.shown() or agent.events or exchange == 0:
                agent.report()
        if before == [agent.shown() for agent in agents]:
            return
    raise AssertionError("deployments and agents always have news")


def states(deployment: Deployment) -> list[str]:
    """Return the states of the replicas that are not gone."""
    return sorted(deployment.replicas.exclude(state=ReplicaState.GONE).values_list("state", flat=True))


def completed_job(membership: Membership, predict: str = PREDICT, **fields: Any) -> Job:
    """Return a completed job that left weights, of a function with this method `predict`."""
    job: Job = JobFactory.create(
        cluster=Cluster.objects.get(),
        project=membership.project,
        owner=membership.user,
        state=JobState.COMPLETED,
        **fields,
    )
    source = SOURCE.format(predict=predict).encode()
    job.function_version.bundle = BundleFactory.create(content=source)
    job.function_version.save()
    ArtifactFactory.create(job=job)
    return job


@pytest.fixture
def agents(inference: InferenceCluster) -> Agents:
    names = ("serving-1", "serving-2", "serving-3")
    first, second, third = (ServingAgent.enrol(name, 2, SPEED, inference) for name in names)
    return first, second, third  # type: ignore[return-value]


@pytest.fixture
def member(cluster: Cluster) -> Membership:
    made: Membership = MembershipFactory.create(role=Role.MEMBER)
    return made


@pytest.fixture
def deploy(member: Membership) -> Deploy:
    def make(job: Job | None = None, **settings: Any) -> Deployment:
        job = job or completed_job(member)
        request = DeploymentRequest(**{"name": f"deployment of {job.pk}", **settings})
        return deployment_create(
            project=job.project, owner=member.user, served=job_servable(job), request=request
        )

    return make
