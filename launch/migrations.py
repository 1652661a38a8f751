"""Bringing the database's schema up to date, by one starter at a time."""

from __future__ import annotations

import psycopg2

from launch.commands import ManagementCommands
from launch.errors import LaunchError

#: Any constant: an advisory lock of this number means "somebody migrates".
_LOCK_NUMBER = 7_302_114_556_910


def migrate(database_url: str, commands: ManagementCommands) -> None:
    """Apply the migrations. Several control planes that start at once on one database take turns.

    Raises LaunchError if the database does not answer or a migration fails.
    """
    try:
        connection = psycopg2.connect(database_url, connect_timeout=10)
    except psycopg2.OperationalError as error:
        raise LaunchError(f"the database does not answer: {str(error).strip()} (see DATABASE_URL)") from error
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            # A session's lock: it ends with this connection, whatever happens.
            cursor.execute("SELECT pg_advisory_lock(%s)", [_LOCK_NUMBER])
        commands.run("migrate", "--no-input", "-v", "1", timeout_seconds=600.0)
    finally:
        connection.close()
