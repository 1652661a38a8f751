"""The link that a server's agent is to measure now (docs/protocols.md 2.9)."""

from __future__ import annotations

from typing import Any

from django.db.models import Q

from cluster.models import Server, ServerLink
from projects.prepared import PreparedRows

_PROBE = PreparedRows(
    lambda server_id: (
        ServerLink.objects.filter(Q(first=server_id) | Q(second=server_id), asked_at__isnull=False)
        .select_related("first", "second")
        .order_by("pk")[:1]
    )
)


def link_probe_of(server: Server) -> dict[str, Any] | None:
    """Return the measurement in which the server takes part, in the agent's form, or None."""
    link = _PROBE.first(server.pk)
    if link is None:
        return None
    calls = link.first_id == server.pk
    other = link.second if calls else link.first
    return {
        "link": link.pk,
        "number": link.number,
        "role": "call" if calls else "answer",
        "here": server.name,
        "server": other.name,
        "address": other.address,
        "port": link.port,
        "same_rack": link.first.rack == link.second.rack,
        "secret": link.secret,
    }
