"""The only code that moves servers between home and loan and changes their whitelist (Lyra section 3.3).

Callers hold the cluster's lock.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from django.db.models import Count

from cluster.choices import LENDING_TRANSITIONS, WHITELIST_OF, LendingState
from cluster.models import Server
from lending.models import InferenceCluster, LendingEvent


class ForbiddenLendingTransition(Exception):
    """A change that the state machine does not allow: a defect, never a user's fault."""


def move_servers(servers: Collection[Server], state: LendingState, now: datetime) -> None:
    """Put all of the servers into ``state`` and on its whitelist, in one statement.

    Raises:
        ForbiddenLendingTransition: the database holds one of them in a state from which ``state`` cannot be
            reached. The caller must roll back.
    """
    before = [known for known, following in LENDING_TRANSITIONS.items() if state in following]
    moved = Server.objects.filter(pk__in=[server.pk for server in servers], lending_state__in=before).update(
        lending_state=state, whitelist=WHITELIST_OF[state], lending_changed_at=now
    )
    if moved != len(servers):
        names = ", ".join(server.name for server in servers)
        raise ForbiddenLendingTransition(f"{names}: not all of them can become {state}")
    for server in servers:
        server.lending_state, server.whitelist, server.lending_changed_at = state, WHITELIST_OF[state], now


def note_event(
    inference_cluster: InferenceCluster, kind: str, message: str, now: datetime, **detail: Any
) -> LendingEvent:
    """Add one line to the history, with the current server counts."""
    counts = dict(
        inference_cluster.servers.order_by().values_list("lending_state").annotate(count=Count("pk"))
    )
    return LendingEvent.objects.create(
        inference_cluster=inference_cluster,
        happened_at=now,
        kind=kind,
        message=message,
        detail=detail,
        at_home=counts.get(LendingState.INFERENCE, 0),
        on_loan=counts.get(LendingState.ON_LOAN, 0),
        reclaiming=counts.get(LendingState.RECLAIMING, 0),
    )
