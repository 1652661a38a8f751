"""Whether a process answers and reaches its database: for load balancers and the supervisor, open to all."""

from __future__ import annotations

from django.db import connection
from django.db.utils import Error
from django.http import HttpRequest, HttpResponse


def healthz(request: HttpRequest) -> HttpResponse:
    """200 with ``ok``, or 503 while the database is away."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("select 1")
    except Error:
        return HttpResponse("database is away\n", status=503, content_type="text/plain")
    return HttpResponse("ok\n", content_type="text/plain")
