"""Cursor pagination, newest first."""

from rest_framework.pagination import CursorPagination


class NewestFirstCursorPagination(CursorPagination):
    """Pages by primary key: stable while rows are added. ``page_size`` at most 200."""

    ordering = "-pk"
    page_size_query_param = "page_size"
    max_page_size = 200
