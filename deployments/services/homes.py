"""Inference servers at home, and their room for replicas. Callers hold the cluster's row."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from cluster.choices import DrainState, LendingState, ServerState
from cluster.models import Gpu
from deployments.choices import ReplicaState, RolloutState
from deployments.core.places import Home
from deployments.models import Replica, Rollout
from lending.choices import LoanState
from lending.models import InferenceCluster, LoanOrder

PRESENT_STATES = (
    ReplicaState.STARTING,
    ReplicaState.SERVING,
    ReplicaState.DRAINING,
    ReplicaState.STOPPING,
)


@dataclass
class Homes:
    """Inference servers at home with their free GPUs; updated as replicas start."""

    gpus: dict[int, Gpu]
    homes: dict[int, Home]

    def count_places(self, deployment: str) -> int:
        """Return the number of servers that can take a replica of the deployment."""
        return sum(
            bool(home.free_gpus) and deployment not in home.deployments for home in self.homes.values()
        )

    def take(self, server: int, gpu: int, deployment: str) -> None:
        """Note a replica that starts on a server's GPU."""
        self.homes[server] = self.homes[server].with_replica(gpu, deployment)


def find_homes(
    inference_cluster: InferenceCluster,
    now: datetime,
    states: Collection[ReplicaState] = PRESENT_STATES,
) -> Homes:
    """Return the servers that may get replicas: at home, up, neither drained nor offered for loan.

    Args:
        states: replicas in these states take room.
    """
    offered = LoanOrder.objects.filter(
        inference_cluster=inference_cluster, state=LoanState.PENDING, servers__isnull=False
    )
    servers = inference_cluster.servers.filter(
        lending_state=LendingState.INFERENCE, state=ServerState.UP, drain=DrainState.NONE
    ).exclude(pk__in=offered.values("servers"))
    servers = servers.exclude(available_until__lte=now)
    present = list(
        Replica.objects.filter(server__in=servers, state__in=states).values_list(
            "gpu_id", "server_id", "deployment_id", "rollout_id", "leaving"
        )
    )
    used = {gpu for gpu, *_ in present}
    gpus = {
        gpu.pk: gpu
        for gpu in Gpu.objects.filter(server__in=servers, healthy=True).select_related("server__cluster")
    }
    free: dict[int, list[int]] = {server: [] for server in servers.values_list("pk", flat=True)}
    for gpu in gpus.values():
        if gpu.pk not in used:
            free[gpu.server_id].append(gpu.pk)
    wanted = _wanted_rollouts(inference_cluster)
    deployments: dict[int, set[str]] = {server: set() for server in free}
    for _, server, deployment, rollout, is_leaving in present:
        # A new generation may start beside a replica that it replaces, but not beside one that must leave.
        is_replaced = rollout != wanted.get(deployment) and not is_leaving
        deployments[server].add(f"{deployment} before" if is_replaced else deployment)
    homes = {
        server: Home(server, tuple(sorted(free[server])), frozenset(deployments[server])) for server in free
    }
    return Homes(gpus, homes)


def _wanted_rollouts(inference_cluster: InferenceCluster) -> dict[str, int]:
    """Return the wanted generation's row of each deployment."""
    rows = Rollout.objects.filter(
        deployment__inference_cluster=inference_cluster,
        state__in=[RolloutState.COMING, RolloutState.CURRENT],
    )
    return dict(rows.order_by("number").values_list("deployment_id", "pk"))


def has_to_leave(replica: Replica, homes: Homes) -> bool:
    """Return whether its owner drains it, or its server takes no new replicas though it is up."""
    return replica.leaving or (
        replica.server_id not in homes.homes and replica.server.state == ServerState.UP
    )
