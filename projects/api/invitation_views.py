"""Invitations: owners ask, people answer."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from projects import selectors, services
from projects.access import require_role
from projects.api import serializers as shapes
from projects.api.base import ApiView
from projects.models import Invitation, Project, Role, Scope


@extend_schema(tags=["projects"])
class ProjectInvitationsView(ApiView):
    """Pending invitations of a project."""

    token_scopes = {"POST": Scope.MANAGE}
    throttle_scopes = {"POST": "invitations"}
    queryset = Invitation.objects.none()

    @extend_schema(
        operation_id="project_invitation_list",
        summary="List a project's invitations (owner)",
        responses=shapes.InvitationSerializer(many=True),
    )
    def get(self, request: Request, name: str) -> Response:
        return self.page(selectors.invitations_of(self._project(name)), shapes.InvitationSerializer)

    @extend_schema(
        operation_id="invitation_create",
        summary="Invite a person (owner)",
        description="The person becomes a member by accepting. The answer is the same whether the name "
        "exists or not.",
        request=shapes.MemberRequestSerializer,
        responses={201: shapes.InvitationSerializer},
        examples=[OpenApiExample("Invite", request_only=True, value={"username": "ada", "role": "member"})],
    )
    def post(self, request: Request, name: str) -> Response:
        return self.idempotently(lambda: self._create(name))

    def _create(self, name: str) -> Response:
        project = self._project(name)
        body = self.read(shapes.MemberRequestSerializer)
        made = services.invitation_create(
            project=project, actor=self.user, username=body["username"], role=Role(body["role"])
        )
        return Response(shapes.InvitationSerializer(made).data, status=201)

    def _project(self, name: str) -> Project:
        project = selectors.project_get(self.user, name)
        require_role(self.user, project, Role.OWNER)
        return project


@extend_schema(tags=["projects"])
class ProjectInvitationView(ApiView):
    """One invitation of a project."""

    token_scopes = {"DELETE": Scope.MANAGE}
    queryset = Invitation.objects.none()

    @extend_schema(
        operation_id="invitation_withdraw",
        summary="Withdraw an invitation (owner)",
        request=None,
        responses={204: None},
    )
    def delete(self, request: Request, name: str, invitation_id: int) -> Response:
        project = selectors.project_get(self.user, name)
        require_role(self.user, project, Role.OWNER)
        found = selectors.invitation_get(project, invitation_id)
        services.invitation_withdraw(invitation=found, actor=self.user)
        return Response(status=204)


@extend_schema(tags=["projects"])
class InvitationsView(ApiView):
    """Invitations that wait for the caller's answer."""

    queryset = Invitation.objects.none()

    @extend_schema(
        operation_id="invitation_list",
        summary="List your invitations",
        responses=shapes.InvitationSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        return self.page(selectors.invitations_for(self.user), shapes.InvitationSerializer)


class AnswerView(ApiView):
    """Base of views that answer an invitation."""

    queryset = Invitation.objects.none()

    def invitation(self, invitation_id: int) -> Invitation:
        """The caller's invitation.

        Raises:
            NotFound: there is none, or it belongs to another user.
        """
        return selectors.invitation_for(self.user, invitation_id)


@extend_schema(tags=["projects"])
class AcceptView(AnswerView):
    """Acceptance of an invitation."""

    token_scopes = {"POST": Scope.MANAGE}

    @extend_schema(
        operation_id="invitation_accept",
        summary="Accept an invitation",
        request=None,
        responses=shapes.MemberSerializer,
    )
    def post(self, request: Request, invitation_id: int) -> Response:
        membership = services.invitation_accept(invitation=self.invitation(invitation_id), person=self.user)
        return Response(shapes.MemberSerializer(membership).data)


@extend_schema(tags=["projects"])
class DeclineView(AnswerView):
    """Saying no."""

    token_scopes = {"POST": Scope.MANAGE}

    @extend_schema(
        operation_id="invitation_decline",
        summary="Decline an invitation",
        description="The project's owners are not notified.",
        request=None,
        responses={204: None},
    )
    def post(self, request: Request, invitation_id: int) -> Response:
        services.invitation_decline(invitation=self.invitation(invitation_id))
        return Response(status=204)
