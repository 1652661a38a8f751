"""Work of servers other than jobs: a room above registers it, and agents carry it out as they do generations.

This room does not know what the work is. The key of such work contains a dash; ids of jobs never do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from cluster.models import Agent, Server
from punctual.protocol.reports import CheckedItem, RefusedItem


class OtherWork(Protocol):
    """One kind of such work."""

    def desired(self, server: Server) -> Sequence[Mapping[str, Any]]:
        """Return the entries of `GET desired` for one server (docs/protocols.md 2.3)."""

    def may_run_on(self, server: Server) -> bool:
        """Return whether the server can have any. Makes no query."""

    def take_workers(
        self,
        agent: Agent,
        items: Sequence[CheckedItem],
        *,
        complete: bool,
        desired_version: int,
        now: datetime,
    ) -> list[RefusedItem]:
        """Take the reported workers of such work; return what is refused.

        ``complete``: no worker is missing from the report. ``desired_version``: the newest that the agent
        obeyed.
        """

    def take_event(self, agent: Agent, event: Mapping[str, Any], happened_at: datetime) -> str | None:
        """Take one event; return why it is refused, or None."""

    def take_counts(self, agent: Agent, items: Sequence[CheckedItem], now: datetime) -> list[RefusedItem]:
        """Take the part `serving` of a report; return what is refused."""

    def take_logs(self, agent: Agent, items: Sequence[CheckedItem]) -> list[RefusedItem]:
        """Take pieces of workers' logs; return what is refused."""

    def needs_bundle(self, server_id: int, digest: str) -> bool:
        """Return whether work on that server runs this function."""

    def needs_environment(self, server_id: int, digest: str) -> bool:
        """Return whether work on that server needs these requirements."""

    def server_lost(self, server_id: int, now: datetime) -> None:
        """Give up the work of a fenced server. The caller holds the cluster's row."""


_registered: list[OtherWork] = []


def register(work: OtherWork) -> None:
    """Add a kind of work. Called once, when Django starts."""
    _registered.append(work)


def registered() -> Sequence[OtherWork]:
    """Return all kinds of such work."""
    return tuple(_registered)


def is_other_key(key: str) -> bool:
    """Return whether a key that an agent reports is not a job's id."""
    return "-" in key


def of_jobs(items: Sequence[CheckedItem]) -> list[CheckedItem]:
    """Return the items of a report that belong to jobs."""
    return [item for item in items if not is_other_key(item.value["job"])]


def of_other_work(items: Sequence[CheckedItem]) -> list[CheckedItem]:
    """Return the items of a report that do not belong to jobs."""
    return [item for item in items if is_other_key(item.value["job"])]
