"""Addresses of sessions, tokens and projects below /api/v1/."""

from django.urls import path

from projects.api import converters as _converters  # noqa: F401 - registers them
from projects.api import views

urlpatterns = [
    path("login/", views.LoginView.as_view(), name="login"),
    path("me/", views.MeView.as_view(), name="me"),
    path("tokens/", views.TokensView.as_view(), name="tokens"),
    path("tokens/<row:token_id>/", views.TokenView.as_view(), name="token"),
    path("tokens/<row:token_id>/rotate/", views.TokenRotateView.as_view(), name="token-rotate"),
    path("projects/", views.ProjectsView.as_view(), name="projects"),
    path("projects/<project:name>/", views.ProjectView.as_view(), name="project"),
    path("projects/<project:name>/members/", views.MembersView.as_view(), name="members"),
    path("projects/<project:name>/members/<username:username>/", views.MemberView.as_view(), name="member"),
    path("projects/<project:name>/quota/", views.QuotaView.as_view(), name="quota"),
]
