"""Servers with their agents' leases and their work."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import F, OuterRef, Subquery

from cluster.links import LinkView, links_of
from cluster.models import Server
from projects.models import User
from scheduling.choices import AssignmentState
from scheduling.models import Assignment, CurveLevel
from scheduling.selectors.cluster.occupancy import GpuCell, occupants


@dataclass(frozen=True, slots=True)
class ServerCard:
    """One server. ``silent_seconds``: None if no agent ever enrolled."""

    server: Server
    silent_seconds: float | None
    agent_version: str
    #: Whether the agent's credential is revoked.
    revoked: bool
    fenced: bool
    gpus: tuple[GpuCell, ...]
    kinds: str
    emulated: bool
    #: GPUs that are assigned.
    busy_gpus: int
    links: tuple[LinkView, ...]
    #: Its announced end has passed.
    gone: bool
    #: Host memory reserved for its workers, where it was measured.
    reserved_bytes: int

    @property
    def without_sandbox(self) -> bool:
        return self.server.sandbox == "none"


def server_cards(user: User, now: datetime) -> list[ServerCard]:
    """Return all servers of the cluster, by name."""
    held = occupants(user)
    servers = (
        Server.objects.known().select_related("agent", "cluster").prefetch_related("gpus").order_by("name")
    )
    cards = []
    reserved = _reserved_bytes()
    for server in servers:
        agent = getattr(server, "agent", None)
        gpus = tuple(
            GpuCell(gpu.index, gpu.kind, gpu.emulated, gpu.healthy, held.get(gpu.id))
            for gpu in server.gpus.all()
        )
        cards.append(
            ServerCard(
                server=server,
                silent_seconds=agent.silent_seconds(now) if agent else None,
                agent_version=agent.version if agent else "",
                revoked=bool(agent and agent.revoked_at),
                fenced=bool(agent and agent.fenced_at),
                gpus=gpus,
                kinds=", ".join(sorted({gpu.kind for gpu in gpus})),
                emulated=any(gpu.emulated for gpu in gpus),
                busy_gpus=sum(gpu.occupant is not None for gpu in gpus),
                links=tuple(links_of(server)),
                reserved_bytes=reserved.get(server.pk, 0),
                gone=server.available_until is not None and server.available_until <= now,
            )
        )
    return cards


def _reserved_bytes() -> dict[int, int]:
    """Return by server the bytes reserved for workers that hold GPUs there, each GPU counted once."""
    held = Assignment.objects.filter(
        state=AssignmentState.HELD, generation__curve__isnull=False, rank__lt=F("generation__world_size")
    )
    level = CurveLevel.objects.filter(
        curve=OuterRef("generation__curve"), gpus=OuterRef("generation__world_size")
    )
    workers = held.annotate(reserved=Subquery(level.values("reserved_memory_bytes")[:1])).values_list(
        "gpu_id", "gpu__server_id", "reserved"
    )
    most: dict[tuple[int, int], int] = {}
    for gpu_id, server_id, reserved in workers:
        most[server_id, gpu_id] = max(most.get((server_id, gpu_id), 0), reserved or 0)
    sums: dict[int, int] = {}
    for (server_id, _), reserved in most.items():
        sums[server_id] = sums.get(server_id, 0) + reserved
    return sums
