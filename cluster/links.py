"""The emulated links of a server for pages and the API."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.models import Server

#: Incoming traffic has the same rate as outgoing traffic.
_RATE_OF = {"network_in": "network"}
LABELS = {
    "within_server": "within the server",
    "network": "to other servers",
    "network_in": "from other servers",
    "spine": "through the spine",
    "host_to_device": "host to device",
    "disk": "disk",
}


@dataclass(frozen=True)
class LinkView:
    """One emulated link: its rate, and the traffic between the agent's last two reports."""

    name: str
    bytes_per_second: float
    latency_seconds: float
    load_bytes_per_second: dict[str, float]
    emulated: bool = True

    @property
    def label(self) -> str:
        """The link's name in words."""
        return LABELS[self.name]

    @property
    def load(self) -> float:
        """The used fraction of its rate."""
        return sum(self.load_bytes_per_second.values()) / self.bytes_per_second


def links_of(server: Server) -> list[LinkView]:
    """Return all emulated links of a server; none if nothing is emulated."""
    if not server.links:
        return []
    agent = getattr(server, "agent", None)
    load = {} if agent is None else agent.link_load
    views = []
    for name in LABELS:
        rate = server.links[_RATE_OF.get(name, name)]
        views.append(LinkView(name, rate["bytes_per_second"], rate["latency_seconds"], load.get(name, {})))
    return views
