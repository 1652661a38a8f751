"""Serving servers. Every process of the platform imports this, so it must not import the decision core."""

from __future__ import annotations

from collections.abc import Collection

from deployments.choices import ReplicaState
from deployments.models import Replica


def serving_servers(server_ids: Collection[int]) -> set[int]:
    """Return the servers among these that have a replica which is not gone."""
    present = Replica.objects.filter(server__in=server_ids).exclude(state=ReplicaState.GONE)
    return set(present.values_list("server_id", flat=True))
