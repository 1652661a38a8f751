"""Read-only admin pages of deployments, which are changed by the API and the dashboard."""

from __future__ import annotations

from django.contrib import admin

from deployments.models import Deployment, DeploymentEvent, DeploymentToken, Replica
from projects.read_only_admin import ReadOnlyAdmin


@admin.register(Deployment)
class DeploymentAdmin(ReadOnlyAdmin):
    list_display = ("id", "name", "project", "state", "generation", "wanted_servers", "created_at")
    list_filter = ("state",)
    list_select_related = ("project",)
    search_fields = ("id", "name")


@admin.register(Replica)
class ReplicaAdmin(ReadOnlyAdmin):
    list_display = ("key", "deployment", "server", "gpu", "state", "phase", "created_at")
    list_filter = ("state",)
    list_select_related = ("deployment", "server", "gpu")
    exclude = ("secret",)


@admin.register(DeploymentToken)
class DeploymentTokenAdmin(ReadOnlyAdmin):
    list_display = ("id", "deployment", "name", "created_at", "revoked_at")
    list_select_related = ("deployment",)
    exclude = ("digest",)


@admin.register(DeploymentEvent)
class DeploymentEventAdmin(ReadOnlyAdmin):
    list_display = ("happened_at", "deployment", "kind", "message", "actor")
    list_select_related = ("deployment",)
