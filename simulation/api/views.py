"""Studies over REST: for operators, since the live cluster's jobs are those of all projects."""

from __future__ import annotations

from typing import Any

from django.http import FileResponse, HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from projects.access import require_operator
from projects.api.base import OPERATORS_ALONE, ApiView
from projects.api.filters import read_filters
from simulation.api import serializers as shapes
from simulation.api.examples import STUDY_EXAMPLES
from simulation.models import SimulationRun, SimulationStudy
from simulation.selectors.studies import (
    comparison_of,
    report_open,
    result_open,
    run_get,
    studies,
    study_get,
)
from simulation.services.ending_studies import run_cancel, study_cancel, study_delete


class OperatorsView(ApiView):
    """Base of views that are for operators alone."""

    token_scopes = OPERATORS_ALONE
    queryset: Any = SimulationStudy.objects.none()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        require_operator(self.user)


@extend_schema(tags=["simulations"])
class ChoicesView(OperatorsView):
    """What can be simulated."""

    @extend_schema(
        operation_id="simulation_choices",
        summary="List traces, policies and limits (operator)",
        responses=shapes.ChoicesSerializer,
    )
    def get(self, request: Request) -> Response:
        # Imported here, as below: the simulator takes more memory than all that most operators ask for.
        from simulation.selectors import choices

        traces, problem = choices.traces_offered()
        answer = {
            "policies": choices.policies_offered(),
            "traces": traces,
            "problem": problem,
            "live": choices.live_cluster(),
            "inference_usages": choices.usages_offered(),
            "borrowing_policies": choices.borrowing_policies(),
            "newcomers": choices.newcomers_offered(),
            "pricing_policies": choices.pricing_policies(),
            "reclaims": choices.reclaims_offered(),
            "forecasters": choices.forecasters_offered(),
            "limits": choices.limits(),
        }
        return Response(shapes.ChoicesSerializer(answer).data)


@extend_schema(tags=["simulations"])
class StudiesView(OperatorsView):
    """All studies."""

    @extend_schema(
        operation_id="simulation_list",
        summary="List studies (operator)",
        parameters=[shapes.StudyFilterSerializer],
        responses=shapes.StudySerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        source = read_filters(request, shapes.StudyFilterSerializer).get("source")
        return self.page(studies(source), shapes.StudySerializer)

    @extend_schema(
        operation_id="simulation_create",
        summary="Start a study (operator)",
        description=(
            "Simulates a trace, or the live cluster's unfinished jobs as they are now, under each policy on "
            "each number of servers, beside each number of inference servers that lend what they can spare, "
            "and with each rule for newcomers. The runs are queued; ask for the study to see how far they "
            "are."
        ),
        request=shapes.StudyRequestSerializer,
        responses={201: shapes.StudySerializer},
        examples=STUDY_EXAMPLES,
    )
    def post(self, request: Request) -> Response:
        return self.idempotently(self._start)

    def _start(self) -> Response:
        from simulation.services.asking import StudyRequest
        from simulation.services.studies import study_start

        body = self.read(shapes.StudyRequestSerializer)
        lists = {
            name: tuple(body[name]) for name in ("policies", "servers", "inference_servers", "newcomers")
        }
        asked = StudyRequest(**{**body, **lists})
        study = study_start(actor=self.user, request=asked)
        return Response(shapes.StudySerializer(study_get(study.pk)).data, status=201)


@extend_schema(tags=["simulations"])
class StudyView(OperatorsView):
    """One study."""

    @extend_schema(
        operation_id="simulation",
        summary="Show a study with the comparison of its finished runs (operator)",
        parameters=[shapes.DetailFilterSerializer],
        responses=shapes.StudyDetailSerializer,
    )
    def get(self, request: Request, study_id: int) -> Response:
        wanted = read_filters(request, shapes.DetailFilterSerializer)["comparison"]
        study = study_get(study_id)
        context = {**self.get_serializer_context(), "comparison": comparison_of(study) if wanted else None}
        return Response(shapes.StudyDetailSerializer(study, context=context).data)

    @extend_schema(
        operation_id="simulation_delete",
        summary="Delete a study with its files (operator)",
        description="Running runs stop.",
        responses={204: None},
    )
    def delete(self, request: Request, study_id: int) -> Response:
        study_delete(study=study_get(study_id))
        return Response(status=204)


@extend_schema(tags=["simulations"])
class StudyCancelView(OperatorsView):
    """Cancelling what is unfinished."""

    @extend_schema(
        operation_id="simulation_cancel",
        summary="Cancel a study's unfinished runs (operator)",
        description="Queued runs at once, others within a second. Finished ones keep their results.",
        request=None,
        responses={200: shapes.StudySerializer},
    )
    def post(self, request: Request, study_id: int) -> Response:
        return self.idempotently(lambda: self._cancel(study_id))

    def _cancel(self, study_id: int) -> Response:
        study_cancel(study=study_get(study_id))
        return Response(shapes.StudySerializer(study_get(study_id)).data)


@extend_schema(tags=["simulations"])
class RunCancelView(OperatorsView):
    """Cancelling one run."""

    queryset = SimulationRun.objects.none()

    @extend_schema(
        operation_id="simulation_run_cancel",
        summary="Cancel one run of a study (operator)",
        request=None,
        responses={200: shapes.FinishedRunSerializer},
    )
    def post(self, request: Request, study_id: int, run_id: int) -> Response:
        return self.idempotently(lambda: self._cancel(study_id, run_id))

    def _cancel(self, study_id: int, run_id: int) -> Response:
        run = run_cancel(run=run_get(study_id, run_id))
        return Response(shapes.FinishedRunSerializer(run).data)


@extend_schema(tags=["simulations"])
class ReportView(OperatorsView):
    """The comparison as one file."""

    @extend_schema(
        operation_id="simulation_report",
        summary="Download the HTML report of a study (operator)",
        description="One self-contained page for the finished runs.",
        responses={(200, "text/html"): OpenApiTypes.STR},
    )
    def get(self, request: Request, study_id: int) -> HttpResponse:
        study = study_get(study_id)
        # To be saved: as a page of this host its scripts would run with the reader's session.
        return HttpResponse(
            report_open(study),
            content_type="text/html",
            headers={"Content-Disposition": f'attachment; filename="simulation-{study.pk}.html"'},
        )


@extend_schema(tags=["simulations"])
class ResultView(OperatorsView):
    """A run's files."""

    queryset = SimulationRun.objects.none()

    @extend_schema(
        operation_id="simulation_result",
        summary="Download a Parquet file of a finished run (operator)",
        description="`jobs.parquet`, `cluster.parquet` or `allocations.parquet`; where servers were lent "
        "also `loans.parquet` and `reclaims.parquet`.",
        responses={(200, "application/vnd.apache.parquet"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, study_id: int, run_id: int, name: str) -> FileResponse:
        run = run_get(study_id, run_id)
        return FileResponse(
            result_open(run, name),
            as_attachment=True,
            filename=f"simulation-{study_id}-{run.policy}-{run.cluster().replace(' + ', '+')}-{name}",
            content_type="application/vnd.apache.parquet",
        )
