"""Questions that every submission asks: their SQL is made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from threading import local
from typing import Any, Final, Generic, TypeVar

from django.db import connection
from django.db.models import Model, QuerySet
from django.db.models.query import ModelIterable
from django.db.models.sql.compiler import SQLCompiler
from django.db.transaction import TransactionManagementError

#: Stand for what differs from one time to the next, while the SQL is made: ids that fit into every column.
_HOLES: Final = tuple(range(2_147_483_600, 2_147_483_608))

Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True)
class _Made:
    """What was made of a question. ``places``: for each parameter of the SQL which hole it is, or None."""

    queryset: QuerySet[Any, Any]
    compiler: SQLCompiler
    sql: str
    parameters: tuple[Any, ...]
    places: tuple[int | None, ...]

    def filled(self, values: Sequence[int | str]) -> tuple[Any, ...]:
        """The parameters with what is in the holes."""
        return tuple(
            given if place is None else values[place]
            for given, place in zip(self.parameters, self.places, strict=True)
        )


class _Question:
    """To make the SQL of a question takes Django several times as long as to ask it, so that is done once in
    a thread.

    ``rows_of``: the rows for what is in the holes, an id or a name for each of its parameters. It must say
    the same each time: no moment of now, nothing that is read. Only numbers, texts and truth values come out
    as they are.
    """

    def __init__(self, rows_of: Callable[..., QuerySet[Any, Any]]) -> None:
        self._rows_of = rows_of
        self._holes = _HOLES[: len(signature(rows_of).parameters)]
        self._of_this_thread = local()

    def _made(self) -> _Made:
        if not hasattr(self._of_this_thread, "made"):
            self._of_this_thread.made = self._make()
        made: _Made = self._of_this_thread.made
        if made.queryset.query.select_for_update and connection.get_autocommit():
            raise TransactionManagementError("Rows are locked in a transaction alone.")
        return made

    def _make(self) -> _Made:
        queryset = self._rows_of(*self._holes)
        compiler = queryset.query.get_compiler(connection=connection)
        sql, parameters = compiler.as_sql()
        holes = {str(hole): place for place, hole in enumerate(self._holes)}
        places = tuple(holes.get(str(given)) for given in parameters)
        if missing := set(holes.values()) - set(places):
            raise ValueError(f"the SQL has no place for parameters {sorted(missing)} of the question: {sql}")
        return _Made(queryset, compiler, sql, tuple(parameters), places)


class PreparedValues(_Question):
    """A question for values."""

    def ask(self, *values: int | str) -> list[tuple[Any, ...]]:
        """The rows, with the values in the holes."""
        made = self._made()
        with connection.cursor() as cursor:
            cursor.execute(made.sql, made.filled(values))
            found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


class PreparedRows(_Question, Generic[Row]):
    """A question for rows of a model, with those related to them if it selects these."""

    def __init__(self, rows_of: Callable[..., QuerySet[Row]]) -> None:
        super().__init__(rows_of)

    def _make(self) -> _Made:
        made = super()._make()
        # Django's own reading of the rows asks for these two.
        made.queryset.query.get_compiler = lambda *_, **__: made.compiler  # type: ignore[method-assign]
        return made

    def ask(self, *values: int | str) -> list[Row]:
        """The rows, with the values in the holes."""
        made = self._made()
        made.compiler.as_sql = lambda *_, **__: (made.sql, made.filled(values))  # type: ignore[method-assign]
        return list(ModelIterable(made.queryset))

    def first(self, *values: int | str) -> Row | None:
        """The first of the rows, if there is one."""
        return next(iter(self.ask(*values)), None)
