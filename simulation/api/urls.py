"""Addresses of simulations below /api/v1/."""

from django.urls import path

from projects.api import converters as _converters  # noqa: F401 - registers them
from simulation.api import views

urlpatterns = [
    path("simulations/", views.StudiesView.as_view(), name="simulations"),
    path("simulations/choices/", views.ChoicesView.as_view(), name="simulation-choices"),
    path("simulations/<row:study_id>/", views.StudyView.as_view(), name="simulation"),
    path("simulations/<row:study_id>/cancel/", views.StudyCancelView.as_view(), name="simulation-cancel"),
    path("simulations/<row:study_id>/report/", views.ReportView.as_view(), name="simulation-report"),
    path(
        "simulations/<row:study_id>/runs/<row:run_id>/cancel/",
        views.RunCancelView.as_view(),
        name="simulation-run-cancel",
    ),
    path(
        "simulations/<row:study_id>/runs/<row:run_id>/results/<file:name>/",
        views.ResultView.as_view(),
        name="simulation-result",
    ),
]
