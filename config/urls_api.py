"""The whole REST API below /api/v1/, with its OpenAPI document and an interactive page."""

from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

app_name = "api"
urlpatterns = [
    path("", include("projects.api.urls")),
    path("", include("scheduling.api.urls")),
    path("", include("lending.api.urls")),
    path("", include("deployments.api.urls")),
    path("", include("simulation.api.urls")),
    path("schema/", SpectacularAPIView.as_view(), name="schema"),
    path("docs/", SpectacularSwaggerSplitView.as_view(url_name="api:schema"), name="docs"),
]
