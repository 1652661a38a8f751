"""Functions and their versions, as the API reads and writes them."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from cluster.choices import WorkState
from projects.api.base import StrictSerializer
from scheduling.choices import EnvironmentState
from scheduling.models import FunctionVersion

_TOLD = {
    WorkState.QUEUED: EnvironmentState.PENDING,
    WorkState.RUNNING: EnvironmentState.BUILDING,
    WorkState.DONE: EnvironmentState.READY,
    WorkState.CANCELLED: EnvironmentState.FAILED,
    WorkState.FAILED: EnvironmentState.FAILED,
}


class BundleFileSerializer(serializers.Serializer):
    path = serializers.CharField()
    size_bytes = serializers.IntegerField()


class FunctionRequirementsSerializer(serializers.Serializer):
    """The function's `requirements.txt`: equal ones share an environment."""

    digest = serializers.CharField()
    state = serializers.ChoiceField(EnvironmentState.choices)


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
        work = getattr(version, "environment_state", None) or WorkState.QUEUED
        return {"digest": version.requirements_digest, "state": _TOLD[WorkState(work)]}


class ListedVersionSerializer(FunctionVersionSerializer):
    """One version among many: its files are told of it alone."""

    files = None  # type: ignore[assignment]

    class Meta(FunctionVersionSerializer.Meta):
        fields = (  # type: ignore[assignment]
            "id", "project", "name", "version", "digest", "entry", "description", "speed_neutral",
            "worker_counts", "size_bytes", "requirements", "created_by", "created_at",
        )  # fmt: skip


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
