"""Who opened a stream: a person by bearer token or session, an agent by its credential."""

from __future__ import annotations

from django.contrib.auth import get_user
from django.http import HttpRequest

from cluster.models import Agent
from dashboard.streams.database import in_database
from projects.models import User
from scheduling.selectors.streams import agent_of_credential, user_of_token


def _credential(request: HttpRequest, scheme: str) -> str | None:
    given, _, value = request.headers.get("Authorization", "").partition(" ")
    return value.strip() if given.lower() == scheme and value.strip() else None


def _find_user(request: HttpRequest) -> User | None:
    token = _credential(request, "bearer")
    if token is not None:
        return user_of_token(token)
    user = get_user(request)
    return user if user.is_authenticated and user.is_active else None


async def calling_user(request: HttpRequest) -> User | None:
    """The person, or None. A token that is given and wrong is not made good by a session."""
    return await in_database(_find_user, request)


async def calling_agent(request: HttpRequest) -> Agent | None:
    """The agent whose credential was given, or None."""
    credential = _credential(request, "agent")
    return None if credential is None else await in_database(agent_of_credential, credential)
