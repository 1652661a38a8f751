"""Read-only admin pages of studies and their runs; the pages and REST start and end them."""

from __future__ import annotations

from django.contrib import admin

from projects.read_only_admin import ReadOnlyAdmin
from simulation.models import SimulationRun, SimulationStudy


@admin.register(SimulationStudy)
class SimulationStudyAdmin(ReadOnlyAdmin):
    """A study's request. The live cluster's state is compressed bytes, so it is not shown."""

    list_display = ("id", "name", "source", "trace", "created_by", "created_at")
    list_filter = ("source",)
    search_fields = ("name", "trace")
    exclude = ("live_state",)


@admin.register(SimulationRun)
class SimulationRunAdmin(ReadOnlyAdmin):
    """State and result of each run."""

    list_display = ("id", "study", "policy", "servers", "inference_servers", "state", "jobs_ended", "error")
    list_filter = ("state", "policy")
    list_select_related = ("study",)
