"""The HTTP protocol of the control plane's servers: that of all servers, with the proxies of our settings."""

from __future__ import annotations

from django.conf import settings

from workers.serving import connections


class BoundedProtocol(connections.BoundedProtocol):
    """No thread and no view is involved until a request has arrived whole (`front.py`)."""

    # Behind proxies of one's own everybody is one peer, and these wait for whole requests themselves.
    receiving_from_a_peer = None if settings.TRUSTED_PROXIES else connections.RECEIVING_FROM_A_PEER
