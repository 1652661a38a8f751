"""gunicorn worker class of the web process and the agent API."""

from __future__ import annotations

import os
import signal
from typing import Any

from uvicorn_worker import UvicornWorker

#: Options of all servers of the control plane. Forwarding headers are read in `projects/client_address.py`,
#: which has the list of trusted proxies.
SERVER_OPTIONS: dict[str, Any] = {
    "http": "config.serving.connections:BoundedProtocol",
    "ws": "none",
    "lifespan": "off",
    "access_log": False,
    "server_header": False,
    "proxy_headers": False,
    "timeout_keep_alive": 15,
    "timeout_graceful_shutdown": 2,
}
#: Seconds between two heartbeats to gunicorn's master.
_NOTIFY_SECONDS = 1


class FrontWorker(UvicornWorker):
    """Serves a WSGI application behind the front: four threads for callers with a credential, one for
    others."""

    CONFIG_KWARGS = {**SERVER_OPTIONS, "timeout_notify": _NOTIFY_SECONDS}
    #: gunicorn's name for the application.
    wsgi: Any

    async def _serve(self) -> None:
        # Imported here: the master imports this module before the application has selected its settings.
        from config.serving.front import Front

        self.wsgi = Front(self.wsgi, threads=4, anonymous_threads=1)
        await super()._serve()

    async def callback_notify(self) -> None:
        """Send a heartbeat to the master, and exit when the master was killed, as gunicorn's own workers do.
        Otherwise this worker would keep the port, and a new platform could not start."""
        await super().callback_notify()
        if os.getppid() != self.ppid:
            signal.raise_signal(signal.SIGTERM)
