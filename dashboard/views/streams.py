"""Addresses of streams for pages, each with a ticket for opening it."""

from __future__ import annotations

from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse

from dashboard.views.access import data, person, stream_origin
from scheduling.selectors.scope.streams import job_is_visible
from streams import tickets


@data
def stream_address(request: HttpRequest) -> HttpResponse:
    """Return the address of the stream that `?stream=` names (`cluster`, `jobs/ID/events`, `jobs/ID/logs`),
    with a ticket for opening it."""
    stream = request.GET.get("stream", "")
    named = tickets.STREAM.fullmatch(stream)
    if named is None or (named["job_id"] and not job_is_visible(person(request), named["job_id"])):
        raise Http404("no such stream")
    query = urlencode({"ticket": tickets.issue(request, stream)})
    return JsonResponse({"address": f"{stream_origin(request)}/stream/{stream}?{query}"})
