"""Throttles that fail open: the broker is allowed to be away, the API is not."""

from __future__ import annotations

from typing import Final

import structlog
from redis.exceptions import RedisError
from rest_framework.request import Request
from rest_framework.throttling import ScopedRateThrottle, SimpleRateThrottle
from rest_framework.views import APIView

from projects.client_address import throttled_address
from projects.redis_connection import redis_client

log = structlog.get_logger(__name__)

#: Counts a request of now, by Redis' clock, unless as many as may be came within the last seconds. Answers
#: with the seconds until one may come again, or nothing if this one may. KEYS: the times at which requests
#: were let in. ARGV: how many seconds count, and how many requests may come in them.
_COUNT: Final = """
local time = redis.call('TIME')
local now, window = time[1] + time[2] / 1000000, tonumber(ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - window)
local counted = redis.call('ZCARD', KEYS[1])
if counted >= tonumber(ARGV[2]) then
    local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
    return string.format('%.6f', (first[2] or now) + window - now)
end
redis.call('ZADD', KEYS[1], now, time[1] .. '.' .. time[2] .. '.' .. counted)
redis.call('PEXPIRE', KEYS[1], math.ceil(1000 * window))
return false
"""


class CountedAtOnce(SimpleRateThrottle):
    """Checks and counts in one round trip to Redis, so that concurrent requests are all counted. Reading,
    changing and writing back the times would lose some."""

    num_requests: int | None
    duration: int | None
    wait_seconds: float | None = None

    def allow_request(self, request: Request, view: APIView) -> bool:
        key = self.get_cache_key(request, view)
        if self.num_requests is None or self.duration is None or key is None:
            return True
        count = redis_client().register_script(_COUNT)
        until = count(keys=[f"punctual:{key}"], args=[self.duration, self.num_requests])
        self.wait_seconds = None if until is None else float(until)
        return until is None

    def wait(self) -> float | None:
        return self.wait_seconds


class Throttle(ScopedRateThrottle, CountedAtOnce):
    """Counts requests per user (per address without a login) in the scope that the view names."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        try:
            return super().allow_request(request, view)
        except (RedisError, OSError) as error:
            log.warning("throttle_unavailable", error=str(error))
            return True

    def get_ident(self, request: Request) -> str:
        return throttled_address(request._request.META)
