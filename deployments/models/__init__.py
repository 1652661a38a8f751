"""Deployments with their generations, replicas, tokens and history."""

from deployments.models.deployments import Deployment, DeploymentEvent, DeploymentToken, Rollout
from deployments.models.replicas import DeploymentSample, Replica

__all__ = [
    "Deployment",
    "DeploymentEvent",
    "DeploymentSample",
    "DeploymentToken",
    "Replica",
    "Rollout",
]
