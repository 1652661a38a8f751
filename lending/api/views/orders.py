"""Orders to lend servers and to give them back. The id is the client's: an order that is sent again is
answered with itself."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from lending.api import serializers as shapes
from lending.api.views.inference_clusters import InferenceView
from lending.choices import OrderSource
from lending.models import InferenceCluster, LoanOrder, ReclaimOrder
from lending.selectors.inference_clusters import (
    loan_order_get,
    loan_orders,
    reclaim_order_get,
    reclaim_orders,
)
from lending.services.inference_clusters import check_external_scheduler
from lending.services.loans import loan_order_create
from lending.services.reclaiming import reclaim_confirm, reclaim_order_create
from projects.api.pagination import NewestFirstCursorPagination


class LatestOrderFirst(NewestFirstCursorPagination):
    """Orders, whose ids say nothing about time."""

    ordering = ("-created_at", "-id")


class OrdersView(InferenceView):
    """Base of views of orders."""

    pagination_class = LatestOrderFirst

    def source(self, inference_cluster: InferenceCluster) -> OrderSource:
        """Return the issuer of the order.

        Raises:
            Conflict: an external scheduler gives it, and deployments schedule the cluster.
        """
        if self.scheduler_of is not None:
            check_external_scheduler(inference_cluster)
        return OrderSource.OPERATOR if self.scheduler_of is None else OrderSource.SCHEDULER


@extend_schema(tags=["inference"])
class LoanOrdersView(OrdersView):
    """Offers of servers."""

    queryset = LoanOrder.objects.none()

    @extend_schema(
        operation_id="loan_order_list",
        summary="List loan orders",
        responses=shapes.LoanOrderSerializer(many=True),
    )
    def get(self, request: Request, inference_name: str) -> Response:
        rows = loan_orders(self.inference_cluster(inference_name))
        return self.page(rows, shapes.LoanOrderSerializer)

    @extend_schema(
        operation_id="loan_order_create",
        summary="Offer servers to training",
        description=(
            "Either all servers are lent or none. 201 for a new order, 200 for a repeated one. "
            "The order is `pending` at first and `done` within seconds, unless one of the servers "
            "returned too recently."
        ),
        request=shapes.LoanRequestSerializer,
        responses={200: shapes.LoanOrderSerializer, 201: shapes.LoanOrderSerializer},
    )
    def post(self, request: Request, inference_name: str) -> Response:
        found = self.inference_cluster(inference_name)
        return self.idempotently(lambda: self._create(found))

    def _create(self, inference_cluster: InferenceCluster) -> Response:
        body = self.read(shapes.LoanRequestSerializer)
        order, is_new = loan_order_create(
            inference_cluster=inference_cluster,
            order_id=body["id"],
            server_names=body["servers"],
            source=self.source(inference_cluster),
            created_by=self.asker,
        )
        return Response(shapes.LoanOrderSerializer(order).data, status=201 if is_new else 200)


@extend_schema(tags=["inference"])
class LoanOrderView(OrdersView):
    """One offer."""

    queryset = LoanOrder.objects.none()

    @extend_schema(
        operation_id="loan_order", summary="Show a loan order", responses=shapes.LoanOrderSerializer
    )
    def get(self, request: Request, inference_name: str, order_id: UUID) -> Response:
        order = loan_order_get(self.inference_cluster(inference_name), order_id)
        return Response(shapes.LoanOrderSerializer(order).data)


class ReclaimsView(OrdersView):
    """Base of views of reclaim orders."""

    queryset: Any = ReclaimOrder.objects.none()

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "shows_jobs": self.scheduler_of is None}

    def answer(self, inference_cluster: InferenceCluster, order_id: UUID, status: int = 200) -> Response:
        """The order in full."""
        order = reclaim_order_get(inference_cluster, order_id)
        shape = shapes.ReclaimOrderDetailSerializer(order, context=self.get_serializer_context())
        return Response(shape.data, status=status)


@extend_schema(tags=["inference"])
class ReclaimOrdersView(ReclaimsView):
    """Reclaim orders."""

    @extend_schema(
        operation_id="reclaim_order_list",
        summary="List reclaim orders",
        responses=shapes.ReclaimOrderSerializer(many=True),
    )
    def get(self, request: Request, inference_name: str) -> Response:
        rows = reclaim_orders(self.inference_cluster(inference_name))
        return self.page(rows, shapes.ReclaimOrderSerializer)

    @extend_schema(
        operation_id="reclaim_order_create",
        summary="Reclaim servers by a time",
        description=(
            "The platform chooses the servers: idle ones first, then those that stop no job, then "
            "the cheapest. The number may exceed the servers on loan. 201 for a new order, 200 "
            "for a repeated one."
        ),
        request=shapes.ReclaimRequestSerializer,
        responses={200: shapes.ReclaimOrderDetailSerializer, 201: shapes.ReclaimOrderDetailSerializer},
    )
    def post(self, request: Request, inference_name: str) -> Response:
        found = self.inference_cluster(inference_name)
        return self.idempotently(lambda: self._create(found))

    def _create(self, inference_cluster: InferenceCluster) -> Response:
        body = self.read(shapes.ReclaimRequestSerializer)
        order, is_new = reclaim_order_create(
            inference_cluster=inference_cluster,
            order_id=body["id"],
            count=body["count"],
            wanted_by=body["wanted_by"],
            source=self.source(inference_cluster),
            created_by=self.asker,
        )
        return self.answer(inference_cluster, order.pk, 201 if is_new else 200)


@extend_schema(tags=["inference"])
class ReclaimOrderView(ReclaimsView):
    """One reclaim order."""

    @extend_schema(
        operation_id="reclaim_order",
        summary="Show a reclaim order with its servers",
        responses=shapes.ReclaimOrderDetailSerializer,
    )
    def get(self, request: Request, inference_name: str, order_id: UUID) -> Response:
        return self.answer(self.inference_cluster(inference_name), order_id)


@extend_schema(tags=["inference"])
class ReclaimConfirmView(ReclaimsView):
    """Having servers again."""

    @extend_schema(
        operation_id="reclaim_order_confirm",
        summary="Confirm servers that are back",
        description="May be repeated. 409 while one of them is not back yet.",
        request=shapes.ConfirmRequestSerializer,
        responses={200: shapes.ReclaimOrderDetailSerializer},
    )
    def post(self, request: Request, inference_name: str, order_id: UUID) -> Response:
        found = self.inference_cluster(inference_name)
        return self.idempotently(lambda: self._confirm(found, order_id))

    def _confirm(self, inference_cluster: InferenceCluster, order_id: UUID) -> Response:
        names = self.read(shapes.ConfirmRequestSerializer)["servers"]
        reclaim_confirm(order=reclaim_order_get(inference_cluster, order_id), server_names=names)
        return self.answer(inference_cluster, order_id)
