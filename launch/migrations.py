"""Bringing the database's schema up to date, by one starter at a time.

An empty database gets the schema as it is after all migrations from `schema.sql`, in a second of PostgreSQL.
Applying the migrations costs ten seconds of Django. `make schema` writes the file anew; a test compares the
two.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import psycopg2

from launch.commands import ManagementCommands
from launch.errors import LaunchError
from launch.folders import PROJECT

#: Any constant: an advisory lock of this number means "a migration runs".
_LOCK_NUMBER = 7_302_114_556_910
#: Statements of the schema. The first line names the migrations that it is of.
SCHEMA = PROJECT / "launch" / "schema.sql"


def migrate(database_url: str, commands: ManagementCommands) -> None:
    """Apply the migrations. Several control planes that start at once on one database take turns.

    Where the database says that it has these very migrations nothing is started: Django would take seconds
    to find out.

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
            if not has_all(cursor):
                if not load_schema(cursor):
                    commands.run("migrate", "--no-input", "-v", "1", timeout_seconds=600.0)
                note_applied(cursor)
    finally:
        connection.close()


def load_schema(cursor: Any) -> bool:
    """Make the schema of an empty database from the file, all or nothing. Return False, and do nothing, if
    the database has tables or another schema than `public`, or the file is of other migrations."""
    no_table = "NOT EXISTS (SELECT FROM pg_tables WHERE schemaname = 'public')"
    cursor.execute(f"SELECT current_schema() = 'public' AND {no_table}")
    (is_empty,) = cursor.fetchone()
    first, _, statements = SCHEMA.read_text(encoding="utf-8").partition("\n")
    if not is_empty or first != schema_head():
        return False
    cursor.execute(statements)
    return True


def schema_head() -> str:
    """Return the first line of a current `schema.sql`."""
    (django,) = re.findall(r"^django==.*$", (PROJECT / "constraints.txt").read_text(), re.MULTILINE)
    made = hashlib.sha256(django.encode())
    for source in sorted(PROJECT.glob("*/migrations/*.py")):
        made.update(f"{source.relative_to(PROJECT)} ".encode() + source.read_bytes())
    return f"-- The schema after the migrations {made.hexdigest()[:32]}, written by `make schema`."


def note_applied(cursor: Any) -> None:
    """Write into the database that all migrations of this version are applied, as a comment, which a dump
    takes along."""
    cursor.execute("COMMENT ON TABLE django_migrations IS %s", [_state(cursor)])


def has_all(cursor: Any) -> bool:
    """Whether that was written, and no migration was undone since."""
    cursor.execute("SELECT obj_description(to_regclass('django_migrations'), 'pg_class')")
    (comment,) = cursor.fetchone()
    return comment is not None and bool(comment == _state(cursor))


def _state(cursor: Any) -> str:
    cursor.execute("SELECT count(*), max(id) FROM django_migrations")
    count, newest = cursor.fetchone()
    return f"{count} applied, the last as {newest}, of {digest()}"


def digest() -> str:
    """A digest of what the schema is made from: our migrations, those of pinned packages, which apps there
    are."""
    made = hashlib.sha256()
    sources = [PROJECT / "constraints.txt", PROJECT / "config" / "settings.py"]
    for source in sorted([*sources, *PROJECT.glob("*/migrations/*.py")]):
        made.update(f"{source.relative_to(PROJECT)} {source.stat().st_size}\n".encode())
        made.update(source.read_bytes())
    return made.hexdigest()
