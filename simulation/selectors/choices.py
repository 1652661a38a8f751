"""What an operator may choose from: traces, policies, and the live cluster's size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings

from cluster.choices import DrainState, ServerState
from cluster.models import Gpu
from cluster.selectors import cluster_shown
from scheduling.choices import PLANNED_STATES, UNDECIDED_STATES
from scheduling.models import Job
from scheduling.policies import DEFAULT_POLICY, POLICIES
from simulation.workloads.catalogue import TraceListing, available_traces
from simulation.workloads.errors import TraceError


@dataclass(frozen=True)
class LiveCluster:
    """The live cluster's commonest GPU type: what a study of it starts from."""

    gpu_type: str
    servers: int
    gpus_per_server: int
    slot_seconds: float
    policy: str
    reserve_servers: int
    unfinished_jobs: int


def traces_offered() -> tuple[tuple[TraceListing, ...], str]:
    """Traces by name, and a sentence on what is wrong with the traces folder, where something is."""
    try:
        return available_traces(), ""
    except (TraceError, OSError) as error:
        return (), str(error)


def policies_offered() -> list[str]:
    """Names of the policies, the default one first."""
    return [DEFAULT_POLICY, *(name for name in POLICIES if name != DEFAULT_POLICY)]


def limits() -> dict[str, Any]:
    """The most that a study may ask for."""
    return dict(settings.SIMULATION_LIMITS)


def live_cluster() -> LiveCluster | None:
    """The live cluster in short; None while it has no usable server."""
    cluster = cluster_shown()
    if cluster is None:
        return None
    usable = Gpu.objects.filter(
        server__cluster=cluster, server__state=ServerState.UP, server__drain=DrainState.NONE
    )
    by_kind: dict[str, dict[int, int]] = {}
    for kind, server in usable.order_by().values_list("kind", "server_id"):
        servers = by_kind.setdefault(kind, {})
        servers[server] = servers.get(server, 0) + 1
    if not by_kind:
        return None
    kind = min(by_kind, key=lambda name: (-sum(by_kind[name].values()), name))
    sizes = list(by_kind[kind].values())
    unfinished = Job.objects.filter(cluster=cluster, state__in=[*PLANNED_STATES, *UNDECIDED_STATES])
    return LiveCluster(
        gpu_type=kind,
        servers=len(sizes),
        gpus_per_server=max(set(sizes), key=lambda size: (sizes.count(size), size)),
        slot_seconds=cluster.slot_seconds,
        policy=cluster.policy,
        reserve_servers=cluster.reserve_servers,
        unfinished_jobs=unfinished.count(),
    )
