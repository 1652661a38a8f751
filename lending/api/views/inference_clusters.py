"""Inference clusters: for operators, and each for its own scheduler, which carries a credential of its
own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings

from cluster.models import Server
from lending.api import serializers as shapes
from lending.api.authentication import InferenceSchedulerAuthentication
from lending.models import ForecasterTraining, InferenceCluster, LendingEvent, UsageForecast, UsageSample
from lending.selectors.inference_clusters import (
    inference_cluster_get,
    inference_clusters,
    lending_events,
    servers_lendable,
    standing,
    training_get,
    trainings,
    usage_forecasts,
    usage_samples,
)
from lending.services.inference_clusters import (
    check_external_scheduler,
    credential_issue,
    inference_cluster_change,
    inference_cluster_create,
)
from lending.services.occupied import find_occupied_of
from lending.services.trainings import training_cancel, training_start
from lending.services.usage import usage_report
from projects.access import require_operator
from projects.api.base import OPERATORS_ALONE, ApiView
from projects.api.pagination import NewestFirstCursorPagination
from projects.errors import NotAllowed, NotFound


class LatestPeriodFirst(NewestFirstCursorPagination):
    """Usage and forecasts by their periods."""

    ordering = "-period_ends_at"
    max_page_size = 2016


class InferenceView(ApiView):
    """Base of views that operators and inference schedulers use."""

    token_scopes = OPERATORS_ALONE
    authentication_classes: Any = (
        InferenceSchedulerAuthentication,
        *api_settings.DEFAULT_AUTHENTICATION_CLASSES,
    )
    queryset: Any = InferenceCluster.objects.none()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if self.scheduler_of is None:
            require_operator(self.user)

    @property
    def scheduler_of(self) -> InferenceCluster | None:
        """The cluster whose scheduler asks; None for an operator."""
        return self.request.auth if isinstance(self.request.auth, InferenceCluster) else None

    @property
    def asker(self) -> str:
        """The name of the caller."""
        return self.user.username

    def require_human(self) -> None:
        """Let operators pass.

        Raises:
            NotAllowed: a scheduler asks.
        """
        if self.scheduler_of is not None:
            raise NotAllowed("Only operators of the cluster may do this.")

    def inference_cluster(self, name: str) -> InferenceCluster:
        """The cluster of that name.

        Raises:
            NotFound: there is none, or it is another scheduler's.
        """
        own = self.scheduler_of
        if own is None:
            return inference_cluster_get(name)
        if own.name != name:
            raise NotFound(f"There is no inference cluster called {name}.")
        return own


@extend_schema(tags=["inference"])
class InferenceClustersView(InferenceView):
    """All inference clusters."""

    @extend_schema(
        operation_id="inference_cluster_list",
        summary="List inference clusters (operator; a scheduler sees its own)",
        responses=shapes.InferenceClusterSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        rows = inference_clusters(only=self.scheduler_of)
        return self.page(rows, shapes.InferenceClusterSerializer)

    @extend_schema(
        operation_id="inference_cluster_create",
        summary="Make an inference cluster (operator)",
        description="Its servers are those whose agents enrol with a token for it.",
        request=shapes.InferenceClusterRequestSerializer,
        responses={201: shapes.InferenceClusterDetailSerializer},
    )
    def post(self, request: Request) -> Response:
        self.require_human()
        return self.idempotently(self._create)

    def _create(self) -> Response:
        body = self.read(shapes.InferenceClusterRequestSerializer)
        name = body.pop("name")
        made = inference_cluster_create(name=name, actor=self.user, settings=body)
        return _detail(made, 201)


@extend_schema(tags=["inference"])
class InferenceClusterView(InferenceView):
    """One inference cluster."""

    @extend_schema(
        operation_id="inference_cluster",
        summary="Show an inference cluster with its usage, forecast and loans",
        responses=shapes.InferenceClusterDetailSerializer,
    )
    def get(self, request: Request, inference_name: str) -> Response:
        return _detail(self.inference_cluster(inference_name))

    @extend_schema(
        operation_id="inference_cluster_update",
        summary="Change its settings, lending on or off among them (operator)",
        request=shapes.InferenceClusterPatchSerializer,
        responses=shapes.InferenceClusterDetailSerializer,
    )
    def patch(self, request: Request, inference_name: str) -> Response:
        self.require_human()
        found = self.inference_cluster(inference_name)
        changes = self.read(shapes.InferenceClusterPatchSerializer)
        return _detail(inference_cluster_change(inference_cluster=found, actor=self.user, changes=changes))


def _detail(inference_cluster: InferenceCluster, status: int = 200) -> Response:
    inference_cluster.standing = standing(inference_cluster)  # type: ignore[attr-defined]
    return Response(shapes.InferenceClusterDetailSerializer(inference_cluster).data, status=status)


@extend_schema(tags=["inference"])
class CredentialView(InferenceView):
    """The scheduler's credential."""

    remembers_answers = False

    @extend_schema(
        operation_id="inference_credential_create",
        summary="Issue the scheduler's credential (operator)",
        description=(
            "Gives access to this inference cluster alone. The previous credential stops working at once."
        ),
        request=None,
        responses={201: shapes.CredentialSerializer},
    )
    def post(self, request: Request, inference_name: str) -> Response:
        self.require_human()
        found = self.inference_cluster(inference_name)
        answer = {
            "credential": credential_issue(inference_cluster=found),
            "inference_cluster": found.name,
        }
        return Response(shapes.CredentialSerializer(answer).data, status=201)


@extend_schema(tags=["inference"])
class InferenceServersView(InferenceView):
    """Its servers."""

    queryset = Server.objects.none()
    _occupied: Collection[int] = ()

    @extend_schema(
        operation_id="inference_server_list",
        summary="List its servers, wherever they are",
        responses=shapes.InferenceServerSerializer(many=True),
    )
    def get(self, request: Request, inference_name: str) -> Response:
        found = self.inference_cluster(inference_name)
        self._occupied = find_occupied_of(found)
        return self.page(servers_lendable(found), shapes.InferenceServerSerializer)

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "occupied": self._occupied}


@extend_schema(tags=["inference"])
class UsageView(InferenceView):
    """Usage as its scheduler reported it."""

    queryset = UsageSample.objects.none()
    pagination_class = LatestPeriodFirst

    @extend_schema(
        operation_id="inference_usage_list",
        summary="List reported usage",
        responses=shapes.UsageSampleSerializer(many=True),
    )
    def get(self, request: Request, inference_name: str) -> Response:
        rows = usage_samples(self.inference_cluster(inference_name))
        return self.page(rows, shapes.UsageSampleSerializer)

    @extend_schema(
        operation_id="inference_usage_report",
        summary="Report usage",
        description="One or many periods; a period that is reported again is replaced.",
        request=shapes.UsageRequestSerializer,
        responses={200: shapes.UsageStoredSerializer},
    )
    def post(self, request: Request, inference_name: str) -> Response:
        found = self.inference_cluster(inference_name)
        return self.idempotently(lambda: self._report(found))

    def _report(self, inference_cluster: InferenceCluster) -> Response:
        samples = self.read(shapes.UsageRequestSerializer)["samples"]
        check_external_scheduler(inference_cluster)
        new = usage_report(inference_cluster=inference_cluster, samples=samples)
        return Response(shapes.UsageStoredSerializer({"stored": len(samples), "new": new}).data)


@extend_schema(tags=["inference"])
class ForecastsView(InferenceView):
    """Expected usage."""

    queryset = UsageForecast.objects.none()
    pagination_class = LatestPeriodFirst

    @extend_schema(
        operation_id="inference_forecast_list",
        summary="List forecasts of usage",
        responses=shapes.UsageForecastSerializer(many=True),
    )
    def get(self, request: Request, inference_name: str) -> Response:
        rows = usage_forecasts(self.inference_cluster(inference_name))
        return self.page(rows, shapes.UsageForecastSerializer)


@extend_schema(tags=["inference"])
class LendingEventsView(InferenceView):
    """History of its servers."""

    queryset = LendingEvent.objects.none()

    @extend_schema(
        operation_id="inference_event_list",
        summary="List what happened to its servers, newest first",
        responses=shapes.LendingEventSerializer(many=True),
    )
    def get(self, request: Request, inference_name: str) -> Response:
        rows = lending_events(self.inference_cluster(inference_name))
        return self.page(rows, shapes.LendingEventSerializer)


@extend_schema(tags=["inference"])
class TrainingsView(InferenceView):
    """Trainings of its forecasters."""

    queryset = ForecasterTraining.objects.none()

    @extend_schema(
        operation_id="forecaster_training_list",
        summary="List trainings of forecasters (operator)",
        responses=shapes.TrainingSerializer(many=True),
    )
    def get(self, request: Request, inference_name: str) -> Response:
        self.require_human()
        rows = trainings(self.inference_cluster(inference_name))
        return self.page(rows, shapes.TrainingSerializer)

    @extend_schema(
        operation_id="forecaster_training_create",
        summary="Train a forecaster now (operator)",
        description="They are trained every day anyway, once there are samples of three days.",
        request=shapes.TrainingRequestSerializer,
        responses={201: shapes.TrainingSerializer},
    )
    def post(self, request: Request, inference_name: str) -> Response:
        self.require_human()
        found = self.inference_cluster(inference_name)
        return self.idempotently(lambda: self._start(found))

    def _start(self, inference_cluster: InferenceCluster) -> Response:
        body = self.read(shapes.TrainingRequestSerializer)
        training = training_start(inference_cluster=inference_cluster, created_by=self.asker, **body)
        return Response(shapes.TrainingSerializer(training).data, status=201)


@extend_schema(tags=["inference"])
class TrainingCancelView(InferenceView):
    """Cancelling a training."""

    queryset = ForecasterTraining.objects.none()

    @extend_schema(
        operation_id="forecaster_training_cancel",
        summary="Cancel a training (operator)",
        description="A queued one at once, a running one at its next epoch. A finished one stays as it is.",
        request=None,
        responses={200: shapes.TrainingSerializer},
    )
    def post(self, request: Request, inference_name: str, training_id: int) -> Response:
        self.require_human()
        found = self.inference_cluster(inference_name)
        return self.idempotently(lambda: self._cancel(found, training_id))

    def _cancel(self, inference_cluster: InferenceCluster, training_id: int) -> Response:
        training = training_cancel(training=training_get(inference_cluster, training_id))
        return Response(shapes.TrainingSerializer(training).data)
