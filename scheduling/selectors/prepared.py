"""Questions that every submission asks: their SQL is made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from django.db import connection
from django.db.models import QuerySet

#: Stands for what differs from one time to the next, while the SQL is made; no row has this id.
_HOLE: Final = -(2**62)


class Prepared:
    """A question with one hole, an id or a name. To make its SQL takes Django several times as long as to ask
    it, so that is done once in a process.

    ``rows_of``: the rows' values for what is in the hole. It must say the same each time: no moment of now,
    nothing that is read. Only numbers, texts and truth values come out as they are.
    """

    def __init__(self, rows_of: Callable[[Any], QuerySet[Any, Any]]) -> None:
        self._rows_of = rows_of

    @cached_property
    def _made(self) -> tuple[str, tuple[Any, ...]]:
        sql, parameters = self._rows_of(_HOLE).query.sql_with_params()
        return sql, tuple(parameters)

    def ask(self, value: int | str | None = None) -> list[tuple[Any, ...]]:
        """The rows, with ``value`` in the hole if there is one."""
        sql, parameters = self._made
        with connection.cursor() as cursor:
            cursor.execute(sql, [value if str(given) == str(_HOLE) else given for given in parameters])
            found: list[tuple[Any, ...]] = cursor.fetchall()
        return found
