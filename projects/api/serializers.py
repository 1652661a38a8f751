"""Shapes of projects, members, quotas, tokens and problem documents."""

from __future__ import annotations

from typing import Any

from django.core.validators import RegexValidator
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from projects.api import fields
from projects.api.base import StrictSerializer
from projects.api.path_patterns import PROJECT_NAME
from projects.models import ApiToken, Invitation, Membership, Project, Quota, Role, Scope, User, UserQuota
from projects.selectors import memberships_shown_to, project_names, role_shown
from projects.services.members import QUOTA_FIELDS


class ProblemSerializer(serializers.Serializer):
    """An RFC 9457 problem document. Some carry further members, such as `broken_promises`."""

    type = serializers.CharField(help_text="`urn:punctual:problem:<code>`")
    title = serializers.CharField()
    status = serializers.IntegerField(min_value=400, max_value=599)
    detail = serializers.CharField(help_text="What is wrong and what would be right, for people.")
    code = serializers.CharField(help_text="Stable, for programs.")
    errors = serializers.DictField(  # type: ignore[assignment]
        child=serializers.ListField(child=serializers.CharField()),
        required=False,
        help_text="Messages by field; nested fields as `termination.target.metric`.",
    )
    retry_after_seconds = serializers.FloatField(required=False)


# --- logging in ---------------------------------------------------------------------------------------------


class LoginRequestSerializer(StrictSerializer):
    username = fields.Text(max_length=150)
    password = fields.Text(max_length=1000, trim_whitespace=False)
    token_name = fields.Name(max_length=100, default="login")


class LoginSerializer(serializers.Serializer):
    """A new token. No other answer contains it."""

    token = serializers.CharField()
    id = serializers.IntegerField(help_text="Names the token for rotation and revocation.")
    name = serializers.CharField()
    username = serializers.CharField()
    is_operator = serializers.BooleanField()
    expires_at = serializers.DateTimeField(allow_null=True)


class OwnRoleSerializer(serializers.ModelSerializer):
    name = serializers.CharField(source="project.name")

    class Meta:
        model = Membership
        fields = ("name", "role")


class TokenSerializer(serializers.ModelSerializer):
    """A token without its secret."""

    scopes = serializers.ListField(child=serializers.ChoiceField(Scope.choices))
    projects = serializers.SerializerMethodField(
        help_text="Projects that the token is limited to; null: all."
    )
    issued_by = serializers.IntegerField(
        source="issued_by_id",
        allow_null=True,
        help_text="The token that created it; null: a login or a session.",
    )

    class Meta:
        model = ApiToken
        fields = (
            "id", "name", "prefix", "created_at", "expires_at", "last_used_at", "scopes", "projects",
            "issued_by",
        )  # fmt: skip

    @extend_schema_field(serializers.ListField(child=serializers.CharField(), allow_null=True))
    def get_projects(self, token: ApiToken) -> list[str] | None:
        return None if token.project_ids is None else project_names(token.project_ids)


class MeSerializer(serializers.ModelSerializer):
    """The caller."""

    username = serializers.CharField(
        read_only=True, help_text="At most 150 letters and digits of any script, or @ . + - _"
    )
    is_operator = serializers.BooleanField(source="operates")
    projects = serializers.SerializerMethodField()
    token = TokenSerializer(source="acting_token", allow_null=True, help_text="The token of this request.")
    stream_url = serializers.SerializerMethodField(
        help_text="Address of the event streams; empty: not served."
    )

    class Meta:
        model = User
        fields = ("username", "is_operator", "projects", "stream_url", "token")

    @extend_schema_field(OwnRoleSerializer(many=True))
    def get_projects(self, user: User) -> Any:
        return OwnRoleSerializer(memberships_shown_to(user), many=True).data

    def get_stream_url(self, user: User) -> str:
        from django.conf import settings

        return settings.STREAM_URL


# --- tokens -------------------------------------------------------------------------------------------------


class IssuedTokenSerializer(TokenSerializer):
    """A token with its secret, which no other answer contains."""

    token = serializers.SerializerMethodField()

    class Meta:
        model = ApiToken
        fields = (*TokenSerializer.Meta.fields, "token")

    def get_token(self, token: ApiToken) -> str:
        return str(self.context["secret"])


class TokenRequestSerializer(StrictSerializer):
    name = fields.Name(max_length=100)
    expires_at = fields.Moment(
        allow_null=True,
        default=None,
        help_text=(
            "Null: never, or when the requesting token expires. No token outlives the token that created it."
        ),
    )
    scopes = serializers.ListField(
        child=serializers.ChoiceField(Scope.choices),
        allow_null=True,
        allow_empty=False,
        default=None,
        max_length=len(Scope.values),
        help_text="Scopes; null: those of the requesting token or session.",
    )
    projects = serializers.ListField(
        child=fields.Text(max_length=64),
        allow_null=True,
        allow_empty=False,
        default=None,
        max_length=100,
        help_text="Projects; null: all projects of the requesting token or session.",
    )


# --- projects -----------------------------------------------------------------------------------------------


class ProjectSerializer(serializers.ModelSerializer):
    """A project as the caller sees it."""

    role = serializers.SerializerMethodField(
        help_text="The caller's role; null for an operator who is no member."
    )

    class Meta:
        model = Project
        fields = ("name", "description", "created_at", "role", "archived_at")

    @extend_schema_field(serializers.ChoiceField(Role.choices, allow_null=True))
    def get_role(self, project: Project) -> str | None:
        return role_shown(self.context["request"].user, project)


class ProjectRequestSerializer(StrictSerializer):
    name = fields.Text(
        max_length=64,
        validators=[RegexValidator(f"^{PROJECT_NAME}$", "Letters, digits, hyphens and underscores only.")],
    )
    description = fields.Words(max_length=500, allow_blank=True, default="")


class ProjectPatchSerializer(StrictSerializer):
    description = fields.Words(max_length=500, allow_blank=True)


class MemberSerializer(serializers.ModelSerializer):
    username = serializers.CharField(source="user.username")

    class Meta:
        model = Membership
        fields = ("username", "role", "created_at")


class MemberRequestSerializer(StrictSerializer):
    username = fields.Name(max_length=150)
    role = serializers.ChoiceField(Role.choices, default=Role.MEMBER)


class InvitationSerializer(serializers.ModelSerializer):
    """An invitation to join a project. The answer does not reveal whether the name exists."""

    project = serializers.CharField(source="project.name")
    invited_by = serializers.CharField(source="invited_by.username", allow_null=True, default=None)

    class Meta:
        model = Invitation
        fields = ("id", "project", "username", "role", "invited_by", "created_at", "expires_at")


class ProjectFilterSerializer(StrictSerializer):
    archived = serializers.BooleanField(required=False, help_text="Archived projects instead of open ones.")


class RoleRequestSerializer(StrictSerializer):
    role = serializers.ChoiceField(Role.choices)


class QuotaSerializer(serializers.ModelSerializer):
    """Limits of a project; null: none."""

    class Meta:
        model = Quota
        fields = QUOTA_FIELDS
        extra_kwargs = {
            "deployments": {"help_text": "Deployments that have not stopped."},
            "deployment_servers": {"help_text": "Servers to which its deployments may grow together."},
        }


class UserQuotaSerializer(serializers.ModelSerializer):
    """Limits of the total use of a person's projects; null: none."""

    class Meta:
        model = UserQuota
        fields = ("projects", *QUOTA_FIELDS)
        extra_kwargs = QuotaSerializer.Meta.extra_kwargs


class QuotaPatchSerializer(StrictSerializer):
    """Only the given limits change; null removes a limit."""

    active_jobs = fields.Integer(min_value=0, max_value=2**31 - 1, allow_null=True, required=False)
    promised_gpu_hours = fields.Number(min_value=0, max_value=1e12, allow_null=True, required=False)
    profiling_seconds_per_day = fields.Number(min_value=0, max_value=1e9, allow_null=True, required=False)
    stored_bundle_bytes = fields.Integer(min_value=0, max_value=2**62, allow_null=True, required=False)
    deployments = fields.Integer(min_value=0, max_value=2**31 - 1, allow_null=True, required=False)
    deployment_servers = fields.Integer(min_value=0, max_value=2**31 - 1, allow_null=True, required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise serializers.ValidationError("Name at least one limit to change.")
        return attrs


class UserQuotaPatchSerializer(QuotaPatchSerializer):
    """Only the given limits change; null removes a limit."""

    projects = fields.Integer(min_value=0, max_value=2**31 - 1, allow_null=True, required=False)


# --- accounts -----------------------------------------------------------------------------------------------


class UserSerializer(serializers.ModelSerializer):
    """An account as operators see it."""

    username = serializers.CharField(
        read_only=True, help_text="At most 150 letters and digits of any script, or @ . + - _"
    )
    is_operator = serializers.SerializerMethodField()
    created_at = serializers.DateTimeField(source="date_joined")
    last_login = serializers.DateTimeField(
        allow_null=True,
        read_only=True,
        help_text="Last login at a page; each token has its own `last_used_at`.",
    )
    projects = OwnRoleSerializer(source="memberships", many=True, read_only=True)

    class Meta:
        model = User
        fields = ("username", "is_active", "is_operator", "created_at", "last_login", "projects")

    def get_is_operator(self, user: User) -> bool:
        return user.is_operator or user.is_superuser


class CreatedUserSerializer(UserSerializer):
    """A new account."""

    password = serializers.SerializerMethodField(
        help_text="The generated password, which no other answer contains; null if the request contained one."
    )

    class Meta:
        model = User
        fields = (*UserSerializer.Meta.fields, "password")

    def get_password(self, _user: User) -> str | None:
        password: str | None = self.context["password"]
        return password


class PasswordRequestSerializer(StrictSerializer):
    password = fields.Text(
        max_length=1000,
        trim_whitespace=False,
        allow_null=True,
        default=None,
        help_text="At least 8 characters, none of the common ones; null: one is generated.",
    )


class NewPasswordSerializer(serializers.Serializer):
    """The password that was set, where it was generated."""

    username = serializers.CharField()
    password = serializers.CharField(
        allow_null=True,
        help_text=(
            "The generated password, which no other answer contains; null if the request contained one."
        ),
    )


class ProjectRoleSerializer(StrictSerializer):
    name = fields.Text(max_length=64)
    role = serializers.ChoiceField(Role.choices, default=Role.MEMBER)


class UserRequestSerializer(PasswordRequestSerializer):
    username = fields.Name(max_length=150)
    is_operator = fields.Truth(default=False)
    projects = serializers.ListField(
        child=ProjectRoleSerializer(),
        default=list,
        max_length=100,
        help_text="Projects that the person becomes a member of, with the role in each.",
    )


class UserPatchSerializer(StrictSerializer):
    """Only the given fields change."""

    is_active = fields.Truth(required=False)
    is_operator = fields.Truth(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise serializers.ValidationError("Name at least one of is_active and is_operator.")
        return attrs
