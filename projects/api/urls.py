"""Addresses of sessions, tokens and projects below /api/v1/."""

from django.urls import path

from projects.api import converters as _converters  # noqa: F401 - registers them
from projects.api import invitation_views, user_views, views

urlpatterns = [
    path("login/", views.LoginView.as_view(), name="login"),
    path("me/", views.MeView.as_view(), name="me"),
    path("tokens/", views.TokensView.as_view(), name="tokens"),
    path("tokens/<row:token_id>/", views.TokenView.as_view(), name="token"),
    path("tokens/<row:token_id>/rotate/", views.TokenRotateView.as_view(), name="token-rotate"),
    path("projects/", views.ProjectsView.as_view(), name="projects"),
    path("projects/<project:name>/", views.ProjectView.as_view(), name="project"),
    path("projects/<project:name>/archive/", views.ProjectArchiveView.as_view(), name="project-archive"),
    path("projects/<project:name>/restore/", views.ProjectRestoreView.as_view(), name="project-restore"),
    path(
        "projects/<project:name>/invitations/",
        invitation_views.ProjectInvitationsView.as_view(),
        name="project-invitations",
    ),
    path(
        "projects/<project:name>/invitations/<row:invitation_id>/",
        invitation_views.ProjectInvitationView.as_view(),
        name="project-invitation",
    ),
    path("invitations/", invitation_views.InvitationsView.as_view(), name="invitations"),
    path(
        "invitations/<row:invitation_id>/accept/",
        invitation_views.AcceptView.as_view(),
        name="invitation-accept",
    ),
    path(
        "invitations/<row:invitation_id>/decline/",
        invitation_views.DeclineView.as_view(),
        name="invitation-decline",
    ),
    path("users/", user_views.UsersView.as_view(), name="users"),
    path("users/<username:username>/", user_views.UserView.as_view(), name="user"),
    path("users/<username:username>/password/", user_views.UserPasswordView.as_view(), name="user-password"),
    path("users/<username:username>/quota/", views.UserQuotaView.as_view(), name="user-quota"),
    path("projects/<project:name>/members/", views.MembersView.as_view(), name="members"),
    path("projects/<project:name>/members/<username:username>/", views.MemberView.as_view(), name="member"),
    path("projects/<project:name>/quota/", views.QuotaView.as_view(), name="quota"),
]
