"""Django's PostgreSQL backend, which asks a kept connection whether it still works without a statement.

Django sends `SELECT 1` before the first statement of each request and task that finds a kept connection: a
tenth of an idle platform's statements. A server that ends or drops an idle connection says so on its socket,
and sends nothing otherwise.
"""

from __future__ import annotations

import select

from django.db.backends.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection to PostgreSQL."""

    def is_usable(self) -> bool:
        """Return whether the connection works. A statement is sent only if the server has said something, or
        the last one failed."""
        if self.connection is not None and not self.connection.closed and not self.errors_occurred:
            poll = select.poll()
            poll.register(self.connection.fileno(), select.POLLIN)
            if not poll.poll(0):
                return True
        return bool(super().is_usable())
