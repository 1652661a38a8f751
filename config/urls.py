"""URLs of the web process: the REST API, its documentation, the dashboard and the admin."""

from django.contrib import admin
from django.urls import include, path

from dashboard.views.login import admin_login
from deployments.api.metrics import DeploymentCollector
from lending.api.metrics import LendingCollector
from projects.api.health import healthz
from scheduling.api.metrics import MetricsView, PlatformCollector

urlpatterns = [
    path("api/v1/", include("config.urls_api")),
    path("healthz", healthz, name="healthz"),
    path(
        "metrics",
        MetricsView.as_view(collectors=(PlatformCollector, LendingCollector, DeploymentCollector)),
        name="metrics",
    ),
    # People have one login page, where password guesses are throttled.
    path("admin/login/", admin_login),
    path("admin/", admin.site.urls),
    path("", include("dashboard.urls")),
]

# Below /api/, every error is a problem document, wherever it is raised.
handler400 = "projects.api.problems.bad_request"
handler403 = "projects.api.problems.permission_denied"
handler404 = "projects.api.problems.page_not_found"
handler500 = "projects.api.problems.server_error"
