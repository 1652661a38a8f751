"""Admin pages of users, projects and tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin as FrameworkUserAdmin
from django.contrib.auth.forms import UserChangeForm
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest

from projects.errors import DomainError
from projects.models import ApiToken, IdempotencyRecord, Membership, Project, Quota, User, UserQuota
from projects.services import project_archive, project_delete, project_restore
from projects.services.users import is_last_operator


class UserQuotaInline(admin.StackedInline):
    model = UserQuota
    verbose_name = "limits of the person's projects in sum"


class AccountForm(UserChangeForm):
    """Django's form, which also keeps at least one active operator."""

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        operates = cleaned.get("is_active") and (cleaned.get("is_operator") or cleaned.get("is_superuser"))
        if not operates and is_last_operator(self.instance):
            raise ValidationError("This is the last active operator; make somebody else one first.")
        return cleaned


@admin.register(User)
class UserAdmin(FrameworkUserAdmin):
    form = AccountForm
    list_display = ("username", "email", "is_operator", "is_active", "last_login")
    list_filter = ("is_operator", "is_active", "is_superuser")
    inlines = (UserQuotaInline,)
    fieldsets = (*(FrameworkUserAdmin.fieldsets or ()), ("Cluster", {"fields": ("is_operator",)}))


class MembershipInline(admin.TabularInline):
    model = Membership
    extra = 0
    autocomplete_fields = ("user",)
    readonly_fields = ("created_at",)


class QuotaInline(admin.StackedInline):
    model = Quota


@admin.register(Project)
class ProjectAdmin(admin.ModelAdmin):
    """Projects are closed under the platform's rules: no archiving with unfinished jobs, no deletion with
    jobs."""

    list_display = ("name", "description", "created_by", "created_at", "archived_at")
    list_select_related = ("created_by",)
    list_filter = (("archived_at", admin.EmptyFieldListFilter),)
    search_fields = ("name",)
    readonly_fields = ("created_at", "archived_at")
    autocomplete_fields = ("created_by",)
    inlines = (MembershipInline, QuotaInline)
    actions = ("archive", "restore", "delete_without_jobs")

    def has_delete_permission(self, request: HttpRequest, obj: Project | None = None) -> bool:
        # The admin's own deletion cascades and would delete running jobs.
        return False

    @admin.action(description="Archive (no unfinished jobs)")
    def archive(self, request: HttpRequest, queryset: QuerySet[Project]) -> None:
        self._each(request, queryset, project_archive)

    @admin.action(description="Restore archived ones")
    def restore(self, request: HttpRequest, queryset: QuerySet[Project]) -> None:
        self._each(request, queryset, project_restore)

    @admin.action(description="Delete (no jobs at all)", permissions=["change"])
    def delete_without_jobs(self, request: HttpRequest, queryset: QuerySet[Project]) -> None:
        self._each(request, queryset, project_delete)

    def _each(
        self, request: HttpRequest, projects: QuerySet[Project], service: Callable[..., object]
    ) -> None:
        for project in projects:
            try:
                service(project=project, actor=request.user)
            except DomainError as error:
                self.message_user(request, error.detail, messages.ERROR)
            else:
                self.message_user(request, f"{project.name}: done.", messages.SUCCESS)


@admin.register(ApiToken)
class ApiTokenAdmin(admin.ModelAdmin):
    """Tokens can be viewed and revoked here. A secret exists only in the response that issued it."""

    list_display = ("name", "user", "prefix", "created_at", "expires_at", "last_used_at", "revoked_at")
    list_select_related = ("user",)
    search_fields = ("name", "user__username", "prefix")
    readonly_fields = ("user", "name", "prefix", "created_at", "last_used_at", "issued_by")
    exclude = ("digest",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(IdempotencyRecord)
class IdempotencyRecordAdmin(admin.ModelAdmin):
    list_display = ("key", "user", "created_at", "finished_at", "status_code")
    list_select_related = ("user",)
    readonly_fields = (
        "user",
        "key",
        "request_digest",
        "created_at",
        "finished_at",
        "status_code",
        "body",
        "headers",
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False
