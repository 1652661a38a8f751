"""URLs of the stream process."""

from django.urls import include, path

urlpatterns = [path("stream/", include("dashboard.streams.urls"))]
