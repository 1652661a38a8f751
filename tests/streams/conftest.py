"""Fixtures of the streams' tests: a real stream server."""

from __future__ import annotations

import pytest
from django.core.cache import cache

from tests.streams.server import stream_server

__all__ = ["stream_server"]  # a fixture


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    """Empty the cache, which counts by caller and outlives a test."""
    cache.clear()
