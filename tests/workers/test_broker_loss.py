"""A Celery worker goes on when its broker dies, whatever was under way."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery.utils.imports import symbol_by_name
from kombu.connection import Connection
from kombu.entity import Queue

from config.celery import app
from config.celery_settings import broker_url
from launch.valkey import EmbeddedValkey
from tests.plugins import embedded_servers


@pytest.mark.filterwarnings("ignore::celery.exceptions.CPendingDeprecationWarning")
def test_a_message_that_a_dead_broker_cannot_take_back_does_not_end_the_worker(tmp_path: Path) -> None:
    valkey = EmbeddedValkey(tmp_path / "valkey", tmp_path / "broker", durable=False)
    valkey.prepare()
    embedded_servers._start("Valkey", valkey, tmp_path)
    broker, _ = embedded_servers._servers.pop()
    connection = Connection(broker_url(valkey.url()))
    held = []
    try:
        # By another connection, as by another process.
        with Connection(broker_url(valkey.url())) as other, other.SimpleQueue("control") as queue:
            queue.put({"task": "a wake-up"})
        # As a worker has it: tasks come on one channel, commands on another.
        for name, channel in (("control", connection.default_channel), ("commands", connection.channel())):
            connection.Consumer(
                Queue(name, no_declare=True), channel, callbacks=[lambda body, message: held.append(message)]
            ).consume()
        while not held:
            connection.drain_events(timeout=10)
        # It waits for the next ones when the broker dies.
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)
    finally:
        broker.send_signal(signal.SIGKILL)
        broker.wait()
    outliving = symbol_by_name(app.conf.worker_consumer)
    worker = outliving.__new__(outliving)
    vars(worker).update(
        app=app, connection=connection, qos_global=False, max_prefetch_count=1, prefetch_multiplier=1
    )
    worker.pool = SimpleNamespace(num_processes=1)
    worker.on_connection_error_after_connected(ConnectionResetError("the broker died"))
    assert worker.connection is None, "the next connection is a new one"
