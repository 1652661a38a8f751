"""Domain errors: services raise them, the API renders them as problem documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class DomainError(Exception):
    """An error that the caller can act on. ``detail`` is a sentence that says what would be right."""

    status = 400
    code = "invalid"
    title = "Invalid request"

    def __init__(
        self,
        detail: str,
        *,
        errors: Mapping[str, Sequence[str]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = {field: list(messages) for field, messages in (errors or {}).items()}
        self.extra = dict(extra or {})


class InvalidRequest(DomainError):
    """400: the request itself is wrong; ``errors`` names the fields."""


class WrongCredentials(DomainError):
    """401: user name and password match no account."""

    status = 401
    code = "wrong_credentials"
    title = "Wrong credentials"


class NotFound(DomainError):
    """404: there is no such object, or the caller may not see it."""

    status = 404
    code = "not_found"
    title = "Not found"


class NotAllowed(DomainError):
    """403: the object is visible, but a permission is missing."""

    status = 403
    code = "not_allowed"
    title = "Not allowed"


class MissingScope(NotAllowed):
    """403: the token lacks the scope."""

    code = "missing_scope"
    title = "Missing scope"


class Conflict(DomainError):
    """409: the object's current state forbids it."""

    status = 409
    code = "conflict"
    title = "Conflict"


class TooLarge(DomainError):
    """413: the request is larger than the limit."""

    status = 413
    code = "too_large"
    title = "Too large"


class QuotaExceeded(DomainError):
    """429: a limit of the project is reached."""

    status = 429
    code = "quota_exceeded"
    title = "Quota exceeded"


class Unavailable(DomainError):
    """503: try again soon."""

    status = 503
    code = "unavailable"
    title = "Unavailable"
