"""RFC 9457 problem documents for every error of the API."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import structlog
from django.conf import settings
from django.core.exceptions import (
    BadRequest,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
    TooManyFieldsSent,
)
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.multipartparser import MultiPartParserError
from django.views import defaults
from rest_framework import exceptions
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response
from rest_framework.views import set_rollback

from projects.errors import DomainError
from punctual.protocol.problems import MEDIA_TYPE, problem

log = structlog.get_logger(__name__)

#: The response while PostgreSQL restarts.
DATABASE_AWAY = "The database does not answer; try again soon."
RETRY_AFTER_SECONDS = "2"
#: Key of messages that concern the request as a whole.
WHOLE_REQUEST = "request"


def problem_exception_handler(error: Exception, context: dict[str, Any]) -> HttpResponse | None:
    """Return the response to an exception of a view; None (a 500) for an unexpected exception."""
    answer = problem_response(error)
    # The OpenAPI document and its page have renderers of their own, which would write YAML and HTML.
    renderer = getattr(context.get("request"), "accepted_renderer", None)
    if answer is None or isinstance(renderer, JSONRenderer):
        return answer
    plain = _plain_answer(answer.data, answer.status_code)
    for name, value in answer.items():
        plain.setdefault(name, value)
    return plain


def problem_response(error: Exception) -> Response | None:
    """Turn an exception of a view into a problem document; None for an unexpected exception."""
    document, headers = _document(error)
    if document is None:
        return None
    set_rollback()
    return Response(document, status=document["status"], headers=headers, content_type=MEDIA_TYPE)


def _document(error: Exception) -> tuple[dict[str, Any] | None, dict[str, str]]:
    if isinstance(error, DomainError):
        return _domain_problem(error)
    if isinstance(error, exceptions.ValidationError):
        return validation_problem(error), {}
    if isinstance(error, exceptions.APIException):
        return _framework_problem(error)
    if isinstance(error, Http404):
        return problem(404, "not_found", "There is no such object, or it is not yours to see."), {}
    if isinstance(error, PermissionDenied):
        return problem(403, "not_allowed", str(error) or "You may not do this."), {}
    if isinstance(error, RequestDataTooBig):
        return problem(413, "too_large", str(error)), {}
    if isinstance(error, TooManyFieldsSent):
        most = settings.DATA_UPLOAD_MAX_NUMBER_FIELDS
        return problem(400, "malformed", f"A request has at most {most} parameters."), {}
    if isinstance(error, SuspiciousOperation | BadRequest | MultiPartParserError):
        return problem(400, "malformed", f"The request cannot be read: {error}"), {}
    if isinstance(error, OperationalError | InterfaceError):
        log.error("database_unavailable", error=str(error))
        return problem(503, "unavailable", DATABASE_AWAY), {"Retry-After": RETRY_AFTER_SECONDS}
    return None, {}


def _domain_problem(error: DomainError) -> tuple[dict[str, Any], dict[str, str]]:
    extra = dict(error.extra)
    headers = {}
    if error.status == 503:
        extra.setdefault("retry_after_seconds", 2)
    if "retry_after_seconds" in extra:
        headers["Retry-After"] = str(extra["retry_after_seconds"])
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    document = problem(
        error.status, error.code, error.detail, title=error.title, errors=error.errors, extra=extra
    )
    return document, headers


def _framework_problem(error: exceptions.APIException) -> tuple[dict[str, Any], dict[str, str]]:
    headers = {}
    extra = {}
    if getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = error.auth_header  # type: ignore[attr-defined]
    wait = getattr(error, "wait", None)
    if wait is not None:
        headers["Retry-After"] = str(max(1, int(wait)))
        extra["retry_after_seconds"] = max(1, int(wait))
    code = error.get_codes()
    code = code if isinstance(code, str) else error.default_code
    return problem(error.status_code, code, str(error.detail), extra=extra), headers


def validation_problem(error: exceptions.ValidationError) -> dict[str, Any]:
    """A 400 whose ``errors`` names each field by its dotted path."""
    errors: dict[str, list[str]] = {}
    for path, message in _messages(error.detail, ()):
        errors.setdefault(".".join(path) or WHOLE_REQUEST, []).append(message)
    parts = [
        messages[0] if field == WHOLE_REQUEST else f"{field}: {messages[0]}"
        for field, messages in errors.items()
    ]
    return problem(400, "invalid", " ".join(parts[:5]), title="Invalid request", errors=errors)


def _messages(detail: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(detail, Mapping):
        for key, inner in detail.items():
            yield from _messages(inner, path if key == "non_field_errors" else (*path, str(key)))
    elif isinstance(detail, list):
        for position, inner in enumerate(detail):
            nested = isinstance(inner, Mapping | list)
            yield from _messages(inner, (*path, str(position)) if nested else path)
    else:
        yield path, str(detail)


# --- answers outside of views: unknown addresses, unreadable requests, defects ------------------------


#: Where programs call, in whichever process; elsewhere people read pages.
_FOR_PROGRAMS = ("/api/", "/agent/", "/stream/")


def _is_api(request: HttpRequest) -> bool:
    return request.path.startswith(_FOR_PROGRAMS)


def _plain_problem(status: int, code: str, detail: str) -> HttpResponse:
    return _plain_answer(problem(status, code, detail), status)


def _plain_answer(document: dict[str, Any], status: int) -> HttpResponse:
    return JsonResponse(document, status=status, content_type=MEDIA_TYPE)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _is_api(request) and isinstance(exception, RequestDataTooBig):
        return _plain_problem(413, "too_large", str(exception))
    if _is_api(request):
        return _plain_problem(400, "malformed", "The request cannot be read.")
    return defaults.bad_request(request, exception)


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _is_api(request):
        return _plain_problem(403, "not_allowed", "You may not do this.")
    return defaults.permission_denied(request, exception)


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _is_api(request):
        return _plain_problem(404, "not_found", f"There is nothing at {request.path}; see /api/v1/docs/.")
    return defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """Called while the exception is handled: that the database is away for a moment is no defect."""
    if isinstance(sys.exception(), OperationalError | InterfaceError):
        document = problem(503, "unavailable", DATABASE_AWAY)
        answer = _plain_answer(document, 503) if _is_api(request) else defaults.server_error(request)
        answer.status_code = 503
        answer["Retry-After"] = RETRY_AFTER_SECONDS
        return answer
    if _is_api(request):
        return _plain_problem(
            500, "defect", "Something went wrong on our side; the operators' log has the details."
        )
    return defaults.server_error(request)
