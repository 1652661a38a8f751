"""Ports on servers for generations' workers and for agents that measure links. Callers hold the cluster's
row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from cluster.models import Server, ServerLink
from projects.prepared import PreparedRows, PreparedValues
from scheduling.choices import GenerationState
from scheduling.models import Assignment, Generation
from scheduling.services.rows.bulk import update_rows


@dataclass(frozen=True)
class NoFreePort:
    """A generation could not be made: a server has too few free ports. ``message``: a sentence for people."""

    message: str


def _used(server_ids: int) -> QuerySet[Any, Any]:
    """Return the used ports: those of unretired generations' masters and shards, and of link probes."""
    unretired = Generation.objects.exclude(state=GenerationState.RETIRED).order_by()
    masters = unretired.filter(master_server__pk__any_of=server_ids)
    probes = ServerLink.objects.filter(asked_at__isnull=False, second__pk__any_of=server_ids).order_by()
    shards = Assignment.objects.filter(
        generation__in=unretired, handover_port__isnull=False, gpu__server__pk__any_of=server_ids
    ).order_by()
    return masters.values_list("master_server_id", "master_port").union(
        probes.values_list("second_id", "port"),
        shards.values_list("gpu__server_id", "handover_port"),
        all=True,
    )


_USED = PreparedValues(_used)
_WITH_PORTS = PreparedRows(
    lambda server_ids: Server.objects.select_for_update().filter(pk__any_of=server_ids).order_by("pk")
)


def take_ports(wanted: Sequence[Sequence[int]]) -> list[list[int] | NoFreePort]:
    """Return for each entry a free port of each of its servers, or `NoFreePort` if a server has too few.

    No unretired generation uses these ports. Each server's range is used in turn, so no port is reused soon.
    """
    server_ids = {server_id for places in wanted for server_id in places}
    servers = {server.pk: server for server in _WITH_PORTS.ask(list(server_ids))}
    used: dict[int, set[int]] = defaultdict(set)
    for server_id, port in _USED.ask(list(servers)):
        used[server_id].add(port)
    for server in servers.values():
        if server.store_port is not None:
            used[server.pk].add(server.store_port)
    taken = [_ports_on([servers[server_id] for server_id in places], used) for places in wanted]
    update_rows(list(servers.values()), ["port_next"])
    return taken


def _ports_on(places: Sequence[Server], used: dict[int, set[int]]) -> list[int] | NoFreePort:
    """Return a port on each of ``places`` and add them to ``used``; take none if one server has too few."""
    taken: list[int] = []
    for server in places:
        port = _free_port(server, used[server.pk])
        if port is None:
            for other, given in zip(places, taken, strict=False):
                used[other.pk].discard(given)
            span = f"{server.port_first}-{server.port_last}"
            return NoFreePort(f"server {server.name} has too few free ports for it in {span}")
        used[server.pk].add(port)
        server.port_next = port + 1
        taken.append(port)
    return taken


def _free_port(server: Server, used: set[int]) -> int | None:
    span = server.port_last - server.port_first + 1
    first = (
        server.port_next if server.port_first <= server.port_next <= server.port_last else server.port_first
    )
    order = (server.port_first + (first - server.port_first + step) % span for step in range(span))
    return next((port for port in order if port not in used), None)
