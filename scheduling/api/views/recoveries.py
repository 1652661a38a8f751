"""A job's recoveries, and where its recovery points are now."""

from __future__ import annotations

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from projects.api.base import ApiView
from scheduling.api import recovery_serializers as shapes
from scheduling.models import Job, Recovery
from scheduling.selectors.jobs.jobs import job_get
from scheduling.selectors.recovery.memory_states import copy_traffic, durable_point, memory_state
from scheduling.selectors.recovery.recoveries import names_of_servers, recoveries_of


@extend_schema(tags=["job records"])
class RecoveriesView(ApiView):
    """What a job recovered from."""

    queryset = Recovery.objects.none()

    @extend_schema(
        operation_id="job_recoveries",
        summary="List a job's recoveries",
        description="Newest first: what failed, from where each rank took its state, how long each phase "
        "took.",
        responses=shapes.RecoverySerializer(many=True),
    )
    def get(self, request: Request, job_id: str) -> Response:
        found = self.paginate_queryset(recoveries_of(job_get(self.user, job_id))) or []
        context = {"servers": names_of_servers(found)}
        return self.get_paginated_response(shapes.RecoverySerializer(found, many=True, context=context).data)


@extend_schema(tags=["job records"])
class MemoryPointView(ApiView):
    """Where a job's state is kept."""

    queryset = Job.objects.none()
    pagination_class = None

    @extend_schema(
        operation_id="job_memory_point",
        summary="Show a job's newest recovery points",
        description="The newest in memory and the newest durable one, which server holds which ranks' "
        "shards, what the death of each server would cost now, and how copies are sent.",
        responses=shapes.MemoryPointSerializer,
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = job_get(self.user, job_id)
        found = shapes.memory_point(
            job, memory_state(job), durable_point(job), copy_traffic(job), timezone.now()
        )
        return Response(shapes.MemoryPointSerializer(found).data)
