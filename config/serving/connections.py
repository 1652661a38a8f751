"""The HTTP protocol class of the control plane's servers, with the proxies of our settings."""

from __future__ import annotations

from django.conf import settings

from workers.serving import connections


class BoundedProtocol(connections.BoundedProtocol):
    """A request occupies no thread and no view until it has arrived completely (`front.py`)."""

    # Behind our own proxies all callers share one peer address, and the proxies themselves buffer whole
    # requests.
    receiving_from_a_peer = None if settings.TRUSTED_PROXIES else connections.RECEIVING_FROM_A_PEER
