"""URLs of the stream process. Agents' wake-ups have the same path prefix as the rest of their protocol."""

from django.urls import include, path

from streams.views import agent_wakeups

urlpatterns = [
    path("stream/", include("streams.urls")),
    path("agent/v1/wakeups", agent_wakeups),
]

# Every error is a problem document, wherever it is raised.
handler400 = "projects.api.problems.bad_request"
handler403 = "projects.api.problems.permission_denied"
handler404 = "projects.api.problems.page_not_found"
handler500 = "projects.api.problems.server_error"
