"""Admin pages of inference clusters, their orders and their forecasters."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest

from lending.models import (
    ForecasterTraining,
    InferenceCluster,
    LendingEvent,
    LoanOrder,
    ReclaimedServer,
    ReclaimOrder,
)
from projects.read_only_admin import ReadOnlyAdmin


@admin.register(InferenceCluster)
class InferenceClusterAdmin(admin.ModelAdmin):
    """Admin page of an inference cluster's settings. Only the REST API issues its scheduler's credential."""

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
