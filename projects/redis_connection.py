"""Connections of this process to Redis."""

from __future__ import annotations

from functools import cache

from django.conf import settings
from redis import Redis


@cache
def redis_client() -> Redis:
    """Return the client shared by the whole process. Timeouts are short, since the data is expendable."""
    return Redis.from_url(settings.REDIS_URL, socket_timeout=2.0, socket_connect_timeout=1.0)
