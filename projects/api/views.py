"""Logging in, oneself, one's tokens; projects, their members and limits."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from projects import selectors, services
from projects.access import require_all_projects
from projects.api import serializers as shapes
from projects.api.base import ANY_TOKEN, ApiView
from projects.api.filters import read_filters
from projects.models import ApiToken, Membership, Project, Role, Scope, User


@extend_schema(tags=["session"])
class LoginView(ApiView):
    """Exchanging user name and password for a token."""

    authentication_classes: Any = ()
    permission_classes: Any = (AllowAny,)
    throttle_scopes = {"POST": "login"}
    remembers_answers = False

    @extend_schema(
        operation_id="login",
        summary="Log in",
        description="Exchanges user name and password for a token; attempts are throttled by address and by "
        "name.",
        request=shapes.LoginRequestSerializer,
        responses={201: shapes.LoginSerializer},
        examples=[
            OpenApiExample(
                "Log in",
                request_only=True,
                value={"username": "ada", "password": "correct horse", "token_name": "laptop"},
            )
        ],
    )
    def post(self, request: Request) -> Response:
        body = self.read(shapes.LoginRequestSerializer)
        user, token, secret = services.log_in(request=request._request, **body)
        answer = {
            "token": secret,
            "id": token.pk,
            "name": token.name,
            "username": user.username,
            "is_operator": user.operates(),
            "expires_at": token.expires_at,
        }
        return Response(shapes.LoginSerializer(answer).data, status=201)


@extend_schema(tags=["session"])
class MeView(ApiView):
    """The caller."""

    token_scopes = {"GET": ANY_TOKEN}

    @extend_schema(operation_id="me", summary="Who am I", responses=shapes.MeSerializer)
    def get(self, request: Request) -> Response:
        return Response(shapes.MeSerializer(self.user).data)


@extend_schema(tags=["tokens"])
class TokensView(ApiView):
    """The caller's tokens."""

    token_scopes = {"POST": Scope.MANAGE}
    queryset = ApiToken.objects.none()
    remembers_answers = False

    @extend_schema(
        operation_id="token_list", summary="List your tokens", responses=shapes.TokenSerializer(many=True)
    )
    def get(self, request: Request) -> Response:
        return self.page(selectors.tokens_of(self.user), shapes.TokenSerializer)

    @extend_schema(
        operation_id="token_create",
        summary="Create a token",
        description="No other answer contains the secret; hence `Idempotency-Key` is not supported.",
        request=shapes.TokenRequestSerializer,
        responses={201: shapes.IssuedTokenSerializer},
    )
    def post(self, request: Request) -> Response:
        token, secret = services.token_issue(user=self.user, **self.read(shapes.TokenRequestSerializer))
        return Response(shapes.IssuedTokenSerializer(token, context={"secret": secret}).data, status=201)


@extend_schema(tags=["tokens"])
class TokenView(ApiView):
    """One token. A token may revoke itself; revoking another token needs the scope `manage`."""

    token_scopes = {"DELETE": ANY_TOKEN}
    queryset = ApiToken.objects.none()

    @extend_schema(operation_id="token", summary="Show a token", responses=shapes.TokenSerializer)
    def get(self, request: Request, token_id: int) -> Response:
        return Response(shapes.TokenSerializer(selectors.token_get(self.user, token_id)).data)

    @extend_schema(operation_id="token_revoke", summary="Revoke a token", request=None, responses={204: None})
    def delete(self, request: Request, token_id: int) -> Response:
        services.token_revoke(token=selectors.token_get(self.user, token_id), actor=self.user)
        return Response(status=204)


@extend_schema(tags=["tokens"])
class TokenRotateView(ApiView):
    """A new secret for a token."""

    token_scopes = {"POST": ANY_TOKEN}
    queryset = ApiToken.objects.none()
    remembers_answers = False

    @extend_schema(
        operation_id="token_rotate",
        summary="Replace a token's secret",
        description="The old secret stops working at once. No other answer contains the new one.",
        request=None,
        responses={200: shapes.IssuedTokenSerializer},
    )
    def post(self, request: Request, token_id: int) -> Response:
        token, secret = services.token_rotate(token=selectors.token_get(self.user, token_id), actor=self.user)
        return Response(shapes.IssuedTokenSerializer(token, context={"secret": secret}).data)


@extend_schema(tags=["projects"])
class ProjectsView(ApiView):
    """The caller's projects (all of them, for an operator)."""

    token_scopes = {"POST": Scope.MANAGE}
    queryset = Project.objects.none()

    @extend_schema(
        operation_id="project_list",
        summary="List projects",
        parameters=[shapes.ProjectFilterSerializer],
        responses=shapes.ProjectSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        archived = read_filters(request, shapes.ProjectFilterSerializer).get("archived", False)
        rows = selectors.projects_for_list(self.user, archived=archived)
        return self.page(rows, shapes.ProjectSerializer)

    @extend_schema(
        operation_id="project_create",
        summary="Create a project",
        description="The creator becomes its owner.",
        request=shapes.ProjectRequestSerializer,
        responses={201: shapes.ProjectSerializer},
        examples=[
            OpenApiExample(
                "A project", request_only=True, value={"name": "vision", "description": "Image models."}
            )
        ],
    )
    def post(self, request: Request) -> Response:
        return self.idempotently(self._create)

    def _create(self) -> Response:
        require_all_projects(self.user)
        project = services.project_create(creator=self.user, **self.read(shapes.ProjectRequestSerializer))
        return Response(
            shapes.ProjectSerializer(project, context=self.get_serializer_context()).data, status=201
        )


@extend_schema(tags=["projects"])
class ProjectView(ApiView):
    """One project."""

    token_scopes = {"PATCH": Scope.MANAGE, "DELETE": Scope.MANAGE}
    queryset = Project.objects.none()

    @extend_schema(operation_id="project", summary="Show a project", responses=shapes.ProjectSerializer)
    def get(self, request: Request, name: str) -> Response:
        return self._answer(selectors.project_get(self.user, name))

    @extend_schema(
        operation_id="project_update",
        summary="Change a project's description (owner)",
        request=shapes.ProjectPatchSerializer,
        responses=shapes.ProjectSerializer,
    )
    def patch(self, request: Request, name: str) -> Response:
        project = selectors.project_get(self.user, name)
        body = self.read(shapes.ProjectPatchSerializer)
        return self._answer(services.project_update(project=project, actor=self.user, **body))

    @extend_schema(
        operation_id="project_delete",
        summary="Delete a project without jobs (owner)",
        description="With its functions, members and invitations. A project with jobs is archived instead: "
        "409.",
        request=None,
        responses={204: None},
    )
    def delete(self, request: Request, name: str) -> Response:
        services.project_delete(project=selectors.project_get(self.user, name), actor=self.user)
        return Response(status=204)

    def _answer(self, project: Project) -> Response:
        return Response(shapes.ProjectSerializer(project, context=self.get_serializer_context()).data)


@extend_schema(tags=["projects"])
class ProjectArchiveView(ApiView):
    """Closing a project."""

    token_scopes = {"POST": Scope.MANAGE}
    queryset = Project.objects.none()

    @extend_schema(
        operation_id="project_archive",
        summary="Archive a project (owner)",
        description="An archived project is read-only. 409 unless all of its jobs have finished.",
        request=None,
        responses=shapes.ProjectSerializer,
    )
    def post(self, request: Request, name: str) -> Response:
        project = services.project_archive(project=selectors.project_get(self.user, name), actor=self.user)
        return Response(shapes.ProjectSerializer(project, context=self.get_serializer_context()).data)


@extend_schema(tags=["projects"])
class ProjectRestoreView(ApiView):
    """Restoring a project."""

    token_scopes = {"POST": Scope.MANAGE}
    queryset = Project.objects.none()

    @extend_schema(
        operation_id="project_restore",
        summary="Restore an archived project (owner)",
        request=None,
        responses=shapes.ProjectSerializer,
    )
    def post(self, request: Request, name: str) -> Response:
        project = services.project_restore(project=selectors.project_get(self.user, name), actor=self.user)
        return Response(shapes.ProjectSerializer(project, context=self.get_serializer_context()).data)


@extend_schema(tags=["projects"])
class MembersView(ApiView):
    """A project's members."""

    token_scopes = {"POST": Scope.OPERATE}
    queryset = Membership.objects.none()

    @extend_schema(
        operation_id="member_list", summary="List members", responses=shapes.MemberSerializer(many=True)
    )
    def get(self, request: Request, name: str) -> Response:
        project = selectors.project_get(self.user, name)
        return self.page(selectors.project_members(project), shapes.MemberSerializer)

    @extend_schema(
        operation_id="member_add",
        summary="Add a member without asking (operator)",
        description="Owners invite people, who accept or decline.",
        request=shapes.MemberRequestSerializer,
        responses={201: shapes.MemberSerializer},
    )
    def post(self, request: Request, name: str) -> Response:
        return self.idempotently(lambda: self._add(name))

    def _add(self, name: str) -> Response:
        project = selectors.project_get(self.user, name)
        body = self.read(shapes.MemberRequestSerializer)
        membership = services.member_add(
            project=project, actor=self.user, username=body["username"], role=Role(body["role"])
        )
        return Response(shapes.MemberSerializer(membership).data, status=201)


@extend_schema(tags=["projects"])
class MemberView(ApiView):
    """One member."""

    token_scopes = {"PATCH": Scope.MANAGE, "DELETE": Scope.MANAGE}
    queryset = Membership.objects.none()

    @extend_schema(operation_id="member", summary="Show a member", responses=shapes.MemberSerializer)
    def get(self, request: Request, name: str, username: str) -> Response:
        return Response(shapes.MemberSerializer(self._membership(name, username)).data)

    @extend_schema(
        operation_id="member_update",
        summary="Change a member's role (owner)",
        request=shapes.RoleRequestSerializer,
        responses=shapes.MemberSerializer,
    )
    def patch(self, request: Request, name: str, username: str) -> Response:
        membership = self._membership(name, username)
        role = Role(self.read(shapes.RoleRequestSerializer)["role"])
        changed = services.member_change_role(membership=membership, actor=self.user, role=role)
        return Response(shapes.MemberSerializer(changed).data)

    @extend_schema(
        operation_id="member_remove",
        summary="Remove a member (owner), or leave",
        description="The last owner cannot leave.",
        request=None,
        responses={204: None},
    )
    def delete(self, request: Request, name: str, username: str) -> Response:
        services.member_remove(membership=self._membership(name, username), actor=self.user)
        return Response(status=204)

    def _membership(self, name: str, username: str) -> Membership:
        return selectors.membership_get(selectors.project_get(self.user, name), username)


@extend_schema(tags=["projects"])
class QuotaView(ApiView):
    """A project's limits."""

    token_scopes = {"PATCH": Scope.OPERATE}
    queryset = Project.objects.none()

    @extend_schema(operation_id="quota", summary="Show a project's limits", responses=shapes.QuotaSerializer)
    def get(self, request: Request, name: str) -> Response:
        project = selectors.project_get(self.user, name)
        return Response(shapes.QuotaSerializer(selectors.project_quota(project)).data)

    @extend_schema(
        operation_id="quota_update",
        summary="Change a project's limits (operator)",
        request=shapes.QuotaPatchSerializer,
        responses=OpenApiResponse(shapes.QuotaSerializer),
    )
    def patch(self, request: Request, name: str) -> Response:
        project = selectors.project_get(self.user, name)
        changes = self.read(shapes.QuotaPatchSerializer)
        quota = services.quota_update(project=project, actor=self.user, changes=changes)
        return Response(shapes.QuotaSerializer(quota).data)


@extend_schema(tags=["projects"])
class UserQuotaView(ApiView):
    """Limits of the total use of a person's projects."""

    token_scopes = {"PATCH": Scope.OPERATE}
    queryset = User.objects.none()

    @extend_schema(
        operation_id="user_quota",
        summary="Show a person's limits (oneself, operator)",
        responses=shapes.UserQuotaSerializer,
    )
    def get(self, request: Request, username: str) -> Response:
        user = selectors.user_get(self.user, username)
        return Response(shapes.UserQuotaSerializer(selectors.user_quota(user)).data)

    @extend_schema(
        operation_id="user_quota_update",
        summary="Change a person's limits (operator)",
        request=shapes.UserQuotaPatchSerializer,
        responses=OpenApiResponse(shapes.UserQuotaSerializer),
    )
    def patch(self, request: Request, username: str) -> Response:
        user = selectors.user_get(self.user, username)
        changes = self.read(shapes.UserQuotaPatchSerializer)
        quota = services.user_quota_update(user=user, actor=self.user, changes=changes)
        return Response(shapes.UserQuotaSerializer(quota).data)
