"""This process's connections to Redis."""

from __future__ import annotations

from functools import cache

from django.conf import settings
from redis import Redis


@cache
def redis_client() -> Redis:
    """The client that all of this process share. Time-outs are short: what is kept there is worth little."""
    return Redis.from_url(settings.REDIS_URL, socket_timeout=2.0, socket_connect_timeout=1.0)
