"""Work on servers other than jobs: another app registers it, and agents run it like generations.

This app does not know what the work is. Its keys contain a dash, which ids of jobs never do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from cluster.models import Agent, Server
from punctual.protocol.reports import CheckedItem, RefusedItem


class OtherWork(Protocol):
    """One kind of other work."""

    def desired(self, server: Server) -> Sequence[Mapping[str, Any]]:
        """Return the entries of `GET desired` for one server (docs/protocols.md 2.3)."""

    def may_run_on(self, server: Server) -> bool:
        """Return whether the server can have such work. Makes no query."""

    def take_workers(
        self,
        agent: Agent,
        items: Sequence[CheckedItem],
        *,
        complete: bool,
        desired_version: int,
        now: datetime,
    ) -> list[RefusedItem]:
        """Store the reported workers of such work. Return the refused items.

        ``complete``: no worker is missing from the report. ``desired_version``: the newest that the agent has
        applied.
        """

    def take_event(self, agent: Agent, event: Mapping[str, Any], happened_at: datetime) -> str | None:
        """Apply one event. Return why it is refused, or None."""

    def take_counts(self, agent: Agent, items: Sequence[CheckedItem], now: datetime) -> list[RefusedItem]:
        """Store the part `serving` of a report. Return the refused items."""

    def take_logs(self, agent: Agent, items: Sequence[CheckedItem]) -> list[RefusedItem]:
        """Store pieces of workers' logs. Return the refused items."""

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
    """Return all registered kinds of work."""
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
