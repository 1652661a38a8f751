"""Saves many rows at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from django.db import connection
from django.db.models import Model

MOST_ROWS = 1_000
"""Rows per statement."""


def update_rows(rows: Sequence[Model], fields: Sequence[str]) -> None:
    """Save these fields of rows of one model, one statement per thousand rows.

    `bulk_update` writes a condition for each row and field, which takes ten times as long to build as to run.
    As with `bulk_update`, no signals are sent, and a row that no longer exists is not created.
    """
    if rows:
        model = type(rows[0])
        names = [cast("Any", model._meta.get_field(name)).attname for name in fields]
        update_values(model, fields, {row.pk: [getattr(row, name) for name in names] for row in rows})


def update_values(model: type[Model], fields: Sequence[str], values: Mapping[Any, Sequence[Any]]) -> None:
    """Save these fields of rows that were not read, as `update_rows` does. ``values``: by primary key."""
    options = model._meta
    quote = connection.ops.quote_name
    columns = [cast("Any", options.get_field(name)) for name in fields]
    key: Any = options.pk
    kinds = [_type(column) for column in (key, *columns)]
    sets = ", ".join(f"{quote(column.column)} = given.{quote(column.column)}" for column in columns)
    names = ", ".join(quote(column.column) for column in (key, *columns))
    one = "(" + ", ".join(f"%s::{kind}" for kind in kinds) + ")"
    table, own = quote(options.db_table), quote(key.column)
    rows = list(values.items())
    for first in range(0, len(rows), MOST_ROWS):
        some = rows[first : first + MOST_ROWS]
        prepared = [
            column.get_db_prep_save(value, connection)
            for pk, row in some
            for column, value in zip((key, *columns), (pk, *row), strict=True)
        ]
        given = ", ".join([one] * len(some))
        with connection.cursor() as cursor:
            cursor.execute(
                f"update {table} set {sets} from (values {given}) as given ({names}) "  # noqa: S608 - names of the models' own
                f"where {table}.{own} = given.{own}",
                prepared,
            )


def _type(column: Any) -> str:
    # A value cannot be cast to the type of an automatic primary key.
    kind: str = column.rel_db_type(connection) if column.primary_key else column.db_type(connection)
    return kind
