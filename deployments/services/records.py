"""State changes of a deployment, and the lines that they leave in its history. Callers hold the cluster's
row."""

from __future__ import annotations

from django.utils import timezone

from deployments.choices import DEPLOYMENT_TRANSITIONS, DeploymentState
from deployments.models import Deployment, DeploymentEvent
from scheduling.services.rows.wakeups import hint

MOST_MESSAGE_CHARACTERS = 2000


class ForbiddenDeploymentTransition(Exception):
    """A state change that the table does not contain: a defect, never a user's fault."""


def hint_pages(deployment: Deployment) -> None:
    """Let pages that show the deployment reload it once the present transaction is committed."""
    hint(f"cluster:{deployment.inference_cluster.cluster_id}", kind="deployments")


def record(deployment: Deployment, kind: str, message: str, *, actor: str = "") -> DeploymentEvent:
    """Add one line to its history."""
    hint_pages(deployment)
    return DeploymentEvent.objects.create(
        deployment=deployment, kind=kind, message=message[:MOST_MESSAGE_CHARACTERS], actor=actor
    )


def move(deployment: Deployment, state: DeploymentState, message: str, *, actor: str = "") -> None:
    """Move the deployment to ``state`` and record why. Does nothing if it is there.

    Raises:
        ForbiddenDeploymentTransition: the table has no such step.
    """
    if state == deployment.state:
        return
    if state not in DEPLOYMENT_TRANSITIONS[DeploymentState(deployment.state)]:
        raise ForbiddenDeploymentTransition(f"deployment {deployment.pk}: {deployment.state} to {state}")
    deployment.state = state
    fields = ["state"]
    if state == DeploymentState.STOPPED:
        deployment.stopped_at = timezone.now()
        fields.append("stopped_at")
    deployment.save(update_fields=fields)
    record(deployment, state, message, actor=actor)


def set_reason(deployment: Deployment, reason: str) -> None:
    """Store why it is not ready, or lacks servers; empty: neither. A new reason is recorded."""
    if deployment.reason == reason:
        return
    deployment.reason = reason
    deployment.save(update_fields=["reason"])
    if reason:
        record(deployment, "reason", reason)
    else:
        hint_pages(deployment)
