"""URLs of the agent API process."""

from django.urls import include, path

urlpatterns = [path("agent/v1/", include("scheduling.agents.urls"))]
