"""Tokens for the replicas of a deployment. A token appears in one answer only; replicas get its digest."""

from __future__ import annotations

import secrets

from django.db import transaction
from django.utils import timezone

from deployments.choices import TOLD_STATES
from deployments.models import Deployment, DeploymentToken
from deployments.services.records import record
from deployments.services.replicas import tell_servers
from projects.errors import Conflict, QuotaExceeded
from projects.models import User, token_digest
from scheduling.services.rows.records import lock_cluster

TOKEN_PREFIX = "pd_"
MOST_TOKENS = 50


@transaction.atomic
def deployment_token_issue(*, deployment: Deployment, actor: User, name: str) -> tuple[DeploymentToken, str]:
    """Make a token; return its row and the token itself.

    Raises:
        Conflict: the deployment drains or has stopped. QuotaExceeded: it has too many tokens.
    """
    lock_cluster(deployment.inference_cluster.cluster_id)
    deployment.refresh_from_db(fields=["state"])
    if deployment.is_ending():
        raise Conflict(f"Deployment {deployment.pk} is {deployment.state}; it takes no more tokens.")
    if deployment.tokens.filter(revoked_at__isnull=True).count() >= MOST_TOKENS:
        raise QuotaExceeded(f"Deployment {deployment.pk} has {MOST_TOKENS} tokens; revoke one first.")
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    row = DeploymentToken.objects.create(
        deployment=deployment, name=name, digest=token_digest(token), created_by=actor
    )
    record(deployment, "token", f"{actor.username} issued the token {name}.", actor=actor.username)
    _tell(deployment)
    return row, token


@transaction.atomic
def deployment_token_revoke(*, token: DeploymentToken, actor: User) -> None:
    """Revoke a token. Replicas refuse it once their agents have read the desired state."""
    deployment = token.deployment
    lock_cluster(deployment.inference_cluster.cluster_id)
    if DeploymentToken.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=timezone.now()):
        record(deployment, "token", f"{actor.username} revoked the token {token.name}.", actor=actor.username)
        _tell(deployment)


def _tell(deployment: Deployment) -> None:
    servers = deployment.replicas.filter(state__in=TOLD_STATES).values_list("server_id", flat=True)
    tell_servers(set(servers))
