"""Queries for servers, GPUs and agents. Every logged-in user may read them."""

from __future__ import annotations

from django.db.models import QuerySet

from cluster.models import Agent, Cluster, Gpu, Server
from projects.errors import NotFound


def cluster_shown() -> Cluster | None:
    """Return the cluster that jobs are submitted to, or None before one is set up."""
    return Cluster.objects.order_by("pk").first()


def servers_known() -> QuerySet[Server]:
    """Return servers that are part of the cluster, with agents and GPUs prefetched."""
    return Server.objects.known().select_related("agent").prefetch_related("gpus")


def server_get(server_id: int) -> Server:
    """Return one server.

    Raises:
        NotFound: there is none, or it was removed.
    """
    server = servers_known().select_related("agent", "cluster").filter(pk=server_id).first()
    if server is None:
        raise NotFound(f"There is no server {server_id}.")
    return server


def gpus_of(server: Server) -> list[Gpu]:
    """Return the GPUs of a server, without a query if they are prefetched."""
    return list(server.gpus.all())


def gpus_known() -> QuerySet[Gpu]:
    return Gpu.objects.known().select_related("server")


def agents_known() -> QuerySet[Agent]:
    return Agent.objects.select_related("server")


def agent_get(agent_id: int) -> Agent:
    """Return one agent.

    Raises:
        NotFound: there is none.
    """
    agent = agents_known().filter(pk=agent_id).first()
    if agent is None:
        raise NotFound(f"There is no agent {agent_id}.")
    return agent
