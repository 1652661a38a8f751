"""URLs of the agent API."""

from django.urls import path

from scheduling.agents import views

urlpatterns = [
    path("enrol", views.enrol),
    path("report", views.report),
    path("desired", views.desired),
    path("functions/<str:digest>", views.function_bundle),
    path("environments/<str:digest>", views.environment),
]
