"""Operators' changes of inference clusters, and the credential of their schedulers."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from lending.choices import ScheduledBy
from lending.models import InferenceCluster
from lending.services.transitions import note_event
from projects.errors import Conflict
from projects.models import SERVICE_ACCOUNTS, User, token_digest
from scheduling.services.agents.enrolment import cluster_get_or_create, enrolment_token_create
from scheduling.services.rows.records import lock_cluster
from scheduling.services.rows.wakeups import hint, wake

#: Distinguishes a scheduler's credential from a person's token at a glance.
CREDENTIAL_PREFIX = "ps_"


def inference_cluster_create(*, name: str, actor: User, settings: Mapping[str, Any]) -> InferenceCluster:
    """Make an inference cluster beside the training cluster. Its servers join when their agents enrol.

    Raises:
        Conflict: there is one of that name.
    """
    cluster = cluster_get_or_create()
    try:
        with transaction.atomic():
            account, _ = User.objects.get_or_create(
                username=f"{SERVICE_ACCOUNTS}{name}", defaults={"is_active": False}
            )
            made = InferenceCluster.objects.create(name=name, cluster=cluster, account=account, **settings)
            note_event(made, "created", f"{actor.username} made the inference cluster.", timezone.now())
    except IntegrityError as error:
        raise Conflict(f"There is an inference cluster called {name} already.") from error
    return made


@transaction.atomic
def inference_cluster_change(
    *, inference_cluster: InferenceCluster, actor: User, changes: Mapping[str, Any]
) -> InferenceCluster:
    """Change an operator's settings. Switching lending off refuses pending offers; servers on loan stay."""
    lock_cluster(inference_cluster.cluster_id)
    inference_cluster = InferenceCluster.objects.get(pk=inference_cluster.pk)
    for name, value in changes.items():
        setattr(inference_cluster, name, value)
    inference_cluster.save(update_fields=list(changes))
    words = ", ".join(f"{name} is {value}" for name, value in changes.items())
    note_event(inference_cluster, "settings", f"{actor.username}: {words}.", timezone.now(), **changes)
    hint(f"cluster:{inference_cluster.cluster_id}", kind="servers")
    wake("orchestrate")
    return inference_cluster


def check_external_scheduler(inference_cluster: InferenceCluster) -> None:
    """Check that the scheduler that reports usage and issues orders is a client of the REST API.

    Raises:
        Conflict: the cluster's deployments schedule it.
    """
    if inference_cluster.scheduled_by == ScheduledBy.DEPLOYMENTS:
        raise Conflict(
            f"{inference_cluster.name} is scheduled by its deployments, which report its usage and order "
            "loans and returns. An operator sets scheduled_by to “scheduler” for a scheduler of its own."
        )


def server_token_create(
    *, inference_cluster: InferenceCluster, created_by: User | None, server_name: str = ""
) -> str:
    """Return a token with which one agent enrols its server in the inference cluster, once. Only its digest
    is stored."""
    return enrolment_token_create(
        created_by=created_by,
        server_name=server_name,
        cluster=inference_cluster.cluster,
        inference_cluster_id=inference_cluster.pk,
    )


def credential_issue(*, inference_cluster: InferenceCluster) -> str:
    """Return a new credential of the scheduler; the old one stops working at once. Only its digest is
    stored."""
    credential = CREDENTIAL_PREFIX + secrets.token_urlsafe(32)
    InferenceCluster.objects.filter(pk=inference_cluster.pk).update(
        credential_digest=token_digest(credential), credential_issued_at=timezone.now()
    )
    return credential
