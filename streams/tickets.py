"""Tickets, with which a page reads a stream of another origin without the session's cookie.

The page requests one from the web process. It is signed. It opens one stream, from one origin, within half a
minute; the stream then stays open while the session lasts. It permits nothing else, so an address with a
ticket in a log does no harm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from django.core import signing
from django.http import HttpRequest

from projects.models import token_digest

#: A page requests a ticket just before it opens the stream.
VALID_SECONDS = 30
#: Streams that a page can follow, by their path below /stream/.
STREAM = re.compile(r"cluster|jobs/(?P<job_id>[a-z0-9]{1,16})/(?:events|logs)")
_SALT = "streams.ticket"


@dataclass(frozen=True, slots=True)
class Ticket:
    """Contents of a ticket."""

    #: Digest of the session's key (:func:`projects.sessions.user_of_session`).
    session: str
    #: Scheme, host and port of the page.
    origin: str
    stream: str


def issue(request: HttpRequest, stream: str) -> str:
    """Return a ticket with which the requesting page can open ``stream``."""
    origin = f"{request.scheme}://{request.get_host()}"
    session = token_digest(str(request.session.session_key))
    return signing.dumps({"session": session, "origin": origin, "stream": stream}, salt=_SALT)


def read(text: str, stream: str) -> Ticket | None:
    """Return the ticket's contents; None unless it is ours, fresh and for this stream."""
    try:
        content: Any = signing.loads(text, salt=_SALT, max_age=VALID_SECONDS)
    except signing.BadSignature:
        return None
    ticket = Ticket(**content)
    return ticket if ticket.stream == stream else None
