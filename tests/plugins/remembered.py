"""Rows that hundreds of tests begin with: made by their factories once, then copied.

Making fifty rows one by one takes a tenth of a second, copying them a hundredth. Their times are those of the
test that made them. Tests that begin at the same simulated moment share them without limit; on the real
clock, rows about the present are made anew after some seconds.
"""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar, cast

from django.db import connection, transaction

from tests.plugins.emptying import KEPT

Made = TypeVar("Made")


class Remembered(Generic[Made]):
    """The objects that ``build`` makes in an empty database, reused by successive tests.

    ``fresh_seconds``: how long they may be reused.
    """

    def __init__(self, build: Callable[[], Made], fresh_seconds: float = inf) -> None:
        self._build = build
        self._fresh_seconds, self._old_at = fresh_seconds, inf
        #: Pickled, which takes a third of the time of deep copies.
        self._made: bytes | None = None
        #: The rows of each table, in PostgreSQL's COPY format.
        self._rows: dict[str, str] = {}

    def __call__(self) -> Made:
        """Return the objects as they were made, with their rows in the present test's database."""
        if self._made is None or time.monotonic() > self._old_at:
            return self._anew()
        with transaction.atomic(), connection.cursor() as cursor:
            for table, rows in self._rows.items():
                cursor.copy_expert(f'COPY "{table}" FROM STDIN', io.StringIO(rows))
        return cast(Made, pickle.loads(self._made))

    def _anew(self) -> Made:
        others = _rows_by_table()
        made = self._build()
        # Do not remember rows made by others.
        if not others:
            self._rows, self._made = _rows_by_table(), pickle.dumps(made)
            self._old_at = time.monotonic() + self._fresh_seconds
        return made


def _rows_by_table() -> dict[str, str]:
    """Return all rows of non-empty tables, except those of the schema."""
    found = {}
    tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    with connection.cursor() as cursor:
        for table in sorted({*tables} - {*KEPT}):
            rows = io.StringIO()
            cursor.copy_expert(f'COPY "{table}" TO STDOUT', rows)
            if rows.tell():
                found[table] = rows.getvalue()
    return found
