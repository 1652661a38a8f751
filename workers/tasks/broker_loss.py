"""A consumer that outlives a broker which dies while a message waits for its acknowledgement."""

from __future__ import annotations

import structlog
from celery.worker.consumer import Consumer

log = structlog.get_logger(__name__)


class OutlivingConsumer(Consumer):
    """Celery's consumer, which closes a lost connection and makes a new one."""

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Let go of the connection.

        Celery 5.7 closes it twice. The second time Kombu would give messages back that were not acknowledged,
        through a transport that the first time has taken away, and the AttributeError that comes of it ends
        the worker. Nothing is lost without it: the broker gives these messages out again by itself once they
        have been out for too long, and each is a wake-up alone.
        """
        try:
            super().on_connection_error_after_connected(exc)
        except AttributeError as error:
            if error.obj is not None:
                raise
            log.warning("messages were not given back to a broker that is away", error=str(error))
