"""Imports before a server process forks workers (gunicorn's `--preload`), so that the workers share them."""

from __future__ import annotations

import gc

from django.urls import get_resolver


def import_views() -> None:
    """Import all views, and exclude them from garbage collection, whose writes would copy shared pages."""
    _ = get_resolver().url_patterns
    gc.collect()
    gc.freeze()
