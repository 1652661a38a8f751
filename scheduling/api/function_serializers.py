"""Functions and their versions, as the API reads and writes them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from cluster.choices import WorkState
from projects.api.base import StrictSerializer
from scheduling.choices import EnvironmentState
from scheduling.models import FunctionVersion
from scheduling.selectors.jobs.environments import BuildQueue

_TOLD = {
    WorkState.QUEUED: EnvironmentState.PENDING,
    WorkState.RUNNING: EnvironmentState.BUILDING,
    WorkState.DONE: EnvironmentState.READY,
    WorkState.CANCELLED: EnvironmentState.CANCELLED,
    WorkState.FAILED: EnvironmentState.FAILED,
}


class BundleFileSerializer(serializers.Serializer):
    path = serializers.CharField()
    size_bytes = serializers.IntegerField()


class ListedRequirementsSerializer(serializers.Serializer):
    """The function's `requirements.txt`: equal ones share an environment."""

    digest = serializers.CharField()
    state = serializers.ChoiceField(EnvironmentState.choices)
    builds_before = serializers.IntegerField(
        allow_null=True,
        help_text="While `pending`: number of builds that go before, including running ones.",
    )
    building_since = serializers.DateTimeField(allow_null=True, help_text="While `building`: since when.")


class FunctionRequirementsSerializer(ListedRequirementsSerializer):
    """The function's `requirements.txt`, with what its installer printed."""

    error = serializers.CharField(help_text="Once `failed` or `cancelled`: why.")
    log = serializers.CharField(
        help_text="What the installer printed: the last 2,000 characters while `building`, then all (20,000)."
    )


class FunctionVersionSerializer(serializers.ModelSerializer):
    """One immutable version of a function. `id` is the function's, `version` counts from 1."""

    id = serializers.IntegerField(source="function_id")
    project = serializers.CharField(source="function.project.name")
    name = serializers.CharField(source="function.name")
    version = serializers.IntegerField(source="number")
    digest = serializers.CharField(source="bundle_id", help_text="SHA-256 of the bundle's bytes.")
    speed_neutral = serializers.ListField(
        child=serializers.CharField(), help_text="Hyperparameters that do not change its speed."
    )
    worker_counts = serializers.ListField(
        child=serializers.IntegerField(), help_text="Numbers of workers it runs on; empty: powers of two."
    )
    size_bytes = serializers.IntegerField()
    requirements = serializers.SerializerMethodField()
    files = BundleFileSerializer(many=True)
    created_by = serializers.CharField(source="created_by.username", allow_null=True, default=None)

    class Meta:
        model = FunctionVersion
        fields = (
            "id", "project", "name", "version", "digest", "entry", "description", "speed_neutral",
            "worker_counts", "size_bytes", "requirements", "files", "created_by", "created_at",
        )  # fmt: skip

    @extend_schema_field(FunctionRequirementsSerializer(allow_null=True))
    def get_requirements(self, version: FunctionVersion) -> dict[str, Any] | None:
        if not version.requirements_digest:
            return None
        return {
            **self.listed_requirements(version),
            "error": getattr(version, "environment_error", None) or "",
            "log": getattr(version, "environment_log", None) or "",
        }

    def listed_requirements(self, version: FunctionVersion) -> dict[str, Any]:
        """What is said of the requirements of one version among many."""
        digest = version.requirements_digest
        work = WorkState(getattr(version, "environment_state", None) or WorkState.QUEUED)
        is_running = work == WorkState.RUNNING
        return {
            "digest": digest,
            "state": _TOLD[work],
            "builds_before": self._queue.builds_before(digest) if work == WorkState.QUEUED else None,
            "building_since": getattr(version, "environment_started_at", None) if is_running else None,
        }

    @cached_property
    def _queue(self) -> BuildQueue:
        """The queue, read once for all versions of an answer."""
        return BuildQueue()


class ListedVersionSerializer(FunctionVersionSerializer):
    """One version of a function; its files are listed with the version alone."""

    files = None  # type: ignore[assignment]
    requirements = serializers.SerializerMethodField(method_name="get_listed_requirements")

    class Meta(FunctionVersionSerializer.Meta):
        fields = (  # type: ignore[assignment]
            "id", "project", "name", "version", "digest", "entry", "description", "speed_neutral",
            "worker_counts", "size_bytes", "requirements", "created_by", "created_at",
        )  # fmt: skip

    @extend_schema_field(ListedRequirementsSerializer(allow_null=True))
    def get_listed_requirements(self, version: FunctionVersion) -> dict[str, Any] | None:
        return self.listed_requirements(version) if version.requirements_digest else None


class UploadSerializer(StrictSerializer):
    """A bundle with the name of the function it is a version of."""

    project = serializers.CharField(max_length=64)
    name = serializers.SlugField(max_length=100)
    bundle = serializers.FileField(allow_empty_file=True, help_text="One .py file, or a zip.")
    entry = serializers.CharField(
        max_length=200, required=False, help_text="`module:Class`, where several classes could be meant."
    )


class FunctionFilterSerializer(StrictSerializer):
    project = serializers.CharField(max_length=64, required=False)
    name = serializers.CharField(max_length=100, required=False)
