"""Servers that serve requests, which are not lent.

Packages above know which servers serve requests. Each registers a function that finds them when Django
starts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from lending.models import InferenceCluster

FindOccupied = Callable[[Collection[int]], set[int]]
_registered: list[FindOccupied] = []


def register(find: FindOccupied) -> None:
    """Add a function that returns the ids of occupied servers among the given ones."""
    _registered.append(find)


def find_occupied(server_ids: Collection[int]) -> set[int]:
    """Return the servers among these that serve requests.

    The caller holds the cluster's row, under which replicas are placed too.
    """
    return {server_id for find in _registered for server_id in find(server_ids)}


def find_occupied_of(inference_cluster: InferenceCluster) -> set[int]:
    """Return the servers of an inference cluster that serve requests now."""
    return find_occupied(inference_cluster.servers.values_list("pk", flat=True))
