"""URLs of the web process: the REST API, its documentation, the dashboard and the admin."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("api/v1/", include("scheduling.api.root")),
    path("admin/", admin.site.urls),
    path("", include("dashboard.urls")),
]
