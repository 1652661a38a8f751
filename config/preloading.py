"""What a server process imports before it forks workers (gunicorn's `--preload`), so that these share it."""

from __future__ import annotations

import gc

from django.urls import get_resolver


def import_views() -> None:
    """Import all views, and keep the collector from writing into what was imported: a page that is written is
    copied."""
    _ = get_resolver().url_patterns
    gc.collect()
    gc.freeze()
