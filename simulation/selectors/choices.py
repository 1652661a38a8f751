"""Choices that an operator has: traces, policies, and the live cluster's size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import Count

from cluster.models import Gpu
from cluster.selectors.machines import cluster_shown
from lending.forecasting.registry import FORECASTERS, NO_FORECASTER
from scheduling.choices import PLANNED_STATES, UNDECIDED_STATES
from scheduling.core.lyra.reclaiming.methods import ReclaimMethod
from scheduling.core.question.kinds import main_kind
from scheduling.core.question.snapshot import Newcomers
from scheduling.models import Job
from simulation.inference.catalogue import available_usage
from simulation.inference.helios import DEMAND_CURVES, find_demand_curve
from simulation.live.lent import kind_of, largest_inference_cluster
from simulation.policies import policies_where, policy_named
from simulation.workloads.catalogue import TraceListing, available_traces
from simulation.workloads.errors import TraceError

#: The network is trained again for each simulated day, which takes minutes; most runs take seconds.
TOO_SLOW_FORECASTERS = ("lstm",)


@dataclass(frozen=True)
class LiveCluster:
    """The live cluster's most common GPU type, from which a study of it starts.

    ``inference_servers`` and ``inference_gpu_type``: of its largest inference cluster; 0 and empty without
    one.
    """

    gpu_type: str
    servers: int
    gpus_per_server: int
    slot_seconds: float
    policy: str
    reserve_servers: int
    unfinished_jobs: int
    inference_servers: int
    inference_gpu_type: str


@dataclass(frozen=True)
class UsageListing:
    """One usage on offer. ``original``: where a public curve was published."""

    name: str
    description: str
    available: bool = True
    original: str = ""


def traces_offered() -> tuple[tuple[TraceListing, ...], str]:
    """Return traces by name, and a sentence on what is wrong with the traces folder, if anything."""
    try:
        return available_traces(), ""
    except (TraceError, OSError) as error:
        return (), str(error)


def policies_offered() -> list[str]:
    """Return the names of the policies, the default one first."""
    return policies_where(lambda policy: True)


def borrows(policy: str) -> bool:
    """Return whether a policy puts jobs on servers on loan."""
    return policy_named(policy).borrows


def prices_newcomers(policy: str) -> bool:
    """Return whether a policy can keep room for newcomers that need little."""
    return policy_named(policy).prices_newcomers


def pricing_policies() -> list[str]:
    """Return the policies that can keep room for newcomers, the default one first."""
    return policies_where(lambda policy: policy.prices_newcomers)


def borrowing_policies() -> list[str]:
    """Return the policies that use borrowed servers, the default one first."""
    return policies_where(lambda policy: policy.borrows)


def usages_offered() -> list[UsageListing]:
    """Return the usage series on offer. Public curves may be missing on this machine."""
    return [
        UsageListing(name, description, *_published(name))
        if name in DEMAND_CURVES
        else UsageListing(name, description)
        for name, description in available_usage()
    ]


def _published(name: str) -> tuple[bool, str]:
    try:
        find_demand_curve(name)
    except TraceError:
        return False, DEMAND_CURVES[name].original
    return True, DEMAND_CURVES[name].original


def newcomers_offered() -> list[str]:
    """Return the rules for newcomers, the default one first."""
    return [rule.value for rule in Newcomers]


def reclaims_offered() -> list[str]:
    """Return the methods of choosing servers to return."""
    return [method.value for method in ReclaimMethod]


def forecasters_offered() -> list[str]:
    """Return the forecasters of an inference cluster's next five minutes, "none" last."""
    return [*(name for name in FORECASTERS if name not in TOO_SLOW_FORECASTERS), NO_FORECASTER]


def limits() -> dict[str, Any]:
    """Return the limits of a study."""
    return dict(settings.SIMULATION_LIMITS)


def live_cluster() -> LiveCluster | None:
    """Return a summary of the live cluster; None if it has no usable server."""
    cluster = cluster_shown()
    if cluster is None:
        return None
    sizes_of: dict[str, list[int]] = {}
    by_server = Gpu.objects.own(cluster).usable().order_by().values_list("kind", "server_id")
    for kind_there, _, count in by_server.annotate(count=Count("pk")):
        sizes_of.setdefault(kind_there, []).append(count)
    kind = main_kind({name: sum(sizes) for name, sizes in sizes_of.items()})
    if kind is None:
        return None
    sizes = sizes_of[kind]
    serving = largest_inference_cluster(cluster)
    unfinished = Job.objects.filter(cluster=cluster, state__in=[*PLANNED_STATES, *UNDECIDED_STATES])
    return LiveCluster(
        gpu_type=kind,
        servers=len(sizes),
        gpus_per_server=max(set(sizes), key=lambda size: (sizes.count(size), size)),
        slot_seconds=cluster.slot_seconds,
        policy=cluster.policy,
        reserve_servers=cluster.reserve_servers,
        unfinished_jobs=unfinished.count(),
        inference_servers=0 if serving is None else serving.servers.count(),
        inference_gpu_type="" if serving is None else kind_of(serving),
    )
