"""Cursor pagination: stable while rows are added."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError as DjangoValidationError
from django.db import DataError, transaction
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request
from rest_framework.views import APIView


class NewestFirstCursorPagination(CursorPagination):
    """Pages by primary key, newest first. ``page_size`` is at most 200."""

    ordering: Any = "-pk"
    page_size_query_param = "page_size"
    max_page_size: int = 200
    cursor_query_description = "Cursor of the page: `next` of the previous page holds it."

    def paginate_queryset(
        self, queryset: Any, request: Request, view: APIView | None = None
    ) -> list[Any] | None:
        # A cursor is a client's text: a made-up one must not look like a defect of ours.
        try:
            with transaction.atomic():
                return super().paginate_queryset(queryset, request, view)
        except (NotFound, ValueError, TypeError, OverflowError, DataError, DjangoValidationError) as error:
            raise ValidationError(
                {"cursor": ["Take the cursor from `next` of a page, unchanged."]}
            ) from error

    def get_page_size(self, request: Request) -> int | None:
        text = request.query_params.get(self.page_size_query_param)
        if text is None:
            return self.page_size
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= self.max_page_size):
            raise ValidationError({"page_size": [f"Must be a whole number from 1 to {self.max_page_size}."]})
        return int(text)

    def get_schema_operation_parameters(self, view: APIView) -> list[dict[str, Any]]:
        parameters = super().get_schema_operation_parameters(view)
        for parameter in parameters:
            if parameter["name"] == self.page_size_query_param:
                parameter["description"] = f"Rows per page; {self.page_size} by default."
                parameter["schema"] = {"type": "integer", "minimum": 1, "maximum": self.max_page_size}
        return parameters

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        link = {"type": ["string", "null"], "format": "uri"}
        return {
            "type": "object",
            "required": ["next", "previous", "results"],
            "properties": {"next": link, "previous": link, "results": schema},
        }


class LatestSubmittedFirst(NewestFirstCursorPagination):
    """Jobs, whose ids are random, by their time of submission."""

    ordering = ("-submitted_at", "-id")


class ByIteration(NewestFirstCursorPagination):
    """Metrics in the order of training."""

    ordering = ("iteration",)
    page_size = 1000
    max_page_size = 10_000
