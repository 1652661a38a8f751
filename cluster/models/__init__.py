"""What exists: clusters, servers, GPUs, agents and enrolment."""

from cluster.models.machines import Agent, Cluster, EnrolmentToken, Gpu, Server, UtilisationSample

__all__ = ["Agent", "Cluster", "EnrolmentToken", "Gpu", "Server", "UtilisationSample"]
