"""The scheduler of the periodic tasks does not compute while it waits."""

from __future__ import annotations

from celery.utils.imports import instantiate

from config.celery import app


def test_the_clock_sleeps_until_a_task_is_due() -> None:
    clock = instantiate(app.conf.beat_scheduler, app=app, lazy=True)
    assert clock.adjust(0.01) == 0.01
