"""Orders of an inference scheduler, and the resulting places of servers and jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from django.db import transaction
from django.utils import timezone

from cluster.models import Server
from lending.choices import OrderSource
from lending.models import InferenceCluster, LoanOrder, ReclaimOrder
from lending.services.loans import loan_order_create
from lending.services.orchestrator import orchestrate
from lending.services.reclaiming import reclaim_order_create
from scheduling.choices import AssignmentState
from scheduling.models import Assignment, CurveLevel, Job
from tests.control_plane.conftest import SPEED


def lend(inference: InferenceCluster, *names: str) -> LoanOrder:
    order, _ = loan_order_create(
        inference_cluster=inference, order_id=uuid4(), server_names=names, source=OrderSource.SCHEDULER
    )
    orchestrate()
    order.refresh_from_db()
    return order


def ask_back(inference: InferenceCluster, count: int, **changes: Any) -> ReclaimOrder:
    asked: dict[str, Any] = {"order_id": uuid4(), "wanted_by": timezone.now(), **changes}
    order, _ = reclaim_order_create(
        inference_cluster=inference, count=count, source=OrderSource.SCHEDULER, **asked
    )
    orchestrate()
    order.refresh_from_db()
    return order


def known_on_eight(job: Job) -> None:
    """Add the job's speed on eight GPUs, which were never free together when it was measured."""
    assert job.curve is not None
    CurveLevel.objects.get_or_create(curve=job.curve, gpus=8, defaults={"iterations_per_second": SPEED[8]})


def states() -> dict[str, str]:
    return dict(Server.objects.values_list("name", "lending_state"))


def servers_of(job: Job) -> set[str]:
    held = Assignment.objects.filter(job=job).exclude(state=AssignmentState.RELEASED)
    return set(held.values_list("gpu__server__name", flat=True))


@contextmanager
def undone() -> Iterator[None]:
    """Roll the block back, so that a test can try alternatives from one state."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)
