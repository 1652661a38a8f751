"""A server is reclaimed while a job prepares to use it: the preparation is cancelled."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from cluster.choices import LendingState
from cluster.models import Server
from lending.choices import ReclaimState
from lending.models import InferenceCluster
from lending.services.orchestrator import orchestrate
from scheduling.choices import GenerationState, Goal, JobState
from scheduling.models import Assignment, Generation, Job
from scheduling.services.agents.drain import server_drain, server_undrain
from scheduling.services.generations.generations import coming_generation, live_generation
from scheduling.services.planning.planning import run_planner
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.control_plane.simulated_time import SimulatedTime
from tests.factories import UserFactory
from tests.lending.control_plane.orders import ask_back, known_on_eight, lend, servers_of, states, undone

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]
Pair = tuple[SimulatedAgent, SimulatedAgent]


def events(job: Job) -> list[str]:
    return list(job.events.values_list("kind", flat=True))


def about_to_grow(inference: InferenceCluster, owned: SimulatedAgent, borrowed: Pair, submit: Submit) -> Job:
    """Return a job on its cluster's server with a decided growth that agents have not obeyed yet."""
    job = submit("best_effort", iterations=1_000_000)
    settle(owned, *borrowed)
    known_on_eight(job)
    lend(inference, "serving-1")
    run_planner("test")
    assert "serving-1" in servers_of(job)
    return job


def test_reclaim_cancels_a_prepared_growth_and_the_job_trains_on(
    inference: InferenceCluster,
    owned: SimulatedAgent,
    borrowed: Pair,
    submit: Submit,
) -> None:
    job = about_to_grow(inference, owned, borrowed, submit)
    trains, coming = live_generation(job), coming_generation(job)
    assert trains is not None
    assert coming is not None
    borrowed[0].obey()
    borrowed[0].report()
    order = ask_back(inference, 1)
    coming.refresh_from_db()
    trains.refresh_from_db()
    assert (coming.state, trains.state, trains.goal) == (
        GenerationState.RETIRED,
        GenerationState.LIVE,
        Goal.TRAIN,
    )
    assert states()["serving-1"] == LendingState.RECLAIMING, "its worker has not gone yet"
    borrowed[0].obey()
    borrowed[0].report()
    orchestrate()
    order.refresh_from_db()
    assert (order.state, states()["serving-1"]) == (ReclaimState.RETURNED, LendingState.INFERENCE)
    settle(owned, *borrowed)
    job.refresh_from_db()
    assert (job.state, servers_of(job), live_generation(job)) == (JobState.RUNNING, {"node-1"}, trains)
    assert order.outcome["jobs"] == {job.pk: "held back"}
    assert order.outcome["preempted_jobs"] == order.outcome["rescaled_jobs"] == 0
    assert "broken_off" in events(job)


def test_handover_under_way_is_not_cancelled(
    inference: InferenceCluster,
    owned: SimulatedAgent,
    borrowed: Pair,
    submit: Submit,
) -> None:
    job = about_to_grow(inference, owned, borrowed, submit)
    for agent in (owned, borrowed[0]):
        agent.obey()
        agent.report()
    coming = coming_generation(job)
    assert coming is not None
    assert coming.state == GenerationState.HANDOVER
    order = ask_back(inference, 1)
    assert coming_generation(job) == coming
    settle(owned, *borrowed, rounds=20)
    orchestrate()
    order.refresh_from_db()
    job.refresh_from_db()
    assert (order.state, job.state, servers_of(job)) == (ReclaimState.RETURNED, JobState.RUNNING, {"node-1"})
    assert order.outcome["jobs"] == {job.pk: "rescaled"}


def test_reclaim_cancels_a_first_start_and_the_job_stays_queued(
    inference: InferenceCluster,
    owned: SimulatedAgent,
    borrowed: Pair,
    submit: Submit,
) -> None:
    first = submit("best_effort", iterations=1_000_000)
    settle(owned, *borrowed)
    server, operator = Server.objects.get(name="node-1"), UserFactory.create()
    server_drain(server=server, actor=operator)
    settle(owned, *borrowed)
    first.refresh_from_db()
    assert first.state == JobState.SUSPENDED
    lend(inference, "serving-1")
    second = submit("best_effort", iterations=1_000_000)
    run_planner("test")
    on_their_way = [job for job in (first, second) if coming_generation(job) is not None]
    assert on_their_way == [first, second]
    order = ask_back(inference, 1)
    settle(*borrowed)
    orchestrate()
    order.refresh_from_db()
    for job, state in ((first, JobState.SUSPENDED), (second, JobState.ADMITTED)):
        job.refresh_from_db()
        assert (job.state, job.failures, servers_of(job)) == (state, 0, set())
    assert first.checkpoint is not None, "its state is kept"
    assert order.state == ReclaimState.RETURNED
    assert order.outcome["jobs"] == dict.fromkeys((first.pk, second.pk), "held back")
    assert order.outcome["preempted_jobs"] == 0
    server_undrain(server=server, actor=operator)
    settle(owned, *borrowed)
    for job in (first, second):
        job.refresh_from_db()
        assert (job.state, servers_of(job)) == (JobState.RUNNING, {"node-1"})


def test_a_restart_that_is_broken_off_waits_with_its_state(
    inference: InferenceCluster,
    owned: SimulatedAgent,
    borrowed: Pair,
    submit: Submit,
    clock: SimulatedTime,
) -> None:
    job = about_to_grow(inference, owned, borrowed, submit)
    # The generation that trains is lost while its successor prepares, which then starts from the last durable
    # state.
    rank_zero = owned.rank_zero(job.pk)
    assert rank_zero is not None
    owned.event(rank_zero, "failed", reason="killed", message="out of memory")
    owned.report()
    job.refresh_from_db()
    assert (job.state, live_generation(job)) == (JobState.RUNNING, None)
    clock.turn(1.0)
    order = ask_back(inference, 1)
    job.refresh_from_db()
    assert (job.state, coming_generation(job)) == (JobState.SUSPENDED, None)
    settle(owned, *borrowed)
    orchestrate()
    order.refresh_from_db()
    assert order.outcome["jobs"] == {job.pk: "held back"}, "what it lost, it had lost before"
    job.refresh_from_db()
    assert (job.state, job.failures, servers_of(job)) == (JobState.RUNNING, 1, {"node-1"})


def test_reclaim_cancels_a_growth_but_not_a_promised_start(
    inference: InferenceCluster,
    owned: SimulatedAgent,
    borrowed: Pair,
    submit: Submit,
) -> None:
    job = about_to_grow(inference, owned, borrowed, submit)
    coming = coming_generation(job)
    assert coming is not None
    with undone():
        coming.assignments.filter(gpu__server__name="serving-1").update(state="waiting", held_at=None)
        assert ask_back(inference, 1).state == ReclaimState.RETURNED, "nobody holds its GPUs yet"
        assert servers_of(job) == {"node-1"}
    deadline_at = timezone.now() + timedelta(hours=1)
    Job.objects.filter(pk=job.pk).update(promised=True, deadline_at=deadline_at)
    Generation.objects.filter(job=job, state=GenerationState.LIVE).update(state=GenerationState.RETIRED)
    Assignment.objects.filter(generation__job=job, generation__state=GenerationState.RETIRED).update(
        state="released"
    )
    assert ask_back(inference, 1).state == ReclaimState.RECLAIMING
    assert coming_generation(job) is not None
