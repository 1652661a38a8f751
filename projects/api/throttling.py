"""Throttles that fail open: the broker is allowed to be away, the API is not."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import structlog
from redis.exceptions import RedisError
from rest_framework.request import Request
from rest_framework.throttling import ScopedRateThrottle
from rest_framework.views import APIView

log = structlog.get_logger(__name__)


class Throttle(ScopedRateThrottle):
    """Counts requests per user (per address when nobody is logged in) in the scope that the view names."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        try:
            return super().allow_request(request, view)
        except (RedisError, OSError) as error:
            log.warning("throttle_unavailable", error=str(error))
            return True


class LoginNameThrottle(Throttle):
    """Counts attempts per user name, from wherever they come."""

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        data: Any = request.data
        name = data.get("username") if isinstance(data, dict) else None
        if not isinstance(name, str) or not name:
            return None
        return self.cache_format % {"scope": "login_name", "ident": sha256(name.encode()).hexdigest()}
