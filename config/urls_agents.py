"""URLs of the agent API process."""

from django.urls import include, path

from projects.api.health import healthz

urlpatterns = [
    path("agent/v1/", include("scheduling.agents.urls")),
    path("healthz", healthz),
]
