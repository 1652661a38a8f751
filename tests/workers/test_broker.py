"""A Celery worker continues when its broker dies or freezes, whatever was in progress."""

from __future__ import annotations

import logging
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker.consumer import Consumer
from kombu.connection import Connection
from kombu.entity import Queue

from config.celery import app
from config.celery_settings import broker_url
from launch.valkey import EmbeddedValkey
from tests.plugins import embedded_servers


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Yield a broker that a test may kill and freeze, and its URL for Celery."""
    server = EmbeddedValkey(tmp_path / "valkey", tmp_path / "broker", durable=False)
    server.prepare()
    embedded_servers._start("Valkey", server, tmp_path)
    process, _ = embedded_servers._servers.pop()
    yield process, broker_url(server.url())
    process.kill()
    process.wait()


def publish(url: str, *names: str) -> None:
    """Publish over a separate connection, as another process does."""
    with Connection(url) as connection, connection.SimpleQueue("control") as queue:
        for name in names:
            queue.put({"task": name})


@pytest.mark.filterwarnings("ignore::celery.exceptions.CPendingDeprecationWarning")
def test_a_message_that_cannot_be_returned_does_not_end_the_worker(
    valkey: tuple[subprocess.Popen[bytes], str],
) -> None:
    broker, url = valkey
    publish(url, "a wake-up")
    connection = Connection(url)
    held: list[Any] = []
    # Like a worker: tasks arrive on one channel, commands on another.
    for name, channel in (("control", connection.default_channel), ("commands", connection.channel())):
        connection.Consumer(
            Queue(name, no_declare=True), channel, callbacks=[lambda body, message: held.append(message)]
        ).consume()
    while not held:
        connection.drain_events(timeout=60)
    # The worker waits for messages when the broker dies.
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.1)
    broker.kill()
    broker.wait()
    worker = Consumer.__new__(Consumer)
    vars(worker).update(
        app=app, connection=connection, qos_global=False, max_prefetch_count=1, prefetch_multiplier=1
    )
    worker.pool = SimpleNamespace(num_processes=1)
    worker.on_connection_error_after_connected(ConnectionResetError("the broker died"))
    assert worker.connection is None, "the next connection is a new one"
    # The task ends after that.
    held[0].ack_log_error(logging.getLogger(), connection.connection_errors)


@pytest.mark.parametrize("answer", ["ack_log_error", "reject_log_error"])
def test_an_unanswered_acknowledgement_does_not_block_the_next_one(
    valkey: tuple[subprocess.Popen[bytes], str], answer: str
) -> None:
    broker, url = valkey
    publish(url, "first", "second")
    connection = Connection(url, transport_options={"socket_timeout": 0.2})
    held: list[Any] = []
    consumer = connection.Consumer(
        Queue("control", no_declare=True), callbacks=[lambda body, message: held.append(message)]
    )
    consumer.qos(prefetch_count=1)
    consumer.consume()
    while not held:
        connection.drain_events(timeout=60)
    broker.send_signal(signal.SIGSTOP)
    # As Celery does when a task has ended: it logs the error and continues.
    getattr(held[0], answer)(logging.getLogger(), connection.connection_errors)
    broker.send_signal(signal.SIGCONT)
    while len(held) < 2:
        connection.drain_events(timeout=60)
    assert held[1].payload == {"task": "second"}
    held[1].ack()
    connection.close()
