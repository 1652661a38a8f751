"""Accounts, for operators."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from projects import selectors, services
from projects.access import require_operator
from projects.api import serializers as shapes
from projects.api.base import OPERATORS_ALONE, ApiView
from projects.models import Role, User


class AccountsView(ApiView):
    """What operators alone may use."""

    token_scopes = OPERATORS_ALONE
    queryset = User.objects.none()

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        require_operator(self.user)


@extend_schema(tags=["users"])
class UsersView(AccountsView):
    """All accounts of people."""

    remembers_answers = False

    @extend_schema(
        operation_id="user_list",
        summary="List accounts (operator)",
        responses=shapes.UserSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        return self.page(selectors.accounts(), shapes.UserSerializer)

    @extend_schema(
        operation_id="user_create",
        summary="Create an account (operator)",
        description=(
            "Without a password one is generated. No other answer contains it; hence "
            "`Idempotency-Key` is not supported."
        ),
        request=shapes.UserRequestSerializer,
        responses={201: shapes.CreatedUserSerializer},
        examples=[
            OpenApiExample(
                "A member of a project",
                request_only=True,
                value={"username": "ada", "projects": [{"name": "vision", "role": "member"}]},
            )
        ],
    )
    def post(self, request: Request) -> Response:
        body = self.read(shapes.UserRequestSerializer)
        projects = [(entry["name"], Role(entry["role"])) for entry in body.pop("projects")]
        user, generated = services.user_create(actor=self.user, projects=projects, **body)
        shown = shapes.CreatedUserSerializer(user, context={"password": generated})
        return Response(shown.data, status=201)


@extend_schema(tags=["users"])
class UserView(AccountsView):
    """One account."""

    @extend_schema(operation_id="user", summary="Show an account (operator)", responses=shapes.UserSerializer)
    def get(self, request: Request, username: str) -> Response:
        return Response(shapes.UserSerializer(selectors.account_get(username)).data)

    @extend_schema(
        operation_id="user_update",
        summary="Disable or enable an account, make an operator (operator)",
        description="Sessions and tokens of a disabled account stop working at once; enabled, they work "
        "again. Its jobs go on. The last active operator stays one: 409.",
        request=shapes.UserPatchSerializer,
        responses=shapes.UserSerializer,
    )
    def patch(self, request: Request, username: str) -> Response:
        user = selectors.account_get(username)
        changed = services.user_update(user=user, actor=self.user, **self.read(shapes.UserPatchSerializer))
        return Response(shapes.UserSerializer(changed).data)


@extend_schema(tags=["users"])
class UserPasswordView(AccountsView):
    """Another password for an account."""

    remembers_answers = False

    @extend_schema(
        operation_id="user_password_reset",
        summary="Reset a password (operator)",
        description=(
            "Without a password one is generated, which no other answer contains. Sessions of the "
            "account end; its tokens stay valid."
        ),
        request=shapes.PasswordRequestSerializer,
        responses=shapes.NewPasswordSerializer,
    )
    def post(self, request: Request, username: str) -> Response:
        user = selectors.account_get(username)
        generated = services.password_reset(
            user=user, actor=self.user, **self.read(shapes.PasswordRequestSerializer)
        )
        return Response(shapes.NewPasswordSerializer({"username": user.username, "password": generated}).data)
