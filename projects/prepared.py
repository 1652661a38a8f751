"""Prepared statements for frequent queries: Django compiles their SQL once, PostgreSQL parses it once per
session.

Compiling the SQL takes Django several times as long as PostgreSQL takes to answer it; planning takes
PostgreSQL about as long as answering. ``PREPARE`` belongs to a session, as the platform's locks do, so a
pooler in front of PostgreSQL must use session mode.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from inspect import signature
from itertools import count
from threading import local
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import CharField, DateTimeField, IntegerField, Lookup, Model, QuerySet
from django.db.models.expressions import RawSQL
from django.db.models.query import get_related_populators
from django.db.models.sql import InsertQuery
from django.db.models.sql.compiler import SQLCompiler
from django.db.transaction import TransactionManagementError
from psycopg2.extensions import AsIs

#: Placeholder values for parameters while the SQL is compiled: ids that fit into every column.
_HOLES: Final = tuple(range(2_147_483_600, 2_147_483_608))

Row = TypeVar("Row", bound=Model)

#: A parameter's value: an id or a name, several of them where the query compares by `any_of`, or a time.
Value = int | str | datetime | Collection[int] | Collection[str]

_numbers = count(1)
#: Names of the statements that each session has prepared.
_known_to: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


@CharField.register_lookup
@IntegerField.register_lookup
class AnyOf(Lookup):
    """``pk__any_of=ids`` is ``pk__in=ids`` with a single parameter for all ids."""

    lookup_name = "any_of"
    prepare_rhs = False

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, Any]:
        column, parameters = self.process_lhs(compiler, connection)
        return f"{column} = ANY(%s)", [*parameters, self.rhs]


def time_hole(hole: int) -> RawSQL:
    """Return the placeholder of a time parameter, for use in a comparison."""
    return RawSQL("%s", (hole,), output_field=DateTimeField())


@dataclass(frozen=True)
class _Statement:
    """One prepared statement."""

    name: str
    #: SQL that prepares it in a session.
    preparation: str
    #: SQL that executes it, with a placeholder for each parameter.
    execution: str

    @classmethod
    def of(
        cls, connection: BaseDatabaseWrapper, sql: str, parameters: Sequence[Any], holes: int
    ) -> _Statement:
        """Build the statement from Django's SQL. Constants are inlined, so that PostgreSQL plans for them."""
        name = f"punctual_{next(_numbers)}"
        with connection.cursor() as cursor:
            text = cursor.mogrify(sql, parameters).decode()
        places = f"({', '.join(['%s'] * holes)})" if holes else ""
        return cls(name, f"PREPARE {name} AS {text}", f"EXECUTE {name} {places}")

    def execute(self, connection: BaseDatabaseWrapper, cursor: Any, values: Sequence[Any]) -> None:
        """Execute it with these parameters, preparing it first if the session has not yet done so."""
        known = _known_to.setdefault(connection.connection, set())
        if self.name not in known:
            cursor.execute(self.preparation)
            known.add(self.name)
        cursor.execute(self.execution, values)


class _Question:
    """A query whose SQL is compiled once per thread.

    ``rows_of`` returns the queryset for its parameters: an id or a name each, several of them for a
    comparison by ``any_of``, or a time for a `time_hole`. It must be deterministic: no now(), no queries.
    """

    def __init__(self, rows_of: Callable[..., QuerySet[Any, Any]]) -> None:
        self._rows_of = rows_of
        self._holes = _HOLES[: len(signature(rows_of).parameters)]
        self._of_this_thread = local()

    def _statement(self) -> _Statement:
        if not hasattr(self._of_this_thread, "statement"):
            self._make()
        made: _Statement = self._of_this_thread.statement
        return made

    def _make(self) -> SQLCompiler:
        connection = connections[DEFAULT_DB_ALIAS]
        queryset = self._rows_of(*self._holes)
        compiler = queryset.query.get_compiler(connection=connection)
        sql, parameters = compiler.as_sql()
        numbers = {str(hole): number for number, hole in enumerate(self._holes, start=1)}
        places = [numbers.get(str(given)) for given in parameters]
        if missing := set(numbers.values()) - set(places):
            raise ValueError(f"the SQL has no place for parameters {sorted(missing)} of the question: {sql}")
        given = [
            parameter if place is None else AsIs(f"${place}")
            for parameter, place in zip(parameters, places, strict=True)
        ]
        self._of_this_thread.locks = queryset.query.select_for_update
        self._of_this_thread.statement = _Statement.of(connection, sql, given, len(self._holes))
        return compiler

    def _rows(self, values: Sequence[Value]) -> list[tuple[Any, ...]]:
        made = self._statement()
        # The current connection: with an event loop, a thread may have several.
        connection = connections[DEFAULT_DB_ALIAS]
        if self._of_this_thread.locks and connection.get_autocommit():
            raise TransactionManagementError("Rows are locked in a transaction alone.")
        with connection.cursor() as cursor:
            made.execute(connection, cursor, values)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


class PreparedValues(_Question):
    """A query for plain values (numbers, texts, times and booleans), which are returned as they are."""

    def ask(self, *values: Value) -> list[tuple[Any, ...]]:
        """Return the rows for these parameters."""
        return self._rows(values)

    def any(self, *values: Value) -> bool:
        """Return whether there is a row, for a query limited to one row."""
        return bool(self._rows(values))


class _Reader(Generic[Row]):
    """Builds models from rows as Django's `ModelIterable` does, but prepares its lookups only once."""

    def __init__(self, compiler: SQLCompiler) -> None:
        assert compiler.klass_info is not None  # the query returns rows of a model
        self._compiler: Any = compiler
        self.model: type[Row] = compiler.klass_info["model"]
        columns = compiler.klass_info["select_fields"]
        self._of_model = slice(columns[0], columns[-1] + 1)
        self._names = [column[0].target.attname for column in compiler.select[self._of_model]]
        # The stubs are those of the next Django, whose signature has more parameters.
        self._related = get_related_populators(  # type: ignore[call-arg]
            compiler.klass_info, compiler.select, DEFAULT_DB_ALIAS
        )
        self._annotations = list((compiler.annotation_col_map or {}).items())
        fields = [column[0] for column in compiler.select[: compiler.col_count]]
        self._converters = compiler.get_converters(fields)

    def read(self, rows: Sequence[tuple[Any, ...]]) -> list[Row]:
        """Return the models of the rows."""
        return [self._model_of(row) for row in self._compiler.apply_converters(rows, self._converters)]

    def _model_of(self, row: Sequence[Any]) -> Row:
        found = self.model.from_db(DEFAULT_DB_ALIAS, self._names, row[self._of_model])
        for related in self._related:
            related.populate(row, found)
        for name, column in self._annotations:
            setattr(found, name, row[column])
        return found


class PreparedRows(_Question, Generic[Row]):
    """A query for rows of a model, including related rows that it selects."""

    def __init__(self, rows_of: Callable[..., QuerySet[Row]]) -> None:
        super().__init__(rows_of)

    def _make(self) -> SQLCompiler:
        compiler = super()._make()
        self._of_this_thread.reader = _Reader(compiler)
        return compiler

    def ask(self, *values: Value) -> list[Row]:
        """Return the rows for these parameters."""
        rows = self._rows(values)
        reader: _Reader[Row] = self._of_this_thread.reader
        return reader.read(rows)

    def first(self, *values: Value) -> Row | None:
        """Return the first row, or None."""
        return next(iter(self.ask(*values)), None)

    def get(self, *values: Value) -> Row:
        """Return the first row. Raises the model's `DoesNotExist` if there is none."""
        found = self.first(*values)
        if found is None:
            model: Any = self._of_this_thread.reader.model
            raise model.DoesNotExist
        return found


class PreparedInsert(Generic[Row]):
    """Inserts rows of a model without signals. An id generated by the database is not returned."""

    def __init__(self, model: type[Row]) -> None:
        self._model = model
        fields = model._meta.local_concrete_fields
        self._fields = [field for field in fields if field is not model._meta.auto_field]
        self._of_this_thread = local()

    def store(self, row: Row) -> None:
        """Store one row, whose fields hold values, not expressions."""
        if not hasattr(self._of_this_thread, "statement"):
            self._of_this_thread.statement = self._make()
        made: _Statement = self._of_this_thread.statement
        connection = connections[DEFAULT_DB_ALIAS]
        values = [field.get_db_prep_save(field.pre_save(row, add=True), connection) for field in self._fields]
        with connection.cursor() as cursor:
            made.execute(connection, cursor, values)
        row._state.adding = False
        row._state.db = DEFAULT_DB_ALIAS

    def _make(self) -> _Statement:
        connection = connections[DEFAULT_DB_ALIAS]
        query = InsertQuery(self._model)
        query.insert_values(self._fields, [self._model()])
        ((sql, parameters),) = query.get_compiler(connection=connection).as_sql()
        places = [AsIs(f"${number}") for number in range(1, len(parameters) + 1)]
        return _Statement.of(connection, sql, places, len(parameters))
