"""Begins and gives up generations of deployments. Callers hold the cluster's row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from deployments.choices import DeploymentState, ExpertHosting, RolloutState
from deployments.models import Deployment, Replica, Rollout
from deployments.services.records import move, record
from projects.models import User
from scheduling.models import FunctionVersion, Job

#: A new generation is given up after this many failed replicas in a row.
MOST_FAILURES = 3
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Served:
    """The served content of a generation: a function, and the weights of a job unless ``job`` is None."""

    function_version: FunctionVersion
    hyperparameters: dict[str, Any]
    job: Job | None = None
    seed: int = 0
    data: tuple[Any, ...] = ()

    @classmethod
    def of_job(cls, job: Job) -> Served:
        """Return the content for serving a job's weights."""
        return cls(job.function_version, job.hyperparameters, job, job.seed, tuple(job.data))

    @classmethod
    def of_rollout(cls, rollout: Rollout) -> Served:
        """Return a generation's content, to serve the same in another one."""
        return cls(
            rollout.function_version,
            rollout.hyperparameters,
            rollout.job,
            rollout.seed,
            tuple(rollout.data),
        )

    def __str__(self) -> str:
        if self.job is not None:
            return f"the weights of job {self.job.pk}"
        return f"function {self.function_version.function.name}@{self.function_version.number}"


def begin_rollout(deployment: Deployment, served: Served, actor: User) -> Rollout:
    """Begin another generation. One that has not served yet is withdrawn."""
    deployment.rollouts.filter(state=RolloutState.COMING).update(state=RolloutState.RETIRED)
    deployment.generation += 1
    deployment.save(update_fields=["generation"])
    rollout = Rollout.objects.create(
        deployment=deployment,
        number=deployment.generation,
        job=served.job,
        function_version=served.function_version,
        hyperparameters=served.hyperparameters,
        seed=served.seed,
        data=list(served.data),
        group_servers=deployment.wanted_servers if deployment.experts == ExpertHosting.SPREAD else 0,
        created_by=actor,
    )
    record(deployment, "rollout", f"Generation {rollout.number} is to serve {served}.", actor=actor.username)
    if deployment.state == DeploymentState.FAILED:
        move(deployment, DeploymentState.PREPARING, "Another generation starts.", actor=actor.username)
        deployment.reason = ""
        deployment.save(update_fields=["reason"])
    return rollout


def wanted_rollout(deployment: Deployment) -> Rollout | None:
    """Return the generation that all replicas should belong to; None if all were given up."""
    found = deployment.rollouts.filter(state__in=[RolloutState.COMING, RolloutState.CURRENT])
    return found.select_related("job", "function_version__function").order_by("-number").first()


def replica_served(replica: Replica, now: datetime) -> None:
    """Note that a replica serves: its generation becomes the current one."""
    rollout = replica.rollout
    Rollout.objects.filter(pk=rollout.pk).update(failures=0)
    if rollout.state != RolloutState.COMING:
        return
    older = replica.deployment.rollouts.filter(state=RolloutState.CURRENT, number__lt=rollout.number)
    older.update(state=RolloutState.RETIRED)
    rollout.state, rollout.served_at = RolloutState.CURRENT, now
    rollout.save(update_fields=["state", "served_at"])


def replica_failed(replica: Replica, reason: str, now: datetime) -> None:
    """Record that a replica ended without an order: the next one starts after an exponentially growing wait.

    A generation that never served is given up after `MOST_FAILURES` in a row.
    """
    deployment, rollout = replica.deployment, replica.rollout
    rollout.failures += 1
    wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 4.0 ** min(rollout.failures - 1, 10))
    rollout.not_before = now + timedelta(seconds=wait)
    record(deployment, "replica_failed", f"The replica on {replica.server.name} ended: {reason}")
    rollout.save(update_fields=["failures", "not_before"])
    if rollout.state == RolloutState.COMING and rollout.failures >= MOST_FAILURES:
        _give_up(deployment, rollout, reason)


def replica_declined(replica: Replica, reason: str) -> None:
    """Note that a replica cannot meet its deployment's demands: a generation that never served is given up,
    since no other replica could meet them."""
    rollout = Rollout.objects.get(pk=replica.rollout_id)
    if rollout.state == RolloutState.COMING:
        _give_up(replica.deployment, rollout, reason)


def _give_up(deployment: Deployment, rollout: Rollout, reason: str) -> None:
    rollout.state = RolloutState.FAILED
    rollout.save(update_fields=["state"])
    record(deployment, "rollout_failed", f"Generation {rollout.number} is given up: {reason}")
    if wanted_rollout(deployment) is None and not deployment.is_ending():
        deployment.reason = f"No generation can serve: {reason}"
        deployment.save(update_fields=["reason"])
        move(deployment, DeploymentState.FAILED, deployment.reason)
