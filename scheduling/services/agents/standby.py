"""Standby servers: joining and leaving the pool, replacing lost servers, the operator's settings (decision
0028).

A server's own row says whether it belongs to the pool. When a server is lost, it and its replacement swap
roles in one transaction, so the pool is full again once the lost server returns, and no server has to leave
the pool then. As with a drain, a server joins the pool only while every promise can be kept without it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import structlog
from django.db import transaction
from django.db.models import Exists, Q, QuerySet
from django.utils import timezone

from cluster.models import Cluster, Server
from projects.errors import InvalidRequest, Unavailable
from projects.models import User
from projects.prepared import PreparedValues
from recovery.placement.standby import PoolServer, candidates, replaced, surplus
from scheduling.models import Incident
from scheduling.selectors.cluster.standby import pool_servers, standby_of
from scheduling.services.agents.drain import promises_broken_by
from scheduling.services.rows.records import lock_cluster, planning_fact_changed, read_cluster
from scheduling.services.rows.wakeups import hint, wake
from scheduling.services.verdicts.incidents import resolve, saw_once

log = structlog.get_logger(__name__)


def standby_set(
    *,
    cluster: Cluster,
    actor: User,
    standby_servers: int | None = None,
    failures_per_server_day: float | None = None,
    replacement_seconds: float | None = None,
) -> Cluster:
    """Set the number of standby servers of each kind and the inputs of the rule that suggests it; None keeps
    a value.

    Servers join the pool one by one, each once no promise breaks without it.

    Raises:
        InvalidRequest: a pool of this size leaves no server to plan on.
    """
    given = {
        "standby_servers": standby_servers,
        "failures_per_server_day": failures_per_server_day,
        "replacement_seconds": replacement_seconds,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        raise InvalidRequest("The request changes nothing.", errors={"standby_servers": ["Give a number."]})
    if standby_servers:
        _require_room(cluster, standby_servers)
    with transaction.atomic():
        lock_cluster(cluster.pk)
        Cluster.objects.filter(pk=cluster.pk).update(**given, standby_tried_at=None, standby_obstacle="")
        planning_fact_changed(cluster)  # promises depend on the failure rate
    log.info("standby servers are set", by=actor.username, **given)
    keep_standby(cluster.pk)
    cluster.refresh_from_db()
    return cluster


def _require_room(cluster: Cluster, wanted: int) -> None:
    kinds: dict[str, int] = {}
    for server in pool_servers(cluster):
        kinds[server.kind] = kinds.get(server.kind, 0) + 1
    if not kinds or wanted < max(kinds.values()):
        return
    kind, servers = max(kinds.items(), key=lambda item: item[1])
    there = f"The cluster has {servers} server{'s' if servers > 1 else ''} of {kind}"
    raise InvalidRequest(
        "With so many standby servers, none is left for jobs.",
        errors={"standby_servers": [f"{there}: at most {servers - 1} can stand by."]},
    )


def replace_lost(cluster: Cluster) -> None:
    """Put standby servers in the places of lost ones. The caller holds the cluster's row."""
    if not Server.objects.filter(cluster=cluster, standby=True).exists():
        return
    pairs = replaced(pool_servers(cluster))
    for lost, instead in pairs:
        log.warning("standby server steps in", server=instead, lost=lost)
        _mark(cluster, lost, standby=True)
        _mark(cluster, instead, standby=False)
    if pairs:
        _changed(cluster, f"server {pairs[0][1]} takes the place of {pairs[0][0]}")


def _with_a_pool(cluster_id: int) -> QuerySet[Cluster, Any]:
    """Return the cluster if it has a standby pool, wants one, or misses one."""
    missed = Incident.objects.filter(cluster=cluster_id, kind=Incident.Kind.NO_STANDBY, resolved_at=None)
    some = (
        Q(standby_servers__gt=0)
        | Exists(Server.objects.filter(cluster=cluster_id, standby=True))
        | Exists(missed)
    )
    return Cluster.objects.filter(some, pk=cluster_id).values_list("pk")


_POOLED = PreparedValues(_with_a_pool)


def keep_standby(cluster_id: int) -> None:
    """Bring the pool to the size that the operator set, as far as promises allow. Raise an incident if no
    standby server is ready.
    """
    if not _POOLED.any(cluster_id):
        return
    cluster = read_cluster(cluster_id)
    if cluster.standby_servers == 0 and not Server.objects.filter(cluster=cluster, standby=True).exists():
        resolve(cluster, {Incident.Kind.NO_STANDBY: ()}, timezone.now())
        return
    with transaction.atomic():
        cluster = lock_cluster(cluster_id)
        leaving = surplus(pool_servers(cluster), cluster.standby_servers)
        for name in leaving:
            _mark(cluster, name, standby=False)
        if leaving:
            _changed(cluster, f"server {leaving[0]} stands by no more")
        replace_lost(cluster)
    _fill(cluster_id)
    _tell(cluster_id)


def _fill(cluster_id: int) -> None:
    """Move servers into the pool while it is too small. If promises need the chosen server, try again after
    `replan_seconds`.
    """
    while True:
        cluster = read_cluster(cluster_id)
        now = timezone.now()
        tried_at = cluster.standby_tried_at
        if tried_at is not None and now - tried_at < timedelta(seconds=cluster.replan_seconds):
            return
        chosen = _best(pool_servers(cluster), cluster.standby_servers)
        if chosen is None:
            return
        server = Server.objects.select_related("cluster").get(cluster=cluster, name=chosen.id)
        obstacle = _obstacle(server)
        with transaction.atomic():
            current = lock_cluster(cluster_id)
            if current.planning_version != cluster.planning_version:
                return  # the answer is for an older planning version; the next call asks again
            if obstacle:
                current.standby_tried_at = now
                current.standby_obstacle = obstacle
                current.save(update_fields=["standby_tried_at", "standby_obstacle"])
                return
            Cluster.objects.filter(pk=cluster_id).update(standby_tried_at=None, standby_obstacle="")
            _mark(cluster, server.name, standby=True)
            log.info("server stands by", server=server.name)
            _changed(cluster, f"server {server.name} stands by")


def _obstacle(server: Server) -> str:
    """Return why the server cannot join the pool now, or an empty string."""
    try:
        broken = promises_broken_by(server, lambda known: replace(known, usable=False, standby=True))
    except Unavailable as unknown:
        return str(unknown)
    if not broken:
        return ""
    others = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
    return (
        f"Without {server.name} the promise of job {broken[0]['job']}{others} would break; it is tried again."
    )


def _best(servers: list[PoolServer], wanted: int) -> PoolServer | None:
    for kind in sorted({server.kind for server in servers}):
        able = candidates(servers, wanted, kind)
        if able:
            return able[0]
    return None


def _tell(cluster_id: int) -> None:
    cluster = read_cluster(cluster_id)
    now = timezone.now()
    empty = [pool for pool in standby_of(cluster).pools if pool.wanted and not pool.ready]
    if not empty:
        resolve(cluster, {Incident.Kind.NO_STANDBY: ()}, now)
        return
    message = " ".join(f"{pool.gpu_kind}: {pool.note}" for pool in empty)
    saw_once(cluster, Incident.Kind.NO_STANDBY, message, job=None, now=now)


def _mark(cluster: Cluster, name: str, *, standby: bool) -> None:
    Server.objects.filter(cluster=cluster, name=name).update(standby=standby)


def _changed(cluster: Cluster, trigger: str) -> None:
    planning_fact_changed(cluster)
    hint(f"cluster:{cluster.pk}", kind="servers")
    wake("plan", trigger=trigger)
