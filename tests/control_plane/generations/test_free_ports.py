"""A server without free ports stops only the job that needs one there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.models import Cluster, Server
from scheduling.choices import JobState
from scheduling.models import Generation, Incident, Job
from scheduling.services.requests.jobs import job_cancel
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.factories import FunctionVersionFactory

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


def give_ports(name: str, count: int) -> None:
    """Set the number of ports for workers on the server."""
    server = Server.objects.get(name=name)
    Server.objects.filter(pk=server.pk).update(port_last=server.port_first + count - 1, port_next=0)


def states(jobs: list[Job]) -> dict[str, str]:
    return {job.pk: Job.objects.get(pk=job.pk).state for job in jobs}


def measure_function(submit: Submit, *agents: SimulatedAgent) -> None:
    """Measure the function and end its job."""
    job = submit("best_effort")
    settle(*agents)
    job_cancel(job=Job.objects.get(pk=job.pk), actor=job.owner)
    settle(*agents)


def test_job_without_a_port_waits_and_the_others_run(cluster: Cluster, submit: Submit) -> None:
    agents = [SimulatedAgent.enrol(name, 1, SPEED) for name in ("node-1", "node-2")]
    measure_function(submit, *agents)
    give_ports("node-1", 1)  # one for the rendezvous, none for a hand-over
    jobs = [submit("best_effort", iterations=100_000) for _ in range(2)]
    settle(*agents)

    running = [pk for pk, state in states(jobs).items() if state == JobState.RUNNING]
    (waiting,) = (job for job in jobs if job.pk not in running)
    assert len(running) == 1
    incident = Incident.objects.get()
    assert (incident.kind, incident.job_id, incident.resolved_at) == (Incident.Kind.NO_PORT, waiting.pk, None)
    assert "node-1 has too few free ports" in incident.message
    assert waiting.events.filter(kind="no_port").count() == 1
    assert not Generation.objects.filter(job=waiting, purpose="training").exists()
    assert Job.objects.get(pk=waiting.pk).last_generation == 0, (
        "a generation that was not created uses up no number"
    )

    give_ports("node-1", 20)
    Cluster.objects.update(planned_version=0)
    settle(*agents)
    assert set(states(jobs).values()) == {JobState.RUNNING}
    incident.refresh_from_db()
    assert incident.resolved_at is not None


def test_ports_too_few_for_one_job_serve_the_next(cluster: Cluster, submit: Submit) -> None:
    """Two ports are too few for a job on two GPUs, and enough for a job on one GPU."""
    agent = SimulatedAgent.enrol("node-1", 2, SPEED)
    measure_function(submit, agent)
    give_ports("node-1", 2)
    wide = submit("best_effort", iterations=100_000)
    settle(agent)
    assert states([wide]) == {wide.pk: JobState.ADMITTED}
    narrow = submit("best_effort", iterations=100_000)
    settle(agent)
    assert sorted(states([wide, narrow]).values()) == [JobState.ADMITTED, JobState.RUNNING]
    assert not Incident.objects.filter(kind=Incident.Kind.PASS_FAILED).exists()


def test_a_function_is_measured_once_a_port_is_free(cluster: Cluster, submit: Submit) -> None:
    agent = SimulatedAgent.enrol("node-1", 2, SPEED)
    first = submit("best_effort", iterations=100_000, batch=1)
    settle(agent)
    port = Generation.objects.get(job=first, purpose="training").master_port
    Server.objects.update(port_first=port, port_last=port)
    job = submit(
        "best_effort", iterations=100_000, batch=1, version=FunctionVersionFactory.create(), measured=False
    )
    settle(agent)
    assert Incident.objects.get().kind == Incident.Kind.NO_PORT
    assert states([first, job]) == {first.pk: JobState.RUNNING, job.pk: JobState.SUBMITTED}
    give_ports("node-1", 20)
    Incident.objects.update(last_at="2020-01-01T00:00Z")  # long ago
    settle(agent)
    assert states([job]) == {job.pk: JobState.RUNNING}
    assert not Incident.objects.filter(resolved_at=None).exists()
