"""The desired state of replicas for agents (docs/protocols.md 2.12)."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from deployments.choices import TOLD_STATES, ReplicaState, RolloutState
from deployments.models import DeploymentToken, Replica
from deployments.selectors.rings import usable_device_bytes
from scheduling.models import Artifact

WEIGHTS = "weights.pt"
#: Of a job that trained a mixture of experts; a group of servers places its experts by it.
EXPERT_PATHS = "expert_paths.pt"


def desired_replicas(server_id: int) -> list[dict[str, Any]]:
    """Return the entries of `GET desired` for the replicas of one server."""
    replicas = list(
        Replica.objects.filter(server_id=server_id, state__in=TOLD_STATES)
        .select_related("deployment", "rollout__function_version", "gpu")
        .defer("log", "counts", "counted", "experts", "rollout__function_version__files")
        .order_by("key")
    )
    if not replicas:
        return []
    jobs = {replica.rollout.job_id for replica in replicas}
    left = Artifact.objects.filter(job__in=jobs, name__in=[WEIGHTS, EXPERT_PATHS])
    files = {(artifact.job_id, artifact.name): artifact for artifact in left}
    groups = {replica.group for replica in replicas if replica.group}
    firsts = {first.key: first for first in Replica.objects.filter(key__in=groups).select_related("server")}
    tokens = defaultdict(list)
    for deployment_id, digest in DeploymentToken.objects.filter(
        deployment__in={replica.deployment_id for replica in replicas}, revoked_at__isnull=True
    ).values_list("deployment_id", "digest"):
        tokens[deployment_id].append(digest)
    return [
        _entry(
            replica, _files(replica, files), sorted(tokens[replica.deployment_id]), firsts.get(replica.group)
        )
        for replica in replicas
    ]


def _files(replica: Replica, left: Mapping[tuple[str, str], Artifact]) -> list[dict[str, Any]]:
    names = [WEIGHTS, EXPERT_PATHS] if replica.group else [WEIGHTS]
    job = replica.rollout.job_id or ""
    return [_file(left[job, name]) for name in names if (job, name) in left]


def _entry(
    replica: Replica, files: list[dict[str, Any]], tokens: list[str], first: Replica | None
) -> dict[str, Any]:
    """Return a replica's entry. `first`: the replica of rank 0 of its group; None: it is alone."""
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
        "world_size": rollout.group_servers or 1,
        "master_address": None if first is None else first.server.address,
        "master_port": None if first is None else first.group_port,
        "workers": [{"rank": replica.rank, "gpu_index": replica.gpu.index, "handover_port": replica.port}],
        "function": {
            "digest": version.bundle_id,
            "entry": version.entry,
            "requirements_digest": version.requirements_digest or None,
        },
        "hyperparameters": rollout.hyperparameters,
        "seed": rollout.seed,
        "data": rollout.data,
        "profile": None,
        "files": files,
        "memory": {
            "device_bytes": usable_device_bytes(replica),
            # A generation that has served continues: its latency shows in its samples.
            "latency_target_seconds": (
                deployment.latency_target_seconds if rollout.state == RolloutState.COMING else None
            ),
        },
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
