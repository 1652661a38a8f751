"""What exists: clusters, servers, GPUs, agents, enrolment and the links between servers."""

from cluster.models.links import ServerLink
from cluster.models.machines import Agent, Cluster, EnrolmentToken, Gpu, Server, UtilisationSample

__all__ = ["Agent", "Cluster", "EnrolmentToken", "Gpu", "Server", "ServerLink", "UtilisationSample"]
