"""gunicorn's workers for the web process and the agent API."""

from __future__ import annotations

import os
import signal
from typing import Any

from uvicorn_worker import UvicornWorker

#: What all of the control plane's servers have in common. Headers that tell who called are read where it is
#: known which proxies to believe (`projects/client_address.py`).
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
#: Between two signs of life to gunicorn's master.
_NOTIFY_SECONDS = 1


class FrontWorker(UvicornWorker):
    """Serves a WSGI application behind the front. Four threads for callers with a credential, one for the
    others."""

    CONFIG_KWARGS = {**SERVER_OPTIONS, "timeout_notify": _NOTIFY_SECONDS}
    #: gunicorn's name for the application.
    wsgi: Any

    async def _serve(self) -> None:
        # Not above: the master imports this module before the application has chosen its settings.
        from config.serving.front import Front

        self.wsgi = Front(self.wsgi, threads=4, anonymous_threads=1)
        await super()._serve()

    async def callback_notify(self) -> None:
        """Tell the master that this worker lives; end with a master that was killed, like gunicorn's own
        workers: it would keep the port, and a new platform could not start."""
        await super().callback_notify()
        if os.getppid() != self.ppid:
            signal.raise_signal(signal.SIGTERM)
