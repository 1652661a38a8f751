"""`Authorization: Agent <credential>`."""

from __future__ import annotations

from django.http import HttpRequest

from cluster.models import Agent
from scheduling.selectors.scope.streams import agent_of_credential


def agent_of(request: HttpRequest) -> Agent | None:
    """The agent whose credential the request carries; None when it is unknown or revoked."""
    scheme, _, credential = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "agent" or not credential:
        return None
    return agent_of_credential(credential.strip())
