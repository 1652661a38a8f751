"""Imports before a process forks others, so that these share them: workers of gunicorn (`--preload`) and of
Celery (`launch/forking.py`)."""

from __future__ import annotations

import gc

from django.apps import apps
from django.conf import settings
from django.urls import get_resolver


def import_views() -> None:
    """Import all views."""
    _ = get_resolver().url_patterns
    _share()


def import_workers() -> None:
    """Import what all Celery workers need, but no tasks, which each worker imports for its queues, and no
    kernels: whether they run as machine code is decided when they are imported."""
    import celery.apps.beat
    import celery.apps.worker
    import celery.bin.celery
    import celery.concurrency.prefork
    import celery.worker.components
    import celery.worker.consumer  # noqa: F401

    from config.celery import app

    app.finalize()
    # `django.setup` would configure the logs of the importing process too.
    apps.populate(settings.INSTALLED_APPS)
    _share()


def _share() -> None:
    """Exclude all objects from garbage collection, whose writes would copy shared pages."""
    gc.collect()
    gc.freeze()
