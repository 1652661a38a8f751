"""Whether a start must apply migrations is read from the database, without Django."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg2
import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from psycopg2.extensions import make_dsn

from launch import migrations
from tests.schema import dump

pytestmark = pytest.mark.django_db


def test_a_start_migrates_unless_the_database_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with connection.cursor() as cursor:
        cursor.execute("COMMENT ON TABLE django_migrations IS NULL")
        assert not migrations.has_all(cursor), "another version made it"
        migrations.note_applied(cursor)
        assert migrations.has_all(cursor)
        with monkeypatch.context() as patch:
            patch.setattr(migrations, "digest", lambda: "with one more")
            assert not migrations.has_all(cursor)
        cursor.execute("DELETE FROM django_migrations WHERE id = (SELECT max(id) FROM django_migrations)")
        assert not migrations.has_all(cursor), "somebody undid one"


def test_an_empty_database_is_migrated() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_migrations RENAME TO elsewhere")
        assert not migrations.has_all(cursor)


@pytest.fixture
def empty() -> Iterator[str]:
    """Return the address of another, empty database."""
    connection.ensure_connection()
    dsn = connection.connection.dsn
    with closing(psycopg2.connect(dsn)) as other, other.cursor() as cursor:
        other.autocommit = True
        cursor.execute("CREATE DATABASE schema_from_file TEMPLATE template0")
        yield make_dsn(dsn, dbname="schema_from_file")
        cursor.execute("DROP DATABASE schema_from_file WITH (FORCE)")


def test_the_file_makes_the_schema_that_the_migrations_make(empty: str) -> None:
    with closing(psycopg2.connect(empty)) as other, other.cursor() as cursor:
        other.autocommit = True
        assert migrations.load_schema(cursor), "of other migrations: run `make schema`"
        migrations.note_applied(cursor)
        assert migrations.has_all(cursor)
        assert not migrations.load_schema(cursor), "it has tables"
        cursor.execute("SELECT app, name FROM django_migrations")
        assert set(cursor.fetchall()) == set(MigrationRecorder(connection).applied_migrations())
        cursor.execute("SELECT codename FROM auth_permission")
        assert sorted(cursor.fetchall()) == sorted(Permission.objects.values_list("codename"))
    # A loaded check constraint is written in other words, so the file itself is compared.
    rows = ("INSERT INTO", "\t(", "SELECT pg_catalog.setval")
    kept = [line for line in migrations.SCHEMA.read_text().splitlines()[1:] if not line.startswith(rows)]
    migrated = dump(connection.connection.dsn, "--schema-only").splitlines()
    assert kept == [line for line in migrated if not line.startswith("COMMENT ON TABLE")]


def test_a_schema_of_other_migrations_is_not_loaded(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "schema_head", lambda: "-- with one more")
    with closing(psycopg2.connect(empty)) as other, other.cursor() as cursor:
        assert not migrations.load_schema(cursor)
