"""States of deployments, their generations and their replicas."""

from __future__ import annotations

from django.db import models


class DeploymentState(models.TextChoices):
    """`preparing` until a replica serves; `degraded`: too few replicas serve, or latency is above its target;
    `failed`: no generation can serve."""

    PREPARING = "preparing", "Preparing"
    READY = "ready", "Ready"
    DEGRADED = "degraded", "Degraded"
    DRAINING = "draining", "Draining"
    STOPPED = "stopped", "Stopped"
    FAILED = "failed", "Failed"


class ExpertHosting(models.TextChoices):
    """Where the experts of a mixture are computed. `whole`: each server has a whole model; `spread`: the
    servers of a generation form one group."""

    WHOLE = "whole", "On each server"
    SPREAD = "spread", "Spread over the servers"


_UNENDED = (DeploymentState.FAILED, DeploymentState.DRAINING)
DEPLOYMENT_TRANSITIONS: dict[DeploymentState, tuple[DeploymentState, ...]] = {
    DeploymentState.PREPARING: (DeploymentState.READY, DeploymentState.DEGRADED, *_UNENDED),
    DeploymentState.READY: (DeploymentState.DEGRADED, *_UNENDED),
    DeploymentState.DEGRADED: (DeploymentState.READY, *_UNENDED),
    # A new generation is another attempt.
    DeploymentState.FAILED: (DeploymentState.PREPARING, DeploymentState.DRAINING),
    DeploymentState.DRAINING: (DeploymentState.STOPPED,),
    DeploymentState.STOPPED: (),
}

#: No change is possible in these states.
ENDING_STATES = (DeploymentState.DRAINING, DeploymentState.STOPPED)


class RolloutState(models.TextChoices):
    """`coming`: none of its replicas has served; `current`: serves; `retired`: replaced or withdrawn;
    `failed`: given up."""

    COMING = "coming", "Coming"
    CURRENT = "current", "Current"
    RETIRED = "retired", "Retired"
    FAILED = "failed", "Failed"


class ReplicaState(models.TextChoices):
    """`stopping`: it is no longer in the agent's desired state, and the agent ends it; `gone`: its GPU is
    free."""

    STARTING = "starting", "Starting"
    SERVING = "serving", "Serving"
    DRAINING = "draining", "Draining"
    STOPPING = "stopping", "Stopping"
    GONE = "gone", "Gone"


#: Replicas in agents' desired states.
TOLD_STATES = (ReplicaState.STARTING, ReplicaState.SERVING, ReplicaState.DRAINING)
#: Replicas that answer requests; draining ones do so until no more requests arrive.
ANSWERING_STATES = (ReplicaState.SERVING, ReplicaState.DRAINING)

DEPLOYMENT_COLOURS = {
    DeploymentState.PREPARING: "#1e88e5",
    DeploymentState.READY: "#2e7d32",
    DeploymentState.DEGRADED: "#ef8e19",
    DeploymentState.DRAINING: "#8e6cc9",
    DeploymentState.STOPPED: "#757575",
    DeploymentState.FAILED: "#c62828",
}
