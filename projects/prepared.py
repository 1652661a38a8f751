"""Statements that are made again and again: their SQL is written once, PostgreSQL parses it once a session.

Django takes several times as long to write SQL as PostgreSQL to answer it, and PostgreSQL about as long to
plan it. ``PREPARE`` belongs to a session, as the platform's locks do: a pooler in front of PostgreSQL must
leave a process its session.
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

#: Stand for what differs from one time to the next, while the SQL is made: ids that fit into every column.
_HOLES: Final = tuple(range(2_147_483_600, 2_147_483_608))

Row = TypeVar("Row", bound=Model)

#: What fills a hole: an id or a name, several of them where the question says `any_of`, or a time.
Value = int | str | datetime | Collection[int] | Collection[str]

_numbers = count(1)
#: The names of the statements that each session knows.
_known_to: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


@CharField.register_lookup
@IntegerField.register_lookup
class AnyOf(Lookup):
    """``pk__any_of=ids`` is ``pk__in=ids`` with one parameter for any number of them."""

    lookup_name = "any_of"
    prepare_rhs = False

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, Any]:
        column, parameters = self.process_lhs(compiler, connection)
        return f"{column} = ANY(%s)", [*parameters, self.rhs]


def time_hole(hole: int) -> RawSQL:
    """A hole of a question that takes a time, where it is compared."""
    return RawSQL("%s", (hole,), output_field=DateTimeField())


@dataclass(frozen=True)
class _Statement:
    """One statement as PostgreSQL prepares it and is asked for it."""

    name: str
    #: Prepares it in a session.
    preparation: str
    #: Executes it, with a place for each hole.
    execution: str

    @classmethod
    def of(
        cls, connection: BaseDatabaseWrapper, sql: str, parameters: Sequence[Any], holes: int
    ) -> _Statement:
        """Of Django's SQL. What is no hole is written into it, so that it is planned for just that."""
        name = f"punctual_{next(_numbers)}"
        with connection.cursor() as cursor:
            text = cursor.mogrify(sql, parameters).decode()
        places = f"({', '.join(['%s'] * holes)})" if holes else ""
        return cls(name, f"PREPARE {name} AS {text}", f"EXECUTE {name} {places}")

    def execute(self, connection: BaseDatabaseWrapper, cursor: Any, values: Sequence[Any]) -> None:
        """Ask for it with what is in the holes; a session that does not know it yet is told."""
        known = _known_to.setdefault(connection.connection, set())
        if self.name not in known:
            cursor.execute(self.preparation)
            known.add(self.name)
        cursor.execute(self.execution, values)


class _Question:
    """A question whose SQL is made once in a thread.

    ``rows_of``: the rows for what is in the holes, an id or a name for each of its parameters, or several for
    one that is compared by ``any_of``, or a time for a `time_hole`. It must say the same each time: nothing
    that is read.
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
        # That of now: beside an event loop a thread has more than one.
        connection = connections[DEFAULT_DB_ALIAS]
        if self._of_this_thread.locks and connection.get_autocommit():
            raise TransactionManagementError("Rows are locked in a transaction alone.")
        with connection.cursor() as cursor:
            made.execute(connection, cursor, values)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


class PreparedValues(_Question):
    """A question for values: numbers, texts, times and truth values, which come out as they are."""

    def ask(self, *values: Value) -> list[tuple[Any, ...]]:
        """The rows, with the values in the holes."""
        return self._rows(values)

    def any(self, *values: Value) -> bool:
        """Whether there is a row, for a question that is cut to one."""
        return bool(self._rows(values))


class _Reader(Generic[Row]):
    """Makes models of rows, as Django does (`ModelIterable`); what it looks up for each answer is looked up
    once."""

    def __init__(self, compiler: SQLCompiler) -> None:
        assert compiler.klass_info is not None  # the question is for rows of a model
        self._compiler: Any = compiler
        self.model: type[Row] = compiler.klass_info["model"]
        columns = compiler.klass_info["select_fields"]
        self._of_model = slice(columns[0], columns[-1] + 1)
        self._names = [column[0].target.attname for column in compiler.select[self._of_model]]
        # The stubs are those of the next Django, which asks for more.
        self._related = get_related_populators(  # type: ignore[call-arg]
            compiler.klass_info, compiler.select, DEFAULT_DB_ALIAS
        )
        self._annotations = list((compiler.annotation_col_map or {}).items())
        fields = [column[0] for column in compiler.select[: compiler.col_count]]
        self._converters = compiler.get_converters(fields)

    def read(self, rows: Sequence[tuple[Any, ...]]) -> list[Row]:
        """The models."""
        return [self._model_of(row) for row in self._compiler.apply_converters(rows, self._converters)]

    def _model_of(self, row: Sequence[Any]) -> Row:
        found = self.model.from_db(DEFAULT_DB_ALIAS, self._names, row[self._of_model])
        for related in self._related:
            related.populate(row, found)
        for name, column in self._annotations:
            setattr(found, name, row[column])
        return found


class PreparedRows(_Question, Generic[Row]):
    """A question for rows of a model, with those related to them if it selects these."""

    def __init__(self, rows_of: Callable[..., QuerySet[Row]]) -> None:
        super().__init__(rows_of)

    def _make(self) -> SQLCompiler:
        compiler = super()._make()
        self._of_this_thread.reader = _Reader(compiler)
        return compiler

    def ask(self, *values: Value) -> list[Row]:
        """The rows, with the values in the holes."""
        rows = self._rows(values)
        reader: _Reader[Row] = self._of_this_thread.reader
        return reader.read(rows)

    def first(self, *values: Value) -> Row | None:
        """The first of the rows, if there is one."""
        return next(iter(self.ask(*values)), None)

    def get(self, *values: Value) -> Row:
        """The first of the rows. Raises the model's `DoesNotExist` where there is none."""
        found = self.first(*values)
        if found is None:
            model: Any = self._of_this_thread.reader.model
            raise model.DoesNotExist
        return found


class PreparedInsert(Generic[Row]):
    """Stores new rows of a model whose signals nobody hears. An id that the database gives does not come
    back."""

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
