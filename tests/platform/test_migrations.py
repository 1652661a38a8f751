"""Whether a start must apply migrations is read from the database, without Django."""

from __future__ import annotations

import pytest
from django.db import connection

from launch import migrations

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
