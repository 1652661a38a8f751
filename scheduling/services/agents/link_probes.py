"""Measurements of links between servers: a few idle links at a time, each repeated after a while.

The servers' agents measure (docs/protocols.md 2.9). A server takes part while it runs no workers of a job
that spans several servers. If such a job used it during the measurement, the result is discarded.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Count, F, Q, QuerySet
from django.utils import timezone

from cluster.link_pairs import Pair, apart, pairs_of
from cluster.models import Agent, Cluster, Gpu, Server, ServerLink
from scheduling.choices import AssignmentState
from scheduling.models import Assignment, Generation
from scheduling.services.generations.server_ports import NoFreePort, take_ports
from scheduling.services.rows.records import lock_cluster
from scheduling.services.rows.wakeups import hint, wake_agents

#: Links measured at once, per cluster. Each measurement fills the network of two servers for a second.
MOST_AT_ONCE = 8
#: A measurement without a result is given up after this time.
PROBE_TIMEOUT = timedelta(seconds=45)
#: Time from a usable result to the next measurement of the link.
MEASURE_AGAIN = timedelta(hours=1)
#: Time from a failed or unusable measurement to the next attempt.
TRY_AGAIN = timedelta(minutes=5)
_SECRET_BYTES = 32


def ask_for_measurements() -> int:
    """Start measuring links that are due and idle. Return how many were started."""
    begun = 0
    for cluster in Cluster.objects.all():
        with transaction.atomic():
            now = timezone.now()
            if _late(cluster, now).exists() or _due(cluster, now):
                locked = lock_cluster(cluster.pk)
                _give_up(_late(locked, now), now)
                begun += _begin(locked, now)
    return begun


def take_measurement(agent: Agent, result: Mapping[str, Any], now: datetime) -> str:
    """Store an agent's measurement. Return why the report is invalid, else an empty string.

    An unusable result is stored as `problem`; the previous figures stay. A result of a superseded or
    given-up measurement is ignored.
    """
    link = ServerLink.objects.select_for_update().filter(pk=result["link"]).first()
    if link is None or link.first_id != agent.server_id:
        return f"this server is not the caller of link {result['link']}"
    if link.asked_at is None or link.number != result["number"]:
        return ""
    problem = result["problem"]
    if not problem and _used_by_groups([link.first_id, link.second_id], since=link.asked_at):
        problem = "jobs used these servers while it was measured"
    if not problem:
        link.latency_seconds = result["latency_seconds"]
        link.bytes_per_second = result["bytes_per_second"]
        link.emulated = Server.objects.filter(
            pk__in=(link.first_id, link.second_id), links__isnull=False
        ).exists()
        link.measured_at = now
    link.problem, link.tried_at = problem, now
    link.asked_at, link.secret, link.port = None, "", 0
    link.save()
    hint(f"cluster:{agent.server.cluster_id}", kind="servers")
    return ""


def _late(cluster: Cluster, now: datetime) -> QuerySet[ServerLink]:
    return ServerLink.objects.filter(first__cluster=cluster, asked_at__lt=now - PROBE_TIMEOUT)


def _give_up(late: QuerySet[ServerLink], now: datetime) -> None:
    # A single UPDATE: a result stored concurrently clears `asked_at`, so its row no longer matches.
    late.update(
        problem="the two servers' agents did not answer in time",
        tried_at=now,
        asked_at=None,
        secret="",
        port=0,
    )


def _begin(cluster: Cluster, now: datetime) -> int:
    """Start as many measurements as the limit allows. The caller holds the cluster's row."""
    room = MOST_AT_ONCE - ServerLink.objects.filter(first__cluster=cluster, asked_at__isnull=False).count()
    chosen = apart(_due(cluster, now), max(0, room))
    ports = take_ports([[second] for _, second in chosen])
    servers: set[int] = set()
    for (first, second), taken in zip(chosen, ports, strict=True):
        if isinstance(taken, NoFreePort):
            continue
        link, _ = ServerLink.objects.get_or_create(first_id=first, second_id=second)
        link.number, link.asked_at, link.tried_at = link.number + 1, now, now
        link.port, link.secret = taken[0], secrets.token_hex(_SECRET_BYTES)
        link.save()
        servers |= {first, second}
    Server.objects.filter(pk__in=servers).update(desired_version=F("desired_version") + 1)
    wake_agents(dict(Server.objects.filter(pk__in=servers).values_list("pk", "desired_version")))
    return len(servers) // 2


def _due(cluster: Cluster, now: datetime) -> list[Pair]:
    """Return the pairs of idle servers to measure: never-tried pairs, then the least recently tried."""
    free = _free_servers(cluster, now)
    links = {
        (link.first_id, link.second_id): link
        for link in ServerLink.objects.filter(first__in=free, second__in=free)
    }
    last_tried: dict[Pair, datetime] = {}
    for pair in pairs_to_measure(cluster):
        if not set(pair) <= free:
            continue
        link = links.get(pair)
        last = link.tried_at if link is not None else None
        pause = MEASURE_AGAIN if link is not None and not link.problem else TRY_AGAIN
        if last is None or last + pause <= now:
            last_tried[pair] = last or datetime.min.replace(tzinfo=now.tzinfo)
    return sorted(last_tried, key=lambda pair: (last_tried[pair], pair))


def pairs_to_measure(cluster: Cluster) -> list[Pair]:
    """Return pairs of servers that share a GPU kind, since no job spans kinds.

    Above `MOST_WITH_ALL_PAIRS` servers of a kind: only O(n log n) pairs.
    """
    by_kind: dict[str, set[int]] = defaultdict(set)
    for kind, server_id in (
        Gpu.objects.known().filter(server__cluster=cluster).values_list("kind", "server_id")
    ):
        by_kind[kind].add(server_id)
    return sorted({pair for servers in by_kind.values() for pair in pairs_of(sorted(servers))})


def _free_servers(cluster: Cluster, now: datetime) -> set[int]:
    """Return usable servers with a recent report that run neither a measurement nor workers of a job
    spanning several servers.
    """
    oldest_report = now - timedelta(seconds=cluster.suspect_seconds)
    reporting = Server.objects.filter(
        cluster=cluster,
        agent__fenced_at=None,
        agent__revoked_at=None,
        agent__last_report_at__gt=oldest_report,
    )
    usable = {server.pk for server in reporting if server.usable()}
    measuring = ServerLink.objects.filter(first__cluster=cluster, asked_at__isnull=False)
    taken = {server for pair in measuring.values_list("first_id", "second_id") for server in pair}
    return usable - taken - _used_by_groups(usable)


def _used_by_groups(servers: Collection[int] | Sequence[int], since: datetime | None = None) -> set[int]:
    """Return servers that run, or ran since `since`, workers of a job spanning several servers."""
    in_use = Q(state__in=(AssignmentState.HELD, AssignmentState.CLEARING))
    if since is not None:
        in_use |= Q(released_at__gte=since)
    spanning = (
        Generation.objects.filter(assignments__in=Assignment.objects.filter(in_use))
        .annotate(places=Count("assignments__gpu__server", distinct=True))
        .filter(places__gt=1)
    )
    assignments = Assignment.objects.filter(in_use, generation__in=spanning, gpu__server__in=servers)
    return set(assignments.values_list("gpu__server_id", flat=True))
