"""What was seen of a job: events, metrics, logs, checkpoints, artifacts, plan and curve."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from django.http import StreamingHttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from projects.api.base import ApiView, StrictSerializer
from projects.api.filters import read_filters
from projects.api.pagination import ByIteration
from scheduling.api import job_serializers as shapes
from scheduling.api.communication_serializers import CommunicationSerializer
from scheduling.api.expert_serializers import ExpertsSerializer
from scheduling.choices import CurveState
from scheduling.core.runtime_plans.choosing import choose_plan_family
from scheduling.models import Artifact, Checkpoint, JobEvent, JobMetric
from scheduling.selectors.jobs.artifacts import artifact_get, artifact_open, artifacts_of, pieces
from scheduling.selectors.jobs.experts import experts_of
from scheduling.selectors.jobs.job_times import planned_finish_at, planned_pieces
from scheduling.selectors.jobs.jobs import is_emulated_kind, job_get, training_history
from scheduling.selectors.jobs.logs import log_page, log_tail
from scheduling.selectors.jobs.records import checkpoints_of, events_of, metrics_of
from scheduling.selectors.jobs.scaling_curve import curve_levels
from scheduling.selectors.network.communication import communication_of
from scheduling.selectors.scope.hiding import mask_for

LARGEST_ID = 2**62


class MetricFilterSerializer(StrictSerializer):
    after_iteration = serializers.IntegerField(required=False, min_value=0, max_value=LARGEST_ID)
    names = serializers.CharField(
        required=False, max_length=2000, help_text="Only these values, separated by commas."
    )


class LogFilterSerializer(StrictSerializer):
    rank = serializers.IntegerField(required=False, min_value=0, max_value=2**31 - 1)
    after = serializers.IntegerField(required=False, default=0, min_value=0, max_value=LARGEST_ID)
    tail = serializers.IntegerField(
        required=False, min_value=1, max_value=10_000, help_text="Return only this many of the last lines."
    )


@extend_schema(tags=["job records"])
class EventsView(ApiView):
    """A job's history."""

    queryset = JobEvent.objects.none()

    @extend_schema(
        operation_id="job_events",
        summary="List a job's events",
        description="Newest first; live on the stream server under `/stream/jobs/{id}/events`.",
        responses=shapes.EventSerializer(many=True),
    )
    def get(self, request: Request, job_id: str) -> Response:
        found = self.paginate_queryset(events_of(job_get(self.user, job_id))) or []
        context = {"mask": mask_for(self.user, [event.message for event in found])}
        return self.get_paginated_response(shapes.EventSerializer(found, many=True, context=context).data)


@extend_schema(tags=["job records"])
class JobMetricsView(ApiView):
    """What the function reported."""

    queryset = JobMetric.objects.none()
    pagination_class = ByIteration
    names: frozenset[str] = frozenset()

    @extend_schema(
        operation_id="job_metrics",
        summary="List a job's metrics",
        description="By iteration. Where an iteration was trained again, the latest generation counts.",
        parameters=[MetricFilterSerializer],
        responses=shapes.MetricSerializer(many=True),
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = job_get(self.user, job_id)
        filters = read_filters(request, MetricFilterSerializer)
        rows = metrics_of(job, after_iteration=filters.get("after_iteration"))
        self.names = frozenset(name for name in filters.get("names", "").split(",") if name)
        return self.page(rows, shapes.MetricSerializer)

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "names": self.names}


@extend_schema(tags=["job records"])
class LogsView(ApiView):
    """The workers' output."""

    queryset = JobEvent.objects.none()
    pagination_class = None

    @extend_schema(
        operation_id="job_logs",
        summary="Read a job's logs",
        description="In order; live on the stream server under `/stream/jobs/{id}/logs?after=…`.",
        parameters=[LogFilterSerializer],
        responses=shapes.LogPageSerializer,
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = job_get(self.user, job_id)
        filters = read_filters(request, LogFilterSerializer)
        rank, after = filters.get("rank"), filters["after"]
        if "tail" in filters:
            page = log_tail(job, lines=filters["tail"], after=after, rank=rank)
        else:
            page = log_page(job, after=after, rank=rank)
        return Response(shapes.LogPageSerializer(page).data)


@extend_schema(tags=["job records"])
class CheckpointsView(ApiView):
    """Durable states of a job."""

    queryset = Checkpoint.objects.none()

    @extend_schema(
        operation_id="job_checkpoints",
        summary="List a job's checkpoints",
        responses=shapes.CheckpointSerializer(many=True),
    )
    def get(self, request: Request, job_id: str) -> Response:
        return self.page(checkpoints_of(job_get(self.user, job_id)), shapes.CheckpointSerializer)


@extend_schema(tags=["job records"])
class ArtifactsView(ApiView):
    """Files that a job left."""

    queryset = Artifact.objects.none()

    @extend_schema(
        operation_id="job_artifacts",
        summary="List a job's artifacts",
        responses=shapes.ArtifactSerializer(many=True),
    )
    def get(self, request: Request, job_id: str) -> Response:
        return self.page(artifacts_of(job_get(self.user, job_id)), shapes.ArtifactSerializer)


@extend_schema(tags=["job records"])
class ArtifactView(ApiView):
    """One file."""

    queryset = Artifact.objects.none()

    @extend_schema(
        operation_id="job_artifact",
        summary="Download an artifact",
        description="`X-Content-SHA256` holds the digest of the bytes that were stored.",
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, job_id: str, name: str) -> StreamingHttpResponse:
        artifact = artifact_get(job_get(self.user, job_id), name)
        opened, size = artifact_open(artifact)
        return StreamingHttpResponse(
            pieces(opened),
            content_type="application/octet-stream",
            headers={
                "Content-Length": str(size),
                "Content-Disposition": f"attachment; filename*=UTF-8''{quote(artifact.name, safe='')}",
                "X-Content-SHA256": artifact.sha256,
            },
        )


@extend_schema(tags=["job records"])
class PlanView(ApiView):
    """GPUs over time."""

    queryset = JobEvent.objects.none()

    @extend_schema(
        operation_id="job_plan",
        summary="Show planned and actual GPUs over time",
        responses=shapes.PlanSerializer,
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = job_get(self.user, job_id)
        now = timezone.now()
        planned = [] if job.finished() else [piece for piece in planned_pieces(job) if piece.end > now]
        answer = {
            "planned": planned,
            "finish_at": None if job.finished() else planned_finish_at(job),
            "actual": training_history(job),
        }
        return Response(shapes.PlanSerializer(answer).data)


@extend_schema(tags=["job records"])
class CurveView(ApiView):
    """Speed by number of GPUs."""

    queryset = JobEvent.objects.none()

    @extend_schema(
        operation_id="job_curve",
        summary="Show a job's scaling curve",
        responses=shapes.CurveSerializer,
    )
    def get(self, request: Request, job_id: str) -> Response:
        curve = job_get(self.user, job_id).curve
        kind = curve.gpu_kind if curve else None
        answer = {
            "gpu_kind": kind,
            "emulated": kind is not None and is_emulated_kind(kind),
            "plan_family": curve.plan_family if curve else choose_plan_family(),
            "state": curve.state if curve else CurveState.UNKNOWN,
            "complete": curve.complete if curve else False,
            "failure": curve.failure if curve else "",
            "measured_at": curve.measured_at if curve else None,
            "levels": curve_levels(curve) if curve else [],
        }
        return Response(shapes.CurveSerializer(answer).data)


@extend_schema(tags=["job records"])
class CommunicationView(ApiView):
    """How the job's gradients are sent."""

    queryset = JobEvent.objects.none()

    @extend_schema(
        operation_id="job_communication",
        summary="Show how a job's gradients are sent",
        responses=CommunicationSerializer,
    )
    def get(self, request: Request, job_id: str) -> Response:
        return Response(CommunicationSerializer(communication_of(job_get(self.user, job_id))).data)


@extend_schema(tags=["job records"])
class ExpertsView(ApiView):
    """Mixture-of-experts layers."""

    queryset = JobEvent.objects.none()

    @extend_schema(
        operation_id="job_experts",
        summary="Show how a job's experts are used, and where they live",
        responses=ExpertsSerializer,
    )
    def get(self, request: Request, job_id: str) -> Response:
        return Response(ExpertsSerializer(experts_of(job_get(self.user, job_id))).data)
