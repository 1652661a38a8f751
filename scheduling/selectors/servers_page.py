"""Servers with their agents' leases and what runs on them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cluster.choices import ServerState
from cluster.links import LinkView, links_of
from cluster.models import Server
from projects.models import User
from scheduling.selectors.occupancy import GpuCell, occupants


@dataclass(frozen=True, slots=True)
class ServerCard:
    """One server. ``silent_seconds`` is None when no agent ever enrolled."""

    server: Server
    silent_seconds: float | None
    agent_version: str
    revoked: bool
    fenced: bool
    gpus: tuple[GpuCell, ...]
    kinds: str
    emulated: bool
    busy_gpus: int
    links: tuple[LinkView, ...]
    #: It was there until a time that is over.
    gone: bool

    @property
    def without_sandbox(self) -> bool:
        return self.server.sandbox == "none"


def server_cards(user: User, now: datetime) -> list[ServerCard]:
    """All servers that are part of the cluster, by name."""
    held = occupants(user)
    servers = (
        Server.objects.exclude(state=ServerState.REMOVED)
        .select_related("agent", "cluster")
        .prefetch_related("gpus")
        .order_by("name")
    )
    cards = []
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
                gone=server.available_until is not None and server.available_until <= now,
            )
        )
    return cards
