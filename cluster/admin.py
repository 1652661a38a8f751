"""The admin's pages of clusters, servers and agents."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

from cluster.models import (
    Agent,
    Cluster,
    EnrolmentToken,
    ForecasterTraining,
    Gpu,
    InferenceCluster,
    LendingEvent,
    LoanOrder,
    ReclaimedServer,
    ReclaimOrder,
    Server,
)


@admin.register(Cluster)
class ClusterAdmin(admin.ModelAdmin):
    """Operators' settings are changed here; what the planner keeps is only shown."""

    list_display = (
        "name",
        "policy",
        "slot_seconds",
        "reserve_servers",
        "epoch",
        "planning_version",
        "planned_version",
    )
    readonly_fields = (
        "planning_version", "planned_version", "replanned_at", "next_slot_at", "next_wake_at", "epoch",
        "planner_owner", "planner_lease_expires_at", "leases_checked_at", "leases_hold_until",
    )  # fmt: skip
    exclude = ("planner_token",)


class GpuInline(admin.TabularInline):
    model = Gpu
    extra = 0
    readonly_fields = ("index", "uuid", "kind", "memory_bytes", "emulated")
    can_delete = False


@admin.register(Server)
class ServerAdmin(admin.ModelAdmin):
    """State and drain are changed by agents' leases and by the API, which asks the promises first."""

    list_display = ("name", "cluster", "state", "drain", "whitelist", "address", "sandbox")
    list_select_related = ("cluster",)
    search_fields = ("name", "hostname")
    readonly_fields = (
        "cluster", "state", "state_changed_at", "drain", "desired_version", "port_next", "inference_cluster",
        "lending_state", "whitelist", "lending_changed_at",
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


class ReadOnlyAdmin(admin.ModelAdmin):
    """What only the platform itself writes."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(InferenceCluster)
class InferenceClusterAdmin(admin.ModelAdmin):
    """Operators' settings are changed here or by the API; its scheduler's credential is issued by the API
    alone."""

    list_display = ("name", "lending", "headroom_fraction", "forecaster", "asks_back_by_forecast")
    readonly_fields = ("name", "cluster", "created_at", "credential_issued_at")
    exclude = ("account", "credential_digest")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


class ReclaimedServerInline(admin.TabularInline):
    model = ReclaimedServer
    extra = 0
    can_delete = False

    def has_change_permission(self, request: HttpRequest, obj: ReclaimedServer | None = None) -> bool:
        return False


@admin.register(LoanOrder)
class LoanOrderAdmin(ReadOnlyAdmin):
    list_display = ("id", "inference_cluster", "source", "created_at", "state", "server_names")
    list_select_related = ("inference_cluster",)


@admin.register(ReclaimOrder)
class ReclaimOrderAdmin(ReadOnlyAdmin):
    list_display = ("id", "inference_cluster", "source", "created_at", "count", "wanted_by", "state")
    list_select_related = ("inference_cluster",)
    inlines = (ReclaimedServerInline,)


@admin.register(LendingEvent)
class LendingEventAdmin(ReadOnlyAdmin):
    list_display = ("happened_at", "inference_cluster", "kind", "message", "at_home", "on_loan", "reclaiming")
    list_select_related = ("inference_cluster",)


@admin.register(ForecasterTraining)
class ForecasterTrainingAdmin(ReadOnlyAdmin):
    list_display = ("id", "inference_cluster", "forecaster", "state", "created_at", "finished_at", "error")
    list_select_related = ("inference_cluster",)
    exclude = ("lease_token",)
