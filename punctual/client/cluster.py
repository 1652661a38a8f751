"""The cluster: servers, GPUs and agents, and their management by operators."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from punctual.client.durations import utc
from punctual.client.models import Server
from punctual.client.reading import read, unreadable
from punctual.client.transport import Transport
from punctual.errors import NotFoundError


class Cluster:
    """Inspect the cluster; drain servers and enrol agents as its operator."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def summary(self) -> dict[str, Any]:
        """Return numbers of GPUs by use, jobs by state, and connected agents."""
        document = self._transport.get("cluster/")
        if not isinstance(document, dict):
            raise unreadable("the cluster")
        return document

    def servers(self) -> Sequence[Server]:
        """Return every server with its GPUs."""
        servers = [read(Server, item) for item in self._transport.pages("servers/", {"page_size": 200})]
        return sorted(servers, key=lambda server: server.name)

    def server(self, name_or_id: str) -> Server:
        """Return one server by name or id.

        Raises:
            NotFoundError: there is none.
        """
        for server in self.servers():
            if name_or_id in (server.name, str(server.id)):
                return server
        raise NotFoundError(f"there is no server “{name_or_id}”", status=404, hint="see `punctual servers`")

    def drain(self, server: Server, *, force: bool = False, reason: str = "") -> dict[str, Any]:
        """Move a server's work away and plan nothing new there.

        Raises:
            ConflictError: promises would break; `extra["broken_promises"]` lists them. `force` breaks them.
        """
        return self._post(f"servers/{server.id}/drain/", {"force": force, "reason": reason})

    def undrain(self, server: Server) -> dict[str, Any]:
        """Use a drained server again."""
        return self._post(f"servers/{server.id}/undrain/", {})

    def set_end(
        self, server: Server, available_until: datetime | None, *, force: bool = False
    ) -> dict[str, Any]:
        """Set until when a server is available; None for ever.

        Raises:
            ConflictError: promises would break; `extra["broken_promises"]` lists them. `force` breaks them.
        """
        until = None if available_until is None else utc(available_until).isoformat()
        body = {"available_until": until, "force": force}
        answer = self._transport.send("PATCH", f"servers/{server.id}/", body)
        return answer if isinstance(answer, dict) else {}

    def set_standby(
        self,
        servers: int | None = None,
        *,
        failures_per_server_day: float | None = None,
        replacement_seconds: float | None = None,
    ) -> dict[str, Any]:
        """Set the number of standby servers per kind, and the input of the advised number; None keeps a
        value.

        Returns the summary, whose `standby` lists the ready ones and any problems."""
        given = {
            "standby_servers": servers,
            "failures_per_server_day": failures_per_server_day,
            "replacement_seconds": replacement_seconds,
        }
        body = {name: value for name, value in given.items() if value is not None}
        answer = self._transport.send("PATCH", "cluster/", body)
        return answer if isinstance(answer, dict) else {}

    def agents(self) -> Sequence[dict[str, Any]]:
        """Return the node agents with the age of their last report."""
        return list(self._transport.pages("agents/", {"page_size": 200}))

    def revoke_agent(self, agent_id: str) -> dict[str, Any]:
        """Revoke an agent's credential; its workers stop when their lease ends."""
        return self._post(f"agents/{quote(agent_id, safe='')}/revoke/", {})

    def create_enrolment_token(self, *, server_name: str = "", inference_cluster: str = "") -> dict[str, Any]:
        """Return a token that lets one agent enrol once; its server belongs to training, or to the given
        inference cluster."""
        body = {"server_name": server_name}
        if inference_cluster:
            body["inference_cluster"] = inference_cluster
        return self._post("enrolment-tokens/", body, repeatable=False)

    def _post(self, path: str, body: dict[str, Any], *, repeatable: bool = True) -> dict[str, Any]:
        answer = self._transport.send("POST", path, body, repeatable=repeatable)
        return answer if isinstance(answer, dict) else {}
