"""Throttles that fail open: the broker is allowed to be away, the API is not."""

from __future__ import annotations

import structlog
from redis.exceptions import RedisError
from rest_framework.request import Request
from rest_framework.throttling import ScopedRateThrottle
from rest_framework.views import APIView

from projects.client_address import throttled_address

log = structlog.get_logger(__name__)


class Throttle(ScopedRateThrottle):
    """Counts requests per user (per address when nobody is logged in) in the scope that the view names."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        try:
            return super().allow_request(request, view)
        except (RedisError, OSError) as error:
            log.warning("throttle_unavailable", error=str(error))
            return True

    def get_ident(self, request: Request) -> str:
        return throttled_address(request._request)
