"""A database of an earlier release keeps what its rows say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from tests.lending.test_migrations import migrate

pytestmark = pytest.mark.django_db(transaction=True)

BEFORE: list[tuple[str, str | None]] = [("scheduling", "0012_why_generations_end")]
AFTER: list[tuple[str, str | None]] = [("scheduling", "0013_environments_are_long_tasks")]


@pytest.fixture
def before() -> Iterator[Any]:
    yield migrate(BEFORE)
    migrate(MigrationExecutor(connection).loader.graph.leaf_nodes())


@pytest.mark.slow
def test_built_environments_stay_built_and_builds_under_way_begin_again(before: Any) -> None:
    """As do those whose result still had its lease's token, and none that failed begins again."""
    rows = {"ready": "done", "failed": "failed", "pending": "queued", "building": "queued"}
    now = timezone.now()
    for state in rows:
        before.get_model("scheduling", "Environment").objects.create(
            digest=state, state=state, requirements="x", lease_token="kept", lease_owner="somebody",
            lease_expires_at=now if state == "building" else None,
            finished_at=now if state == "failed" else None,
        )  # fmt: skip
    after = migrate(AFTER)
    found = after.get_model("scheduling", "Environment").objects
    assert dict(found.values_list("digest", "state")) == rows
    assert found.get(digest="failed").error
    migrate(BEFORE)
    states = dict(before.get_model("scheduling", "Environment").objects.values_list("digest", "state"))
    assert states == {"ready": "ready", "failed": "failed", "pending": "pending", "building": "pending"}
