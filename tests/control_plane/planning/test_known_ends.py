"""Servers with a known end: how it is set, its cost to promises, and servers that are empty in time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from cluster.choices import DrainState
from cluster.models import Cluster, Gpu, Server
from projects.errors import InvalidRequest
from projects.models import User
from scheduling.choices import AssignmentState
from scheduling.models import Assignment, Job, JobEvent
from scheduling.services.agents.drain import PromisesWouldBreak, server_drain
from scheduling.services.agents.enrolment import agent_enrol, enrolment_token_create
from scheduling.services.agents.server_ends import server_set_end
from scheduling.services.planning.planning import run_planner
from scheduling.services.snapshots.servers_of_pool import ends_at
from scheduling.services.snapshots.snapshots import pool_snapshot
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import KIND, SimulatedAgent, settle
from tests.control_plane.simulated_time import SimulatedTime
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]
HOUR = timedelta(hours=1)


@pytest.fixture
def operator(cluster: Cluster) -> User:
    user: User = UserFactory.create(is_operator=True)
    return user


@pytest.fixture
def two(cluster: Cluster) -> tuple[SimulatedAgent, SimulatedAgent]:
    return SimulatedAgent.enrol("node-1", 4, SPEED), SimulatedAgent.enrol("node-2", 4, SPEED)


def names_of(job: Job) -> set[str]:
    """Return the names of the servers on which the job holds GPUs."""
    assignments = Assignment.objects.filter(job=job, state=AssignmentState.HELD)
    return set(assignments.values_list("gpu__server__name", flat=True))


def test_promised_job_moves_off_a_server_with_a_known_end(
    two: tuple[SimulatedAgent, SimulatedAgent], submit: Submit, operator: User
) -> None:
    job = submit(seconds=600, iterations=10_000)
    settle(*two)
    assert names_of(job) == {"node-1", "node-2"}
    leaving = Server.objects.get(name="node-1")
    server_set_end(server=leaving, actor=operator, available_until=timezone.now() + HOUR)
    settle(*two)
    job.refresh_from_db()
    assert (job.promised, job.at_risk) == (True, False)
    assert "node-2" in names_of(job)
    assignments = Assignment.objects.filter(job=job, gpu__server=leaving, state=AssignmentState.HELD)
    assert all(assignments.values_list("flexible", flat=True)), "only flexible GPUs of the job are there"


def test_a_job_has_left_when_the_end_comes(
    cluster: Cluster,
    two: tuple[SimulatedAgent, SimulatedAgent],
    submit: Submit,
    operator: User,
    clock: SimulatedTime,
) -> None:
    jobs = [submit("best_effort", iterations=10**6) for _ in range(2)]
    settle(*two)
    leaving = Server.objects.get(name="node-2")
    server_set_end(server=leaving, actor=operator, available_until=clock.now() + HOUR)
    settle(*two)
    assert {name for job in jobs for name in names_of(job)} == {"node-1", "node-2"}, (
        "the server is used until its end"
    )
    leaving.refresh_from_db()
    assert leaving.available_until is not None
    clock.turn(ends_at(leaving.available_until, cluster) - clock.now().timestamp())
    settle(*two)
    assert clock.now() < leaving.available_until
    assert {name for job in jobs for name in names_of(job)} == {"node-1"}
    assert not Assignment.objects.filter(gpu__server=leaving).exclude(state=AssignmentState.RELEASED).exists()
    clock.turn(HOUR.total_seconds())
    leaving.refresh_from_db()
    assert not leaving.usable()
    assert not Gpu.objects.usable().filter(server=leaving).exists()


def test_an_end_that_breaks_promises_is_refused_unless_forced(
    cluster: Cluster, submit: Submit, operator: User
) -> None:
    agent = SimulatedAgent.enrol("node-1", 4, SPEED)
    job = submit(seconds=600, iterations=10_000)
    settle(agent)
    server = Server.objects.get()
    soon = timezone.now() + HOUR
    with pytest.raises(PromisesWouldBreak) as refused:
        server_set_end(server=server, actor=operator, available_until=soon)
    assert [broken["job"] for broken in refused.value.extra["broken_promises"]] == [job.pk]
    server.refresh_from_db()
    assert server.available_until is None
    server_set_end(server=server, actor=operator, available_until=soon, force=True)
    settle(agent)
    job.refresh_from_db()
    assert job.at_risk
    assert JobEvent.objects.filter(job=job, kind="end_forced").exists()
    server_set_end(server=Server.objects.get(), actor=operator, available_until=None)
    settle(agent)
    job.refresh_from_db()
    assert not job.at_risk


def test_drain_that_breaks_promises_needs_force_and_names_its_actor(
    cluster: Cluster, submit: Submit, operator: User
) -> None:
    agent = SimulatedAgent.enrol("node-1", 4, SPEED)
    job, other = submit(seconds=600, iterations=10_000), submit("best_effort", iterations=10)
    settle(agent)
    server = Server.objects.get()
    with pytest.raises(PromisesWouldBreak) as refused:
        server_drain(server=server, actor=operator)
    assert [broken["job"] for broken in refused.value.extra["broken_promises"]] == [job.pk]
    server.refresh_from_db()
    assert server.drain == DrainState.NONE
    assert not JobEvent.objects.filter(kind="drain_forced").exists()
    server_drain(server=server, actor=operator, force=True)
    forced = JobEvent.objects.get(kind="drain_forced")
    assert forced.job_id == job.pk, f"{other.pk} has no promise"
    assert forced.message == f"{operator.username} drains server node-1 although this promise may break."
    settle(agent)
    job.refresh_from_db()
    assert job.at_risk


def test_no_promise_is_made_on_a_server_that_leaves(cluster: Cluster, submit: Submit, operator: User) -> None:
    agent = SimulatedAgent.enrol("node-1", 4, SPEED)
    submit("best_effort", iterations=100)
    settle(agent)
    server_set_end(server=Server.objects.get(), actor=operator, available_until=timezone.now() + 24 * HOUR)
    job = submit(seconds=600, iterations=1_000)
    settle(agent)
    job.refresh_from_db()
    assert job.state == "declined"


def test_an_end_in_the_past_is_refused(two: tuple[SimulatedAgent, SimulatedAgent], operator: User) -> None:
    server = two[0].agent.server
    with pytest.raises(InvalidRequest) as refused:
        server_set_end(server=server, actor=operator, available_until=timezone.now() - HOUR)
    assert "available_until" in refused.value.errors


def enrolled(name: str, **fields: Any) -> Server:
    return agent_enrol(
        {
            "token": enrolment_token_create(created_by=None, server_name=name),
            "name": name,
            "address": "127.0.0.1",
            "port_range": (20_000, 20_100),
            "inventory": {"gpus": [{"index": 0, "kind": KIND}]},
            **fields,
        }
    ).server


def test_agent_reports_how_long_its_server_stays(cluster: Cluster) -> None:
    before = timezone.now()
    server = enrolled("pilot", available_seconds=3600.0)
    assert server.available_until is not None
    assert before + HOUR <= server.available_until <= timezone.now() + HOUR
    (server_snapshot,) = pool_snapshot(cluster, KIND, timezone.now()).snapshot.servers
    assert server_snapshot.ends_at == ends_at(server.available_until, cluster)
    assert enrolled("pilot").available_until == server.available_until, "the first report stays valid"
    Server.objects.update(available_until=timezone.now() - HOUR)
    assert enrolled("pilot").available_until is None, "a server that returns after its end has no end"


def test_nothing_is_measured_on_a_server_that_leaves_meanwhile(
    cluster: Cluster, submit: Submit, operator: User
) -> None:
    agent = SimulatedAgent.enrol("node-1", 4, SPEED)
    Server.objects.update(available_until=timezone.now() + timedelta(minutes=5))
    job = submit("best_effort", iterations=100, measured=False)
    run_planner("test")
    assert not job.generations.exists()
    Server.objects.update(available_until=None)
    settle(agent)
    assert job.generations.exists()
