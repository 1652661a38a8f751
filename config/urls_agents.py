"""URLs of the agent API process."""

from django.urls import include, path

from projects.api.health import healthz

urlpatterns = [
    path("agent/v1/", include("scheduling.agents.urls")),
    path("healthz", healthz),
]

# Every error is a problem document, wherever it is raised.
handler400 = "projects.api.problems.bad_request"
handler403 = "projects.api.problems.permission_denied"
handler404 = "projects.api.problems.page_not_found"
handler500 = "projects.api.problems.server_error"
