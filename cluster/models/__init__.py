"""Clusters, servers, GPUs, agents, enrolment and the links between servers."""

from cluster.models.cluster import Cluster
from cluster.models.links import ServerLink
from cluster.models.machines import Agent, EnrolmentToken, Gpu, Server, UtilisationSample
from cluster.models.outages import Outage

__all__ = ["Agent", "Cluster", "EnrolmentToken", "Gpu", "Outage", "Server", "ServerLink", "UtilisationSample"]
