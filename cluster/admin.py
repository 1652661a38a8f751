"""Admin pages of clusters, servers and agents."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest

from cluster.models import Agent, Cluster, EnrolmentToken, Gpu, Server


@admin.register(Cluster)
class ClusterAdmin(admin.ModelAdmin):
    """Operators' settings can be changed; fields that the planner writes are read-only."""

    list_display = (
        "name",
        "policy",
        "slot_seconds",
        "reserve_servers",
        "standby_servers",
        "epoch",
        "planning_version",
        "planned_version",
    )
    readonly_fields = (
        "planning_version", "planned_version", "replanned_at", "next_slot_at", "next_wake_at", "epoch",
        "planner_owner", "planner_lease_expires_at", "leases_checked_at", "leases_hold_until",
        "standby_tried_at", "standby_obstacle",
    )  # fmt: skip
    exclude = ("planner_token",)


class GpuInline(admin.TabularInline):
    model = Gpu
    extra = 0
    readonly_fields = ("index", "uuid", "kind", "memory_bytes", "emulated")
    can_delete = False


@admin.register(Server)
class ServerAdmin(admin.ModelAdmin):
    """State and drain are read-only: agents' leases and the API change them, and the API checks promises
    first."""

    list_display = ("name", "cluster", "state", "drain", "whitelist", "address", "sandbox")
    list_select_related = ("cluster",)
    search_fields = ("name", "hostname")
    readonly_fields = (
        "cluster", "state", "state_changed_at", "drain", "standby", "desired_version", "port_next",
        "inference_cluster", "lending_state", "whitelist", "lending_changed_at",
    )  # fmt: skip
    inlines = (GpuInline,)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(Agent)
class AgentAdmin(admin.ModelAdmin):
    list_display = ("server", "version", "enrolled_at", "last_report_at", "revoked_at", "fenced_at")
    list_select_related = ("server",)
    exclude = ("credential_digest",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Agent | None = None) -> bool:
        return False


@admin.register(EnrolmentToken)
class EnrolmentTokenAdmin(admin.ModelAdmin):
    list_display = ("server_name", "created_by", "created_at", "expires_at", "used_at")
    list_select_related = ("created_by",)
    exclude = ("digest",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: EnrolmentToken | None = None) -> bool:
        return False
