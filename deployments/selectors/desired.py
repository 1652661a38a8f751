"""What agents are told of replicas (docs/protocols.md 2.12)."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import Any

from deployments.choices import TOLD_STATES, ReplicaState
from deployments.models import DeploymentToken, Replica
from scheduling.models import Artifact

WEIGHTS = "weights.pt"


def desired_replicas(server_id: int) -> list[dict[str, Any]]:
    """Return the entries of `GET desired` for the replicas of one server."""
    replicas = list(
        Replica.objects.filter(server_id=server_id, state__in=TOLD_STATES)
        .select_related("deployment", "rollout__function_version", "gpu")
        .defer("log", "counts", "counted", "rollout__function_version__files")
        .order_by("key")
    )
    if not replicas:
        return []
    jobs = {replica.rollout.job_id for replica in replicas}
    weights = {weights.job_id: weights for weights in Artifact.objects.filter(job__in=jobs, name=WEIGHTS)}
    tokens = defaultdict(list)
    for deployment_id, digest in DeploymentToken.objects.filter(
        deployment__in={replica.deployment_id for replica in replicas}, revoked_at__isnull=True
    ).values_list("deployment_id", "digest"):
        tokens[deployment_id].append(digest)
    return [
        _entry(replica, weights.get(replica.rollout.job_id or ""), sorted(tokens[replica.deployment_id]))
        for replica in replicas
    ]


def _entry(replica: Replica, weights: Artifact | None, tokens: list[str]) -> dict[str, Any]:
    rollout, deployment = replica.rollout, replica.deployment
    version = rollout.function_version
    own = hashlib.sha256(replica.secret.encode()).hexdigest()
    return {
        "job": replica.key,
        "generation": rollout.number,
        "epoch": replica.epoch,
        "purpose": "serving",
        "goal": "drain" if replica.state == ReplicaState.DRAINING else "serve",
        "start": {"from": "serving", "tokens": [own, *tokens]},
        "world_size": 1,
        "workers": [{"rank": 0, "gpu_index": replica.gpu.index, "handover_port": replica.port}],
        "function": {
            "digest": version.bundle_id,
            "entry": version.entry,
            "requirements_digest": version.requirements_digest or None,
        },
        "hyperparameters": rollout.hyperparameters,
        "seed": rollout.seed,
        "data": rollout.data,
        "profile": None,
        "files": [] if weights is None else [_file(weights)],
        "serving": {
            "most_inputs": deployment.max_batch,
            "longest_wait_seconds": deployment.max_wait_seconds,
        },
    }


def _file(artifact: Artifact) -> dict[str, Any]:
    return {
        "name": artifact.name,
        "uri": artifact.uri,
        "bytes": artifact.size_bytes,
        "sha256": artifact.sha256,
    }
