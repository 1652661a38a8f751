"""Tickets: how a page may read a stream of another origin without the session's cookie.

The page asks the web process for one. It is signed, good for half a minute to open one stream, from one
origin, and for as long as the session lasts with which it was asked for. It opens nothing else, so that it
does no harm in a log of addresses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from django.core import signing
from django.http import HttpRequest

from projects.models import token_digest

#: A page asks for a ticket just before it opens the stream.
VALID_SECONDS = 30
#: What a page can follow, as its address below /stream/.
STREAM = re.compile(r"cluster|jobs/(?P<job_id>[a-z0-9]{1,16})/(?:events|logs)")
_SALT = "streams.ticket"


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a ticket says."""

    #: Digest of the session's key (:func:`projects.sessions.user_of_session`).
    session: str
    #: Scheme, host and port of the page.
    origin: str
    stream: str


def issue(request: HttpRequest, stream: str) -> str:
    """A ticket for the page that asks, to open ``stream``."""
    origin = f"{request.scheme}://{request.get_host()}"
    session = token_digest(str(request.session.session_key))
    return signing.dumps({"session": session, "origin": origin, "stream": stream}, salt=_SALT)


def read(text: str, stream: str) -> Ticket | None:
    """What the ticket says; None unless it is ours, fresh and for this stream."""
    try:
        content: Any = signing.loads(text, salt=_SALT, max_age=VALID_SECONDS)
    except signing.BadSignature:
        return None
    ticket = Ticket(**content)
    return ticket if ticket.stream == stream else None
