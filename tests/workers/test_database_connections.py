"""A worker's database connection lasts from task to task, as long as it works."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import psycopg2
import pytest
from celery import signals
from celery.fixups.django import DjangoWorkerFixup
from django.db import connection, connections

from config.celery import app

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def celerys_own_handlers() -> Iterator[None]:
    """As in a worker: Celery manages connections too."""
    fixup = DjangoWorkerFixup(app).install()
    yield
    for signal, handler in (
        (signals.task_prerun, fixup.on_task_prerun),
        (signals.task_postrun, fixup.on_task_postrun),
        (signals.worker_process_init, fixup.on_worker_process_init),
        (signals.beat_embedded_init, fixup.close_database),
    ):
        signal.disconnect(handler)


class Task:
    """The attributes of a task that handlers read."""

    def __init__(self, *, eager: bool) -> None:
        self.request = SimpleNamespace(is_eager=eager)


def backend_of_a_task(*, eager: bool = False) -> int:
    """Return the PostgreSQL process that serves a task."""
    task = Task(eager=eager)
    signals.task_prerun.send(sender=task)
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        (backend,) = cursor.fetchone()
    signals.task_postrun.send(sender=task)
    return int(backend)


def test_the_next_task_has_the_connection_of_the_last_one() -> None:
    assert len({backend_of_a_task() for _ in range(3)}) == 1


def test_a_kept_connection_is_looked_at_without_a_statement() -> None:
    backend = backend_of_a_task()
    assert connection.is_usable()
    other = psycopg2.connect(**connection.get_connection_params())
    with other, other.cursor() as cursor:
        cursor.execute("select query from pg_stat_activity where pid = %s", [backend])
        assert cursor.fetchone() == ("select pg_backend_pid()",)
    other.close()


def test_a_connection_that_was_lost_between_tasks_harms_none() -> None:
    before = backend_of_a_task()
    other = psycopg2.connect(**connection.get_connection_params())
    with other, other.cursor() as cursor:
        cursor.execute("select pg_terminate_backend(%s, 5000)", [before])
    other.close()
    assert backend_of_a_task() != before


def test_an_old_connection_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    before = backend_of_a_task()
    monkeypatch.setattr(connections["default"], "close_at", 0.0)
    assert backend_of_a_task() != before


def test_an_eager_task_keeps_its_callers_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = backend_of_a_task()
    monkeypatch.setattr(connections["default"], "close_at", 0.0)
    assert backend_of_a_task(eager=True) == before
