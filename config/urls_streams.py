"""URLs of the stream process. Agents find their wake-ups under the same path as the rest of their
protocol."""

from django.urls import include, path

from streams.views import agent_wakeups

urlpatterns = [
    path("stream/", include("streams.urls")),
    path("agent/v1/wakeups", agent_wakeups),
]

# For programs an error is a problem document wherever it arises.
handler400 = "projects.api.problems.bad_request"
handler403 = "projects.api.problems.permission_denied"
handler404 = "projects.api.problems.page_not_found"
handler500 = "projects.api.problems.server_error"
