"""`Authorization: Agent <credential>`."""

from __future__ import annotations

from django.http import HttpRequest

from cluster.models import Agent
from projects.models import token_digest


def agent_of(request: HttpRequest) -> Agent | None:
    """The agent whose credential the request carries; None when it is unknown or revoked."""
    scheme, _, credential = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "agent" or not credential:
        return None
    return (
        Agent.objects.select_related("server")
        .filter(credential_digest=token_digest(credential.strip()), revoked_at__isnull=True)
        .first()
    )
