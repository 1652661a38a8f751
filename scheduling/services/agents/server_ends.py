"""Servers that leave at a known time, as set by an operator."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from cluster.models import Server
from projects.errors import InvalidRequest
from projects.models import User
from scheduling.services.agents.drain import PromisesWouldBreak, promises_given_up, record_forced
from scheduling.services.rows.records import lock_cluster, planning_fact_changed
from scheduling.services.rows.wakeups import hint, wake
from scheduling.services.snapshots.servers_of_pool import ends_at


def server_set_end(
    *, server: Server, actor: User, available_until: datetime | None, force: bool = False
) -> Server:
    """Set when the server leaves; None: never.

    From now on no promise depends on a server with an end, and its work is moved away in time.

    Raises:
        InvalidRequest: the time has passed.
        PromisesWouldBreak: promises depend on the server that no other can keep, and ``force`` is not set.
    """
    if available_until is not None and available_until <= timezone.now():
        raise InvalidRequest(
            "available_until is in the past.",
            errors={"available_until": ["Give a future time, or null if the server stays."]},
        )
    broken = []
    if available_until is not None:
        end = ends_at(available_until, server.cluster)
        broken = promises_given_up(server, lambda known: replace(known, ends_at=end), force=force)
    if broken and not force:
        raise PromisesWouldBreak(f"That {server.name} leaves", broken)
    with transaction.atomic():
        cluster = lock_cluster(server.cluster_id)
        server.available_until = available_until
        server.save(update_fields=["available_until"])
        record_forced(broken, "end_forced", f"lets server {server.name} leave", actor)
        planning_fact_changed(cluster)
        hint(f"cluster:{cluster.pk}", kind="servers")
        wake("plan", trigger=f"the end of server {server.name} is known")
    return server
