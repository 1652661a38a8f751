"""Empties the database after a test that committed, in milliseconds.

Django truncates every table, which takes a tenth of a second here, and then writes content types and
permissions anew, which takes another. Most tests leave rows in a dozen tables; deleting these suffices, and
what Django would write again is kept. The session is kept too: a new one takes PostgreSQL a tenth of a second
to load the tables and would have to prepare its statements again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from django.db import connections
from django.test import TransactionTestCase

#: Tables of the schema, filled by migrations and by Django after them.
KEPT = ("django_migrations", "django_content_type", "auth_permission")

# Without foreign keys and triggers a table can be emptied despite references to it.
_EMPTY = """
DO $$
DECLARE name text; filled boolean;
BEGIN
    SET LOCAL session_replication_role = replica;
    FOREACH name IN ARRAY %s LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %%I)', name) INTO filled;
        IF filled THEN
            EXECUTE format('DELETE FROM %%I', name);
        END IF;
    END LOOP;
END $$
"""


def empty_database(alias: str = "default") -> None:
    """Delete all rows but those of the schema."""
    connection = connections[alias]
    tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    with connection.cursor() as cursor:
        cursor.execute(_EMPTY, [[table for table in tables if table not in KEPT]])


@pytest.fixture(scope="session", autouse=True)
def _empties_quickly() -> Iterator[None]:
    usual = TransactionTestCase._fixture_teardown  # type: ignore[attr-defined]

    def empty(case: TransactionTestCase) -> None:
        connection = connections["default"]
        if connection.connection is not None and not connection.is_usable():
            connection.close()
        connection.ensure_connection()
        if connection.connection.get_parameter_status("is_superuser") == "on":
            empty_database()
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock_all()")
        else:  # a server given by the user; only a superuser may disable keys
            usual(case)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", empty)
        patch.setattr(TransactionTestCase, "_should_reload_connections", _is_in_a_loop)
        yield


def _is_in_a_loop(case: TransactionTestCase) -> bool:
    """Return whether an event loop runs in this thread, as beside a browser: Django then opens a separate
    connection, which nothing else would close."""
    return asyncio._get_running_loop() is not None
