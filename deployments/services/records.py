"""State changes of a deployment, and the lines of its history. Callers hold the cluster's row."""

from __future__ import annotations

from django.utils import timezone

from deployments.choices import DEPLOYMENT_TRANSITIONS, DeploymentState
from deployments.models import Deployment, DeploymentEvent
from scheduling.services.rows.wakeups import hint

MOST_MESSAGE_CHARACTERS = 2000


class ForbiddenDeploymentTransition(Exception):
    """A state change that the table does not contain: a defect, never a user's fault."""


def hint_pages(deployment: Deployment) -> None:
    """Make pages that show the deployment reload it once the current transaction is committed."""
    hint(f"cluster:{deployment.inference_cluster.cluster_id}", kind="deployments")


def record(deployment: Deployment, kind: str, message: str, *, actor: str = "") -> DeploymentEvent:
    """Add one line to its history."""
    hint_pages(deployment)
    return DeploymentEvent.objects.create(
        deployment=deployment, kind=kind, message=message[:MOST_MESSAGE_CHARACTERS], actor=actor
    )


def move(deployment: Deployment, state: DeploymentState, message: str, *, actor: str = "") -> None:
    """Move the deployment to ``state`` and record why. Do nothing if it is already in that state.

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
    """Store why the deployment is not ready, or lacks servers; empty: neither. Record a new reason."""
    if deployment.reason == reason:
        return
    deployment.reason = reason
    deployment.save(update_fields=["reason"])
    if reason:
        record(deployment, "reason", reason)
    else:
        hint_pages(deployment)
