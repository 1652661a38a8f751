"""Errors of the client: a sentence on what went wrong and, if there is one, a hint on what to do.

Workers import the package without httpx, so this file needs only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class PunctualError(Exception):
    """Base class of the client's errors. ``message``: what is wrong, ``hint``: what to do about it."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidInputError(PunctualError, ValueError):
    """Invalid input, found before anything is sent: a duration, a label, an option."""


class BundleError(PunctualError):
    """The function cannot be packed: no such file, a link that leaves the folder, too many files."""


class ConfigurationError(PunctualError):
    """The configuration file or an environment variable cannot be used."""


class NoPlatformError(ConfigurationError):
    """The platform's address is unknown: no argument, environment variable or login gives it."""


class ConnectionFailedError(PunctualError):
    """No answer from the server, even after retries."""


class WaitTimeoutError(PunctualError, TimeoutError):
    """The waiting time is over; the job continues."""


class ChecksumError(PunctualError):
    """A download does not match its SHA-256 digest; none of it was kept."""


class ApiError(PunctualError):
    """The server refused the request (RFC 9457 problem document).

    Attributes:
        status: HTTP status.
        code: the server's short name of the problem, such as ``quota_exceeded``.
        errors: messages by field of the request, for 400.
        extra: further members of the problem document, such as ``broken_promises``.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str = "",
        errors: Mapping[str, Sequence[str]] | None = None,
        extra: Mapping[str, Any] | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code
        self.errors = {field: list(messages) for field, messages in (errors or {}).items()}
        self.extra = dict(extra or {})


class InvalidRequestError(ApiError):
    """400, 413, 415, 422: the request itself is wrong; ``errors`` names the fields."""


class NotLoggedInError(ApiError):
    """401: no token, or an unknown, expired or revoked one."""


class NotAllowedError(ApiError):
    """403: the object is visible, but a right is missing."""


class NotFoundError(ApiError):
    """404: it does not exist, or belongs to a project you are no member of."""


class ConflictError(ApiError):
    """409: the object's current state forbids it."""


class LimitReachedError(ApiError):
    """429: a quota of the project, or too many requests."""


class ServerError(ApiError):
    """5xx: the server failed or is not ready."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: NotLoggedInError,
    403: NotAllowedError,
    404: NotFoundError,
    409: ConflictError,
    429: LimitReachedError,
}


def error_class_for_status(status: int) -> type[ApiError]:
    """Return the error class for an HTTP status of 400 or more."""
    if status >= 500:
        return ServerError
    return _BY_STATUS.get(status, InvalidRequestError)
