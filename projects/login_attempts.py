"""Throttling of password guesses: per name, per address, and per pair of both.

The authentication backend counts, so every login path is throttled, including ones added later.
"""

from __future__ import annotations

import unicodedata
from hashlib import sha256
from typing import Any

import structlog
from asgiref.sync import sync_to_async
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.base_user import AbstractBaseUser
from django.core.cache import cache
from django.http import HttpRequest
from redis.exceptions import RedisError

from projects.client_address import client_address, throttled_address
from projects.errors import DomainError

log = structlog.get_logger(__name__)

#: Failures within the window after which further attempts are refused: for a name from one address, and for
#: either alone. The latter limits are generous because all users may share one proxy's address.
MAXIMUM_FAILURES = {"both": 20, "address": 200, "name": 200}
WINDOW_SECONDS = 300


class TooManyAttempts(DomainError):
    """429: too many failed logins; the window has to pass."""

    status = 429
    code = "too_many_attempts"
    title = "Too many attempts"

    def __init__(self) -> None:
        super().__init__(
            "Too many attempts to log in failed. Try again in a few minutes.",
            extra={"retry_after_seconds": WINDOW_SECONDS},
        )


def normalised_name(username: str) -> str:
    """Return the name as stored in accounts, normalised as forms and the API do it."""
    return unicodedata.normalize("NFKC", username).strip()


class ThrottledBackend(ModelBackend):
    """User name and password, with a count of failures. Every login of the platform uses this backend."""

    def authenticate(  # type: ignore[override]
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **_: Any
    ) -> AbstractBaseUser | None:
        """Return the account of the pair, or None.

        Raises:
            TooManyAttempts: name or address have failed too often.
        """
        if username is None or password is None:
            return None
        name = normalised_name(username)
        keys = _keys(request, name)
        # Counted before the password is checked, so that concurrent attempts are all counted.
        if any(_count(key) > MAXIMUM_FAILURES[kind] for kind, key in keys.items()):
            log.warning("login_throttled", address=_address(request))
            raise TooManyAttempts
        user = super().authenticate(request, username=name, password=password)
        if user is None:
            # The name is not logged: people type their password there by mistake.
            log.warning("login_failed", address=_address(request))
        else:
            for key in keys.values():
                _take_back(key)
        return user

    async def aauthenticate(self, request: HttpRequest | None, **credentials: Any) -> AbstractBaseUser | None:  # type: ignore[override]
        return await sync_to_async(self.authenticate)(request, **credentials)


def _address(request: HttpRequest | None) -> str:
    return "" if request is None else client_address(request.META)


def _keys(request: HttpRequest | None, name: str) -> dict[str, str]:
    # A digest, because a cache refuses some characters in keys. Case is folded: accounts that differ only in
    # case share their count, which is better than a fresh count for each spelling.
    digest = sha256(unicodedata.normalize("NFKC", name.casefold()).encode()).hexdigest()
    keys = {"name": f"login-failures:name:{digest}"}
    address = "" if request is None else throttled_address(request.META)
    if address:
        keys["address"] = f"login-failures:address:{address}"
        keys["both"] = f"login-failures:{address}:{digest}"
    return keys


def _count(key: str) -> int:
    try:
        cache.add(key, 0, WINDOW_SECONDS)
        return int(cache.incr(key))
    except (RedisError, OSError, ValueError):
        # ValueError: the key expired in between. The cache may be unavailable at any time; that must not
        # prevent logins.
        log.warning("login_attempt_not_counted")
        return 0


def _take_back(key: str) -> None:
    try:
        cache.decr(key)
    except (RedisError, OSError, ValueError):
        log.warning("login_attempt_not_taken_back")
