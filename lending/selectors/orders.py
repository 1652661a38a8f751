"""Loan and reclaim orders as one list, newest first, with the cost of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.paginator import Page, Paginator
from django.db.models import BooleanField, Value

from lending.models import InferenceCluster, LoanOrder, ReclaimOrder


@dataclass(frozen=True, slots=True)
class LoanRow:
    """One loan order of the list."""

    order: LoanOrder
    is_loan: bool = True


@dataclass(frozen=True, slots=True)
class ReclaimRow:
    """One reclaim order of the list. Job counts are None until all servers are back.

    ``held_back_jobs``: jobs whose growth or start was broken off before it took effect.
    ``shortfall_servers``: the largest number of missing servers in a period that overlaps the order; None if
    no usage was reported.
    """

    order: ReclaimOrder
    #: Names of the chosen servers.
    server_names: tuple[str, ...]
    preempted_jobs: int | None
    #: Jobs that continued on other or fewer GPUs.
    rescaled_jobs: int | None
    held_back_jobs: int | None
    #: GPUs of preempted jobs on servers that stay.
    collateral_gpus: int | None
    shortfall_servers: int | None
    is_loan: bool = False


def orders_page(
    inference_cluster: InferenceCluster, number: int, now: datetime, page_size: int = 20
) -> tuple[list[LoanRow | ReclaimRow], Page[Any]]:
    """Return one page of all orders, in seven queries."""
    shared = ("created_at", "id", "is_loan")
    loans, reclaims = (
        orders.order_by().annotate(is_loan=Value(is_loan, BooleanField())).values_list(*shared)
        for orders, is_loan in (
            (inference_cluster.loan_orders.all(), True),
            (inference_cluster.reclaim_orders.all(), False),
        )
    )
    everything = loans.union(reclaims, all=True).order_by("-created_at", "-id")
    page = Paginator(everything, page_size).get_page(number)
    wanted = list(page.object_list)
    known_loans = LoanOrder.objects.in_bulk([order_id for _, order_id, is_loan in wanted if is_loan])
    known_reclaims = ReclaimOrder.objects.prefetch_related("servers__server").in_bulk(
        [order_id for _, order_id, is_loan in wanted if not is_loan]
    )
    shortfalls = order_shortfalls(inference_cluster, list(known_reclaims.values()), now)
    rows: list[LoanRow | ReclaimRow] = [
        LoanRow(known_loans[order_id])
        if is_loan
        else reclaim_row(known_reclaims[order_id], shortfalls[order_id])
        for _, order_id, is_loan in wanted
    ]
    return rows, page


def reclaim_row(order: ReclaimOrder, shortfall_servers: int | None) -> ReclaimRow:
    """Return the list row of one reclaim order. Its servers are prefetched."""
    return ReclaimRow(
        order=order,
        server_names=tuple(row.server.name for row in order.servers.all()),
        preempted_jobs=order.outcome.get("preempted_jobs"),
        rescaled_jobs=order.outcome.get("rescaled_jobs"),
        held_back_jobs=order.outcome.get("held_back_jobs"),
        collateral_gpus=order.choice.get("collateral_gpus"),
        shortfall_servers=shortfall_servers,
    )


def order_shortfalls(
    inference_cluster: InferenceCluster, orders: Sequence[ReclaimOrder], now: datetime
) -> dict[UUID, int | None]:
    """Return the largest number of missing servers in the periods that overlap each order, from its creation
    until its servers were back."""
    if not orders:
        return {}
    period = timedelta(seconds=inference_cluster.period_seconds)
    first = min(order.created_at for order in orders)
    last = max(order.returned_at or now for order in orders) + period
    samples = list(
        inference_cluster.usage_samples.filter(period_ends_at__gt=first, period_ends_at__lt=last).values_list(
            "period_ends_at", "shortfall_servers"
        )
    )
    return {
        order.pk: max(
            (
                missing
                for ends_at, missing in samples
                if order.created_at < ends_at < (order.returned_at or now) + period
            ),
            default=None,
        )
        for order in orders
    }


def order_found(order_id: UUID, *, loan_first: bool = False) -> LoanOrder | ReclaimOrder | None:
    """Return the loan or reclaim order of that id; None if there is none.

    Clients choose ids and each kind has its own: if both kinds have one, ``loan_first`` selects the loan.
    """
    loan = LoanOrder.objects.select_related("inference_cluster").filter(pk=order_id).first()
    reclaim = (
        ReclaimOrder.objects.select_related("inference_cluster")
        .prefetch_related("servers__server")
        .filter(pk=order_id)
        .first()
    )
    return loan or reclaim if loan_first else reclaim or loan
