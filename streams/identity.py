"""The caller of a stream: a person by bearer token or a page's ticket, an agent by its credential.

Cookies are not accepted: browsers send them to every port of a host, also from pages of other ports.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest

from cluster.models import Agent
from projects.models import User
from projects.sessions import user_of_session
from scheduling.selectors.scope.streams import agent_of_credential, user_of_token
from streams import tickets
from streams.database import in_database


def _credential(request: HttpRequest, scheme: str) -> str | None:
    given, _, value = request.headers.get("Authorization", "").partition(" ")
    return value.strip() if given.lower() == scheme and value.strip() else None


@dataclass(frozen=True, slots=True)
class Caller:
    """A person, and the token or ticket used, so that it can be rechecked while the stream is open."""

    user: User
    token: str = ""
    ticket: tickets.Ticket | None = None

    @property
    def door_channels(self) -> tuple[str, ...]:
        """Channels that announce that the session has ended or the account has changed."""
        account = f"punctual:session:user:{self.user.pk}"
        return (account,) if self.ticket is None else (account, f"punctual:session:{self.ticket.session}")


def _find(request: HttpRequest) -> Caller | None:
    # A valid ticket does not make up for a wrong token.
    if "Authorization" in request.headers:
        token = _credential(request, "bearer")
        user = None if token is None else user_of_token(token)
        return None if user is None or token is None else Caller(user, token=token)
    text = request.GET.get("ticket")
    ticket = tickets.read(text, request.path.removeprefix("/stream/").rstrip("/")) if text else None
    if ticket is None or request.headers.get("Origin", ticket.origin) != ticket.origin:
        return None
    user = user_of_session(ticket.session)
    return None if user is None else Caller(user, ticket=ticket)


async def caller_of(request: HttpRequest) -> Caller | None:
    """Return the person who opens a stream, or None."""
    return await in_database(_find, request)


async def still_there(caller: Caller) -> User | None:
    """Return the person while token or session are valid. A ticket's validity of half a minute applies only
    to opening."""
    if caller.ticket is not None:
        return await in_database(user_of_session, caller.ticket.session)
    return await in_database(user_of_token, caller.token)


async def calling_agent(request: HttpRequest) -> Agent | None:
    """Return the agent of the given credential, or None."""
    credential = _credential(request, "agent")
    return None if credential is None else await in_database(agent_of_credential, credential)
