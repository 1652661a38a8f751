"""What the streams' tests stand on: a real stream server."""

from __future__ import annotations

import pytest
from django.core.cache import cache

from tests.streams.server import stream_server

__all__ = ["stream_server"]  # a fixture


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    """What is counted for each caller is kept in the cache, which outlives a test."""
    cache.clear()
