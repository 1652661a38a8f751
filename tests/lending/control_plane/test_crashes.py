"""Lending survives an end at any statement, and random life: a server goes home only when idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection, transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.choices import WHITELIST_OF, LendingState
from cluster.models import Server
from lending.choices import LoanState, OrderSource, ReclaimState
from lending.models import InferenceCluster, LendingEvent, LoanOrder, ReclaimOrder
from lending.services.loans import NotLent, loan_order_create
from lending.services.orchestrator import orchestrate
from lending.services.reclaiming import reclaim_order_create
from scheduling.choices import AssignmentState, GenerationState
from scheduling.models import Assignment, OutboxMessage
from tests import factories as make
from tests.plugins.examples import examples

MOST_STATEMENTS = 400


class Died(BaseException):
    """The process died; no handler may catch this."""


@contextmanager
def dying_before(statement: int) -> Iterator[None]:
    """Raise before the n-th statement, like a process that dies there."""
    executed = 0

    def execute(run: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal executed
        executed += 1
        if executed == statement:
            raise Died
        return run(*arguments)

    with connection.execute_wrapper(execute):
        yield


def died(action: Callable[[], Any], statement: int) -> bool:
    """Return whether the action was cut short."""
    try:
        with dying_before(statement):
            action()
    except Died:
        return True
    return False


@pytest.fixture
def inference(transactional_db: None) -> InferenceCluster:
    return inference_with_two()


def inference_with_two() -> InferenceCluster:
    made: InferenceCluster = make.InferenceClusterFactory.create(
        minimum_hold_seconds=0.0, headroom_fraction=0.0
    )
    for number in range(2):
        make.InferenceServerFactory.create(name=f"serving-{number}", inference_cluster=made, gpus=2)
    return made


def lend(inference: InferenceCluster, order_id: UUID) -> None:
    loan_order_create(
        inference_cluster=inference,
        order_id=order_id,
        server_names=["serving-0", "serving-1"],
        source=OrderSource.SCHEDULER,
    )


def ask_back(inference: InferenceCluster, order_id: UUID) -> None:
    reclaim_order_create(
        inference_cluster=inference, order_id=order_id, count=2, source=OrderSource.SCHEDULER
    )


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_crash_before_any_statement_of_a_loan_or_reclaim_is_repaired(
    inference: InferenceCluster, every: int
) -> None:
    """Each step dies before its n-th statement and is repeated; the outcome is that of a single order."""
    for statement in range(1, MOST_STATEMENTS, every):
        LendingEvent.objects.all().delete()
        loan, reclaim = uuid4(), uuid4()
        ends = [died(lambda: lend(inference, loan), statement)]  # noqa: B023 - called at once
        lend(inference, loan)
        ends.append(died(orchestrate, statement))
        check_whitelists()
        orchestrate()
        assert LoanOrder.objects.get(pk=loan).state == LoanState.DONE
        assert states() == {LendingState.ON_LOAN}
        ends.append(died(lambda: ask_back(inference, reclaim), statement))  # noqa: B023 - called at once
        ask_back(inference, reclaim)
        ends.append(died(orchestrate, statement))
        check_whitelists()
        orchestrate()
        assert ReclaimOrder.objects.get(pk=reclaim).state == ReclaimState.RETURNED
        assert states() == {LendingState.INFERENCE}
        kinds = Counter(LendingEvent.objects.values_list("kind", flat=True))
        assert kinds == {"lent": 1, "asked_back": 1, "returned": 1}
        if not any(ends):
            break
    else:
        pytest.fail(f"more than {MOST_STATEMENTS} statements")
    assert LoanOrder.objects.count() == ReclaimOrder.objects.count() == len(range(0, statement, every))


def test_loan_and_its_event_are_committed_together(inference: InferenceCluster) -> None:
    lend(inference, uuid4())
    OutboxMessage.objects.all().delete()
    before = Server.objects.filter(lending_state=LendingState.ON_LOAN).count()
    for statement in range(1, MOST_STATEMENTS):
        if not died(orchestrate, statement):
            break
        moved = Server.objects.filter(lending_state=LendingState.ON_LOAN).count() > before
        assert moved == LendingEvent.objects.filter(kind="lent").exists(), "both or neither"
        if moved:
            break


def states() -> set[str]:
    return set(Server.objects.values_list("lending_state", flat=True))


def check_whitelists() -> None:
    for server in Server.objects.all():
        assert server.whitelist == WHITELIST_OF[LendingState(server.lending_state)]


# Random life ------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["lend", "ask_back", "start", "stop", "clear", "orchestrate"]), st.integers(0, 3)
    ),
    min_size=4,
    max_size=14,
)


@pytest.mark.django_db
@settings(suppress_health_check=list(HealthCheck), max_examples=examples(0.4))
@given(steps=STEPS)
def test_returned_server_has_no_worker_after_any_starts_and_stops(
    steps: list[tuple[str, int]],
) -> None:
    with transaction.atomic():
        life = _Life(inference_with_two())
        for action, number in steps:
            getattr(life, action)(number)
            life.check()
        life.end()
        transaction.set_rollback(True)


class _Life:
    """Jobs that start and stop on two servers of an inference cluster, beside its orders."""

    def __init__(self, inference: InferenceCluster) -> None:
        self.inference = inference

    def lend(self, number: int) -> None:
        try:
            loan_order_create(
                inference_cluster=self.inference,
                order_id=uuid4(),
                server_names=[f"serving-{number % 2}"],
                source=OrderSource.SCHEDULER,
            )
        except NotLent:
            return  # it is away already

    def ask_back(self, number: int) -> None:
        reclaim_order_create(
            inference_cluster=self.inference,
            order_id=uuid4(),
            count=number,
            source=OrderSource.SCHEDULER,
        )

    def start(self, number: int) -> None:
        """Start a job of one or two GPUs on usable servers."""
        usable = [server for server in Server.objects.all() if server.usable()]
        taken = Assignment.objects.exclude(state=AssignmentState.RELEASED).values_list("gpu_id", flat=True)
        free = [gpu for server in usable for gpu in server.gpus.all() if gpu.pk not in set(taken)]
        if free:
            make.GenerationFactory.create(
                job__state="running", master_server=free[0].server, gpus=free[: 1 + number % 2]
            )

    def stop(self, number: int) -> None:
        """Stop a job; its workers remain until the agent reports their end."""
        held = Assignment.objects.filter(state=AssignmentState.HELD).first()
        if held is not None:
            held.generation.state, held.generation.goal = GenerationState.RETIRED, "stop"
            held.generation.save()
            held.generation.assignments.update(state=AssignmentState.CLEARING)

    def clear(self, number: int) -> None:
        Assignment.objects.filter(state=AssignmentState.CLEARING).update(
            state=AssignmentState.RELEASED, released_at=timezone.now()
        )

    def orchestrate(self, number: int) -> None:
        orchestrate()

    def check(self) -> None:
        check_whitelists()
        busy = Assignment.objects.exclude(state=AssignmentState.RELEASED).values("gpu__server_id")
        assert not Server.objects.filter(lending_state=LendingState.INFERENCE, pk__in=busy).exists()

    def end(self) -> None:
        """Check that every order completes once all jobs have ended."""
        for _ in range(10):
            self.stop(0)
            self.clear(0)
        orchestrate()
        orchestrate()
        assert not ReclaimOrder.objects.filter(state__in=["pending", "reclaiming"]).exists()
        assert LendingState.RECLAIMING not in states()
