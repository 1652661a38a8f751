"""Read-only admin pages of functions, jobs and decisions. Changes go through services, which keep
promises."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from projects.read_only_admin import ReadOnlyAdmin
from scheduling.models import (
    Decision,
    Environment,
    Function,
    FunctionVersion,
    Generation,
    Job,
    JobEvent,
    Offer,
    Recovery,
    ScalingCurve,
)


@admin.register(Function)
class FunctionAdmin(ReadOnlyAdmin):
    list_display = ("name", "project", "created_at")
    list_select_related = ("project",)
    search_fields = ("name", "project__name")


@admin.register(FunctionVersion)
class FunctionVersionAdmin(ReadOnlyAdmin):
    list_display = ("function", "number", "entry", "bundle_id", "created_by", "created_at")
    list_select_related = ("function", "created_by")


@admin.register(Environment)
class EnvironmentAdmin(ReadOnlyAdmin):
    list_display = ("digest", "state", "attempts", "size_bytes", "created_at", "finished_at")
    list_filter = ("state",)


@admin.register(ScalingCurve)
class ScalingCurveAdmin(ReadOnlyAdmin):
    list_display = ("key", "gpu_kind", "state", "complete", "measured_at")
    list_filter = ("state", "gpu_kind")


class GenerationInline(admin.TabularInline):
    model = Generation
    fields = (
        "number",
        "purpose",
        "state",
        "world_size",
        "live_at",
        "retired_at",
        "reason",
        "retired_because",
        "retire_reason",
    )
    extra = 0

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    list_display = (
        "id",
        "name",
        "project",
        "owner",
        "state",
        "service_class",
        "promised",
        "at_risk",
        "deadline_at",
    )
    list_select_related = ("project", "owner")
    list_filter = ("state", "service_class", "promised", "at_risk", "promise_outcome")
    search_fields = ("id", "name", "project__name", "owner__username")
    inlines = (GenerationInline,)


@admin.register(Recovery)
class RecoveryAdmin(ReadOnlyAdmin):
    list_display = (
        "job",
        "failed_generation",
        "kind",
        "outcome",
        "phase",
        "source",
        "detected_at",
        "ended_at",
    )
    list_filter = ("kind", "outcome", "source")
    list_select_related = ("job",)
    search_fields = ("job__id",)


@admin.register(JobEvent)
class JobEventAdmin(ReadOnlyAdmin):
    list_display = ("job", "happened_at", "kind", "message", "actor")
    list_select_related = ("job",)
    search_fields = ("job__id",)


@admin.register(Offer)
class OfferAdmin(ReadOnlyAdmin):
    list_display = ("job", "project", "deadline_at", "state", "valid_until", "accepted_job")
    list_select_related = ("job", "project", "accepted_job")


@admin.register(Decision)
class DecisionAdmin(ReadOnlyAdmin):
    list_display = ("id", "kind", "policy", "epoch", "decided_at", "trigger", "compute_seconds")
    exclude = ("snapshot", "jobs")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Decision]:
        return super().get_queryset(request).defer("snapshot")
