"""Loans and returns of inference servers: orders, whitelists, and the effects on jobs (Lyra section 3.3)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from cluster.choices import LendingState, Whitelist
from cluster.models import Cluster, Server
from lending.choices import LoanState, OrderSource, ReclaimState
from lending.models import InferenceCluster, LendingEvent, LoanOrder, ReclaimOrder
from lending.services.inference_clusters import inference_cluster_change
from lending.services.loans import NotLent, OrderReused, loan_order_create
from lending.services.orchestrator import orchestrate
from lending.services.reclaiming import reclaim_confirm, reclaim_order_create
from lending.services.reclaiming_choice import choose
from lending.services.transitions import ForbiddenLendingTransition, move_servers
from projects.errors import InvalidRequest
from scheduling.choices import GenerationState, JobState
from scheduling.models import Assignment, Job
from scheduling.services.agents.enrolment import RefusedToken
from tests.control_plane.conftest import SPEED
from tests.control_plane.generations.test_failures import fall_silent
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.factories import (
    GenerationFactory,
    InferenceServerFactory,
    ScalingCurveFactory,
    ServerFactory,
    UserFactory,
)
from tests.lending.control_plane.orders import ask_back, known_on_eight, lend, servers_of, states

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


def test_a_server_at_its_inference_home_gets_no_training_work(
    owned: SimulatedAgent, borrowed: tuple[SimulatedAgent, SimulatedAgent], submit: Submit
) -> None:
    jobs = [submit("best_effort", iterations=100_000) for _ in range(3)]
    settle(owned, *borrowed)
    assert set().union(*(servers_of(job) for job in jobs)) == {"node-1"}


def test_job_grows_onto_a_loaned_server_and_leaves_it_on_reclaim(
    inference: InferenceCluster,
    owned: SimulatedAgent,
    borrowed: tuple[SimulatedAgent, SimulatedAgent],
    submit: Submit,
) -> None:
    job = submit("best_effort", iterations=1_000_000)
    settle(owned, *borrowed)
    assert servers_of(job) == {"node-1"}
    job.refresh_from_db()
    known_on_eight(job)
    assert lend(inference, "serving-1").state == LoanState.DONE
    settle(owned, *borrowed)
    assert servers_of(job) == {"node-1", "serving-1"}
    order = ask_back(inference, 1)
    assert (order.state, states()["serving-1"]) == (ReclaimState.RECLAIMING, LendingState.RECLAIMING)
    for _ in range(2):
        settle(owned, rounds=1)  # the borrowed server's agent does not answer yet
        orchestrate()
        assert states()["serving-1"] == LendingState.RECLAIMING, "its last worker has not gone yet"
        assert Server.objects.get(name="serving-1").whitelist == Whitelist.TRAINING
    settle(owned, *borrowed)
    orchestrate()
    order.refresh_from_db()
    job.refresh_from_db()
    assert (order.state, states()["serving-1"]) == (ReclaimState.RETURNED, LendingState.INFERENCE)
    assert (job.state, servers_of(job)) == (JobState.RUNNING, {"node-1"})
    assert order.outcome["preempted_jobs"] == 0
    assert order.outcome["rescaled_jobs"] == 1
    assert order.choice["servers"][0]["group"] == "flexible"
    assert [event.kind for event in LendingEvent.objects.all()] == [
        "created",
        "lent",
        "asked_back",
        "returned",
    ]


def test_a_job_that_fits_nowhere_else_is_preempted_with_its_state(
    inference: InferenceCluster,
    borrowed: tuple[SimulatedAgent, SimulatedAgent],
    owned: SimulatedAgent,
    submit: Submit,
) -> None:
    jobs = [submit("best_effort", iterations=1_000_000) for _ in range(5)]
    settle(owned, *borrowed)
    lend(inference, "serving-1")
    settle(owned, *borrowed)
    Server.objects.filter(name="node-1").update(drain="draining")
    order = ask_back(inference, 1)
    settle(owned, *borrowed, rounds=30)
    orchestrate()
    order.refresh_from_db()
    assert order.state == ReclaimState.RETURNED
    assert order.outcome["preempted_jobs"] >= 1
    for job in jobs:
        job.refresh_from_db()
        assert not servers_of(job)
        assert job.state in (JobState.SUSPENDED, JobState.ADMITTED)
        assert job.state == JobState.ADMITTED or job.checkpoint is not None


def test_reclaimed_server_with_silent_agent_returns_after_its_fence(
    cluster: Cluster,
    inference: InferenceCluster,
    owned: SimulatedAgent,
    borrowed: tuple[SimulatedAgent, SimulatedAgent],
    submit: Submit,
) -> None:
    job = submit("best_effort", iterations=1_000_000)
    settle(owned, *borrowed)
    known_on_eight(job)
    lend(inference, "serving-1")
    settle(owned, *borrowed)
    assert "serving-1" in servers_of(job)
    order = ask_back(inference, 1)
    fall_silent(borrowed[0], cluster)
    orchestrate()
    order.refresh_from_db()
    assert (order.state, states()["serving-1"]) == (ReclaimState.RETURNED, LendingState.INFERENCE)
    settle(owned, borrowed[1])
    assert servers_of(job) == {"node-1"}


def test_idle_servers_are_given_back_first(
    inference: InferenceCluster, borrowed: tuple[SimulatedAgent, SimulatedAgent]
) -> None:
    lend(inference, "serving-1", "serving-2")
    order = ask_back(inference, 1)
    assert order.state == ReclaimState.RETURNED, "nobody has to leave an idle server"
    assert order.choice["servers"][0]["group"] == "idle"
    assert order.on_time() is None, "it was wanted at once"
    others = {one["method"]: one for one in order.choice["alternatives"]}
    assert set(others) == {"improved", "lyra", "scf", "random", "optimal"}, (
        "the optimum too where few are on loan"
    )
    assert all(one["compute_seconds"] >= 0.0 for one in others.values())
    assert others["improved"]["preempted_jobs"] == others["optimal"]["preempted_jobs"]
    assert others["scf"]["cost"] is None, "it knows no preemption cost"


def test_reclaim_is_limited_to_servers_on_loan(
    inference: InferenceCluster, borrowed: tuple[SimulatedAgent, SimulatedAgent]
) -> None:
    lend(inference, "serving-1")
    order = ask_back(inference, 7)
    assert [row.server.name for row in order.servers.all()] == ["serving-1"]
    assert ask_back(inference, 1).state == ReclaimState.RETURNED, (
        "with nothing on loan there is nothing to wait for"
    )


def test_an_order_that_is_sent_again_changes_nothing(
    inference: InferenceCluster, borrowed: tuple[SimulatedAgent, SimulatedAgent]
) -> None:
    order = lend(inference, "serving-1")
    again, is_new = loan_order_create(
        inference_cluster=inference,
        order_id=order.pk,
        server_names=["serving-1"],
        source=OrderSource.SCHEDULER,
    )
    assert (again, is_new) == (order, False)
    wanted_by = timezone.now()
    reclaim = ask_back(inference, 1, wanted_by=wanted_by)
    lines = LendingEvent.objects.count()
    repeated, is_new = reclaim_order_create(
        inference_cluster=inference,
        order_id=reclaim.pk,
        count=1,
        wanted_by=wanted_by,
        source=OrderSource.SCHEDULER,
    )
    orchestrate()
    assert (repeated, is_new, LendingEvent.objects.count()) == (reclaim, False, lines)
    with pytest.raises(OrderReused):
        ask_back(inference, 2, order_id=reclaim.pk, wanted_by=wanted_by)
    with pytest.raises(OrderReused):
        loan_order_create(
            inference_cluster=inference,
            order_id=order.pk,
            server_names=["serving-2"],
            source=OrderSource.SCHEDULER,
        )


def test_a_batch_with_a_server_that_is_on_loan_is_refused_whole(
    inference: InferenceCluster, borrowed: tuple[SimulatedAgent, SimulatedAgent]
) -> None:
    lend(inference, "serving-1")
    with pytest.raises(NotLent, match="not at home: serving-1"):
        lend(inference, "serving-1", "serving-2")
    assert states()["serving-2"] == LendingState.INFERENCE


def test_an_offer_of_nothing_does_nothing(
    inference: InferenceCluster, borrowed: tuple[SimulatedAgent, SimulatedAgent]
) -> None:
    assert lend(inference).state == LoanState.DONE
    assert set(states().values()) == {LendingState.INFERENCE}


def test_a_training_server_cannot_be_offered(
    inference: InferenceCluster, owned: SimulatedAgent, borrowed: tuple[SimulatedAgent, SimulatedAgent]
) -> None:
    with pytest.raises(InvalidRequest, match="node-1"):
        lend(inference, "node-1")


def test_the_headroom_is_never_lent(
    inference: InferenceCluster, borrowed: tuple[SimulatedAgent, SimulatedAgent]
) -> None:
    InferenceCluster.objects.update(headroom_fraction=0.02)
    lend(inference, "serving-1")
    with pytest.raises(NotLent, match="keeps 1 of its servers"):
        lend(inference, "serving-2")


def test_nothing_is_lent_while_lending_is_off(
    inference: InferenceCluster, borrowed: tuple[SimulatedAgent, SimulatedAgent]
) -> None:
    waiting, _ = loan_order_create(
        inference_cluster=inference,
        order_id=uuid4(),
        server_names=["serving-1"],
        source=OrderSource.SCHEDULER,
    )
    inference_cluster_change(
        inference_cluster=inference, actor=UserFactory.create(), changes={"lending": False}
    )
    orchestrate()
    waiting.refresh_from_db()
    assert waiting.state == LoanState.REFUSED
    with pytest.raises(NotLent, match="switched off"):
        lend(inference, "serving-2")


def test_a_server_that_came_home_lately_waits_before_it_is_lent_again(
    inference: InferenceCluster, borrowed: tuple[SimulatedAgent, SimulatedAgent]
) -> None:
    InferenceCluster.objects.update(minimum_hold_seconds=600.0)
    inference.refresh_from_db()
    lend(inference, "serving-1")
    ask_back(inference, 1)
    again = lend(inference, "serving-1")
    assert (again.state, states()["serving-1"]) == (LoanState.PENDING, LendingState.INFERENCE)
    assert ask_back(inference, 1).withdrawn == 1, "what was offered and not lent counts first"
    again.refresh_from_db()
    assert again.state == LoanState.WITHDRAWN
    later = lend(inference, "serving-1")
    Server.objects.update(lending_changed_at=timezone.now() - timedelta(seconds=700))
    LoanOrder.objects.filter(pk=later.pk).update(not_before=timezone.now())
    orchestrate()
    assert states()["serving-1"] == LendingState.ON_LOAN


def test_offers_too_small_to_be_worth_it_wait_for_more(
    inference: InferenceCluster, borrowed: tuple[SimulatedAgent, SimulatedAgent]
) -> None:
    InferenceCluster.objects.update(minimum_gain_servers=2, minimum_hold_seconds=600.0)
    inference.refresh_from_db()
    assert lend(inference, "serving-1").state == LoanState.PENDING
    assert lend(inference, "serving-2").state == LoanState.DONE
    assert set(states().values()) == {LendingState.ON_LOAN}


def test_a_reclaim_for_later_begins_when_its_time_comes_near(
    inference: InferenceCluster, borrowed: tuple[SimulatedAgent, SimulatedAgent]
) -> None:
    lend(inference, "serving-1")
    order = ask_back(inference, 1, wanted_by=timezone.now() + timedelta(hours=1))
    assert (order.state, states()["serving-1"]) == (ReclaimState.PENDING, LendingState.ON_LOAN)
    ReclaimOrder.objects.update(wanted_by=timezone.now() + timedelta(seconds=30))
    orchestrate()
    order.refresh_from_db()
    assert (order.state, order.on_time()) == (ReclaimState.RETURNED, True)


def test_the_inference_scheduler_confirms_what_it_has_again(
    inference: InferenceCluster, borrowed: tuple[SimulatedAgent, SimulatedAgent]
) -> None:
    lend(inference, "serving-1", "serving-2")
    order = ask_back(inference, 2)
    assert reclaim_confirm(order=order, server_names=["serving-1"]).state == ReclaimState.RETURNED
    first = order.servers.get(server__name="serving-1").confirmed_at
    assert (
        reclaim_confirm(order=order, server_names=["serving-1", "serving-2"]).state == ReclaimState.CONFIRMED
    )
    assert order.servers.get(server__name="serving-1").confirmed_at == first
    with pytest.raises(InvalidRequest):
        reclaim_confirm(order=order, server_names=["node-1"])


def test_database_allows_only_the_whitelist_of_a_lending_state(
    inference: InferenceCluster, owned: SimulatedAgent, borrowed: tuple[SimulatedAgent, SimulatedAgent]
) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("serving-1", {"whitelist": Whitelist.TRAINING}),
        ("serving-1", {"lending_state": LendingState.ON_LOAN}),
        ("serving-1", {"lending_state": LendingState.TRAINING, "whitelist": Whitelist.TRAINING}),
        ("node-1", {"lending_state": LendingState.ON_LOAN}),
        ("node-1", {"whitelist": Whitelist.INFERENCE}),
    ]
    for name, values in wrong:
        with pytest.raises(IntegrityError), transaction.atomic():
            Server.objects.filter(name=name).update(**values)


def test_the_state_machine_has_no_other_ways(
    inference: InferenceCluster, owned: SimulatedAgent, borrowed: tuple[SimulatedAgent, SimulatedAgent]
) -> None:
    for name, state in (
        ("serving-1", LendingState.RECLAIMING),
        ("serving-1", LendingState.TRAINING),
        ("node-1", LendingState.ON_LOAN),
    ):
        with pytest.raises(ForbiddenLendingTransition), transaction.atomic():
            move_servers([Server.objects.get(name=name)], state, timezone.now())


def test_a_server_keeps_its_home_when_its_agent_enrols_again(
    inference: InferenceCluster, borrowed: tuple[SimulatedAgent, SimulatedAgent]
) -> None:
    lend(inference, "serving-1")
    SimulatedAgent.enrol("serving-1", 4, SPEED, inference)
    assert states()["serving-1"] == LendingState.ON_LOAN
    with pytest.raises(RefusedToken):
        SimulatedAgent.enrol("serving-1", 4, SPEED)


# Who would have to leave ------------------------------------------------------------------------------


def lent_with(inference: InferenceCluster, name: str) -> Server:
    """Return a server on loan with four GPUs."""
    server: Server = InferenceServerFactory.create(
        name=name, inference_cluster=inference, lending_state=LendingState.ON_LOAN, whitelist="training"
    )
    return server


def training_on(*gpus: Any, flexible: int = 0, **fields: Any) -> Job:
    """Return a job that trains on these GPUs, the last of which are marked as flexible."""
    generation = GenerationFactory.create(
        gpus=list(gpus), master_server=gpus[0].server, world_size=len(gpus), job__state="running",
        job__curve=ScalingCurveFactory.create(), **fields,
    )  # fmt: skip
    marked = generation.assignments.order_by("-rank")[:flexible]
    Assignment.objects.filter(pk__in=[one.pk for one in marked]).update(flexible=True)
    job: Job = generation.job
    return job


def test_server_with_flexible_workers_only_is_returned_first(
    inference: InferenceCluster,
) -> None:
    first, second = lent_with(inference, "lent-1"), lent_with(inference, "lent-2")
    training_on(*first.gpus.all())
    training_on(ServerFactory.create().gpus.all()[0], *list(second.gpus.all())[:3], flexible=3)
    choice = choose(inference, 1)
    assert [server.name for server in choice.servers] == ["lent-2"]
    assert choice.groups == ("flexible",)
    assert choice.document["preempted"] == []
    assert [one["gpus"] for one in choice.document["scale_ins"]] == [3]


def test_unmarked_gpus_above_lowest_level_are_flexible_loans_first(
    inference: InferenceCluster,
) -> None:
    lent = lent_with(inference, "lent-1")
    training_on(*list(lent.gpus.all())[:3], ServerFactory.create().gpus.all()[0])
    assert choose(inference, 1).groups == ("flexible",), (
        "its lowest level is one, which it has on its own server"
    )


def test_measurement_on_loan_is_cancelled_and_hides_no_job(inference: InferenceCluster) -> None:
    measuring, training = lent_with(inference, "lent-1"), lent_with(inference, "lent-2")
    job = training_on(*training.gpus.all())
    GenerationFactory.create(
        job=job, number=2, purpose="profiling", master_server=measuring, gpus=list(measuring.gpus.all())
    )
    order = ask_back(inference, 1)
    assert [row.server.name for row in order.servers.all()] == ["lent-1"]
    assert job.generations.get(number=2).state == GenerationState.RETIRED
    assert choose(inference, 1).document["preempted"] == [job.pk]
