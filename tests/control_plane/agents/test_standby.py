"""Standby servers: no plan uses them, they replace a lost server at once, and promises are kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.choices import ServerState
from cluster.models import Cluster, Gpu, Server
from projects.errors import InvalidRequest
from projects.models import User
from scheduling.choices import AssignmentState, JobState
from scheduling.models import Assignment, Incident, Job
from scheduling.selectors.cluster.standby import standby_of
from scheduling.services.agents.leases import reconcile
from scheduling.services.agents.standby import keep_standby, standby_set
from tests.control_plane.conftest import SPEED
from tests.control_plane.generations.test_failures import fall_silent
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]
Three = tuple[SimulatedAgent, SimulatedAgent, SimulatedAgent]


@pytest.fixture
def operator(cluster: Cluster) -> User:
    user: User = UserFactory.create(is_operator=True)
    return user


@pytest.fixture
def three(cluster: Cluster) -> Three:
    one, two, three = (SimulatedAgent.enrol(f"node-{number}", 4, SPEED) for number in (1, 2, 3))
    return one, two, three


def standing_by() -> set[str]:
    return set(Server.objects.filter(standby=True).values_list("name", flat=True))


def used() -> set[str]:
    assignments = Assignment.objects.filter(state=AssignmentState.HELD)
    return set(assignments.values_list("gpu__server__name", flat=True))


def named(agents: Three, name: str) -> SimulatedAgent:
    return next(agent for agent in agents if agent.agent.server.name == name)


def test_standby_server_is_unused_until_it_replaces_a_lost_one(
    cluster: Cluster, three: Three, submit: Submit, operator: User
) -> None:
    standby_set(cluster=cluster, actor=operator, standby_servers=1)
    (spare,) = standing_by()
    jobs = [submit("best_effort", iterations=100_000) for _ in range(3)]
    settle(*three)
    assert used() == {"node-1", "node-2", "node-3"} - {spare}
    assert not Gpu.objects.usable().filter(server__name=spare).exists()
    lost = min(used())
    fall_silent(named(three, lost), cluster)
    assert standing_by() == {lost}, "the two servers have swapped roles"
    others = [agent for agent in three if agent.agent.server.name != lost]
    settle(*others)
    assert used() >= {spare}
    assert {job.state for job in Job.objects.filter(pk__in=[job.pk for job in jobs])} == {JobState.RUNNING}


def test_returning_server_refills_the_standby_pool_without_moves(
    cluster: Cluster, three: Three, submit: Submit, operator: User
) -> None:
    standby_set(cluster=cluster, actor=operator, standby_servers=1)
    submit("best_effort", iterations=100_000)
    settle(*three)
    lost = min(used())
    silent = named(three, lost)
    fall_silent(silent, cluster)
    settle(*(agent for agent in three if agent is not silent))
    reconcile()
    incident = Incident.objects.get(kind=Incident.Kind.NO_STANDBY)
    assert f"Not here: {lost}" in incident.message
    before = used()
    silent.workers = {}
    silent.report()
    silent.report()
    settle(*three)
    reconcile()
    (pool,) = standby_of(Cluster.objects.get()).pools
    assert (pool.ready, pool.note) == ((lost,), "")
    assert used() == before
    assert not Incident.objects.filter(kind=Incident.Kind.NO_STANDBY, resolved_at=None).exists()


def test_idle_silent_server_is_replaced_before_its_fence(
    cluster: Cluster, three: Three, operator: User
) -> None:
    standby_set(cluster=cluster, actor=operator, standby_servers=1)
    (spare,) = standing_by()
    empty = next(agent for agent in three if agent.agent.server.name != spare)
    Server.objects.filter(pk=empty.agent.server_id).update(state=ServerState.SUSPECT)
    keep_standby(cluster.pk)
    assert standing_by() == {empty.agent.server.name}


def test_server_needed_by_a_promise_does_not_stand_by(
    cluster: Cluster, submit: Submit, operator: User
) -> None:
    two = tuple(SimulatedAgent.enrol(f"node-{number}", 4, SPEED) for number in (1, 2))
    measured_job = submit("best_effort", iterations=10)
    settle(*two)
    next(agent for agent in two if agent.rank_zero(measured_job.pk)).complete(measured_job.pk)
    for agent in two:
        agent.report()
    settle(*two)
    # Both servers are needed: 60 iterations a second on eight GPUs, 34 on four.
    job = submit(seconds=300, iterations=15_000)
    settle(*two)
    job.refresh_from_db()
    assert job.promised
    changed = standby_set(cluster=cluster, actor=operator, standby_servers=1)
    assert standing_by() == set()
    (pool,) = standby_of(changed).pools
    assert pool.note == (
        f"0 of 1 standby servers are ready. Without node-1 the promise of job {job.pk} would break; it is "
        "tried again."
    )
    job.refresh_from_db()
    assert (job.promised, job.at_risk) == (True, False)
    assert Incident.objects.get(kind=Incident.Kind.NO_STANDBY).job is None


def test_too_large_pool_is_refused_and_a_smaller_one_frees_servers(
    cluster: Cluster, three: Three, operator: User
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        standby_set(cluster=cluster, actor=operator, standby_servers=3)
    (message,) = refused.value.errors["standby_servers"]
    assert message.endswith("at most 2 can stand by.")
    standby_set(cluster=cluster, actor=operator, standby_servers=2)
    assert len(standing_by()) == 2
    standby_set(cluster=cluster, actor=operator, standby_servers=0)
    assert standing_by() == set()


def test_standby_advice_follows_from_the_operators_figures(
    cluster: Cluster, three: Three, operator: User
) -> None:
    (pool,) = standby_of(cluster).pools
    assert (pool.servers, pool.advised) == (3, 0)
    # Each of three servers fails once an hour, and a replacement takes an hour: losses accumulate.
    changed = standby_set(
        cluster=cluster, actor=operator, failures_per_server_day=24.0, replacement_seconds=3600.0
    )
    (pool,) = standby_of(changed).pools
    assert (pool.wanted, pool.advised) == (0, 3)
