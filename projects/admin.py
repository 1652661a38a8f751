"""The admin's pages of people, projects and tokens."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as FrameworkUserAdmin
from django.http import HttpRequest

from projects.models import ApiToken, IdempotencyRecord, Membership, Project, Quota, User


@admin.register(User)
class UserAdmin(FrameworkUserAdmin):
    list_display = ("username", "email", "is_operator", "is_active", "last_login")
    list_filter = ("is_operator", "is_active", "is_superuser")
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
    list_display = ("name", "description", "created_at")
    search_fields = ("name",)
    inlines = (MembershipInline, QuotaInline)


@admin.register(ApiToken)
class ApiTokenAdmin(admin.ModelAdmin):
    """Tokens can be looked at and revoked here; a secret exists only in the answer that issued it."""

    list_display = ("name", "user", "prefix", "created_at", "expires_at", "last_used_at", "revoked_at")
    list_select_related = ("user",)
    search_fields = ("name", "user__username", "prefix")
    readonly_fields = ("user", "name", "prefix", "created_at", "last_used_at")
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
