"""The minimum cost of a submission: the same Django stack, authentication and parser, and one INSERT.

Served by gunicorn with `DJANGO_SETTINGS_MODULE=benchmarks.peers.insert_only`, as a peer for
benchmarks/scheduling/submissions.py.
"""

from __future__ import annotations

from typing import Any

from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from cluster.models import Cluster
from scheduling.models import FunctionVersion, Job


class InsertOnlyView(APIView):
    """Insert the job's row and nothing else."""

    def post(self, request: Request) -> Response:
        body: Any = request.data
        owner: Any = request.user
        version = FunctionVersion.objects.select_related("function").latest("id")
        job = Job.objects.create(
            project_id=version.function.project_id,
            owner=owner,
            cluster=Cluster.objects.get(),
            function_version=version,
            name=body["name"],
            hyperparameters=body["hyperparameters"],
            global_batch_size=body["hyperparameters"]["global_batch_size"],
            max_iterations=body["termination"]["max_iterations"],
            service_class="best_effort",
            # Invisible to the planner: this row is no work.
            state="cancelled",
            finished_at=version.created_at,
        )
        return Response({"id": job.pk}, status=201)


urlpatterns = [path("insert/", InsertOnlyView.as_view())]
