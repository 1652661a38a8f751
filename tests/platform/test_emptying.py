"""Between two tests that commit, the database is reset."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission
from django.db import connection

from scheduling.models import Job, JobEvent
from tests.factories import JobFactory
from tests.plugins.emptying import KEPT, empty_database


@pytest.mark.django_db(transaction=True)
def test_emptying_leaves_only_rows_that_belong_to_the_schema() -> None:
    job = JobFactory.create()
    JobEvent.objects.create(job=job, kind="test", message="")
    assert Job.objects.exists()
    permissions = Permission.objects.count()
    empty_database()
    tables = set(connection.introspection.django_table_names(only_existing=True)) - set(KEPT)
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f'SELECT EXISTS (SELECT FROM "{table}")')
            assert cursor.fetchone() == (False,), table
    assert len(tables) > 40
    assert Permission.objects.count() == permissions > 0
