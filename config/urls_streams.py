"""URLs of the stream process. Agents find their wake-ups under the same path as the rest of their protocol."""

from django.urls import include, path

from dashboard.streams.views import agent_wakeups

urlpatterns = [
    path("stream/", include("dashboard.streams.urls")),
    path("agent/v1/wakeups", agent_wakeups),
]
