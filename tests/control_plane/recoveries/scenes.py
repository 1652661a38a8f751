"""Shared steps of recovery tests: training jobs, and losses of servers and workers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.utils import timezone

from cluster.models import Cluster, Server
from recovery.life_cycle.facts import PHASES
from scheduling.choices import (
    GenerationState,
)
from scheduling.models import Job, Recovery
from scheduling.services.agents.leases import expire_leases, reconcile
from scheduling.services.planning.planning import run_planner
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.control_plane.simulated_time import SimulatedTime

Submit = Callable[..., Job]
Nodes = tuple[SimulatedAgent, SimulatedAgent]
#: Simulated seconds between two checks of the leases.
CHECK_SECONDS = 8.0
PHASE_TIMES = [f"{phase.value}_at" for phase in PHASES]


def train_on(submit: Submit, here: SimulatedAgent, other: SimulatedAgent, durable: int = 0) -> Job:
    """Return a job that trains on ``here`` alone, with a durable state of iteration ``durable`` if not 0."""
    Server.objects.filter(pk=other.agent.server_id).update(drain="drained")
    job = submit("best_effort", iterations=100_000)
    settle(here, other)
    Server.objects.filter(pk=other.agent.server_id).update(drain="none")
    worker = here.rank_zero(job.pk)
    assert worker is not None
    if durable:
        here.state_stored(worker, durable)
        here.report()
    reached(job, durable + 7)
    return Job.objects.get(pk=job.pk)


def go_on(time: SimulatedTime, *agents: SimulatedAgent, rounds: int = 5) -> None:
    """Alternate planner and agents while slots pass."""
    for _ in range(rounds):
        time.turn(0.1)
        run_planner("test")
        for agent in agents:
            if agent.has_news():
                agent.obey()
                agent.report()
        reconcile()


def reached(job: Job, iteration: int) -> None:
    Job.objects.filter(pk=job.pk).update(iterations_done=iteration, iterations_per_second=10.0)


def memory_of(agent: SimulatedAgent, job: Job, iteration: int) -> dict[str, Any]:
    """Return the store report of the job's ranks on that server."""
    live = job.generations.get(state=GenerationState.LIVE)
    holdings = [
        {
            "job": job.pk, "generation": live.number, "rank": rank, "iteration": iteration, "bytes": 9,
            "reserved_bytes": 18, "age_seconds": 0.1,
        }
        for rank in range(live.world_size)
        if live.assignments.filter(rank=rank, gpu__server=agent.agent.server_id).exists()
    ]  # fmt: skip
    return {"memory_store": {"used_bytes": 18, "limit_bytes": 1_000_000, "holdings": holdings}}


def fail(agent: SimulatedAgent, job: Job, reason: str = "killed") -> None:
    """Report the end of the job's worker of rank 0."""
    worker = agent.rank_zero(job.pk)
    assert worker is not None
    agent.event(worker, "failed", reason=reason, message="signal 9", traceback="")
    agent.report()


def check_leases(cluster: Cluster, *alive: SimulatedAgent) -> None:
    for agent in alive:
        agent.report()
    expire_leases()


def lose(cluster: Cluster, time: SimulatedTime, *alive: SimulatedAgent) -> datetime:
    """Silence all servers but those of ``alive`` until they are fenced, with lease checks and reports in
    between. Return when the silence was detected."""
    suspected_at = None
    for _ in range(round((cluster.fence_seconds + cluster.fence_margin_seconds) / CHECK_SECONDS) + 2):
        time.turn(CHECK_SECONDS)
        check_leases(cluster, *alive)
        if suspected_at is None and Server.objects.filter(state="suspect").exists():
            suspected_at = timezone.now()
    assert suspected_at is not None
    return suspected_at


def only_recovery(job: Job) -> Recovery:
    return Recovery.objects.get(job=job)


def assert_phases_ascend(recovery: Recovery) -> None:
    times = [getattr(recovery, name) for name in PHASE_TIMES]
    recorded = [at for at in times if at is not None]
    assert recorded == sorted(recorded)
    assert times[-1] is not None
    assert recovery.ended_at == recovery.running_at


def both_train(submit: Submit, nodes: Nodes) -> Job:
    """Return a job that trains over two servers."""
    job = submit("best_effort", iterations=100_000, batch=64)
    settle(*nodes)
    live = job.generations.get(state=GenerationState.LIVE)
    servers = set(live.assignments.values_list("gpu__server", flat=True))
    assert len(servers) == 2, "it takes all GPUs"
    reached(job, 50)
    return job
