"""A promised job on lent servers is on time although deployments reclaim the servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.db.models import QuerySet

from lending.choices import ReclaimState
from lending.models import InferenceCluster, ReclaimOrder
from scheduling.choices import AssignmentState, JobState, PromiseOutcome
from scheduling.models import Assignment, Job
from tests.control_plane.conftest import SPEED, curves_known, submit, version
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.deployments.conftest import Agents, Deploy, ServingAgent
from tests.deployments.conftest import settle as settle_deployments
from tests.deployments.test_lending import (
    PERIOD_SECONDS,
    Traffic,
    scheduled,
    serving_on,
    traffic,
    whereabouts,
)

__all__ = ["curves_known", "scheduled", "submit", "traffic", "version"]  # fixtures

pytestmark = pytest.mark.django_db(transaction=True)

DEADLINE_SECONDS = 900.0
#: On the two owned GPUs alone they take 720 s.
ITERATIONS = round(720 * SPEED[2])


class Training:
    """A job that trains as fast as its GPUs allow, beside the traffic of a deployment."""

    def __init__(self, job: Job, traffic: Traffic, agents: Sequence[SimulatedAgent]) -> None:
        self.job, self.traffic, self.agents = job, traffic, agents
        self.seconds = 0.0
        self._iterations = 0.0

    def servers(self) -> set[str]:
        """Return the names of the servers that the job has GPUs on."""
        return set(self._held().values_list("gpu__server__name", flat=True))

    def step(self, busy: float) -> None:
        """Let one sampling period pass, then the planner and the agents react."""
        self.traffic.step(busy)
        self.seconds += PERIOD_SECONDS
        self._iterations += SPEED[self._held().count()] * PERIOD_SECONDS
        self._report()
        settle(*self.agents)
        self.job.refresh_from_db()
        assert not self.job.at_risk
        assert self.job.promise_outcome in (PromiseOutcome.OPEN, PromiseOutcome.MET)

    def _held(self) -> QuerySet[Assignment]:
        return Assignment.objects.filter(job=self.job).exclude(state=AssignmentState.RELEASED)

    def _report(self) -> None:
        """Report how far the job is; at the end that it has completed."""
        done = min(int(self._iterations), ITERATIONS)
        for agent in self.agents:
            for (job, _, _), worker in agent.workers.items():
                if job == self.job.pk:
                    worker.iteration = done
        agent = next(agent for agent in self.agents if agent.rank_zero(self.job.pk) is not None)
        if done == ITERATIONS:
            agent.complete(self.job.pk)
        agent.report(metrics=[self._metrics(agent, done)])

    def _metrics(self, agent: SimulatedAgent, done: int) -> dict[str, Any]:
        worker = agent.rank_zero(self.job.pk)
        assert worker is not None
        return {
            "job": self.job.pk,
            "generation": worker.entry["generation"],
            "iteration": done,
            "values": {},
            "iterations_per_second": SPEED[self._held().count()],
            "train_seconds": 0.01,
            "age_seconds": 0.0,
        }


def test_a_promised_job_is_on_time_after_a_reclaim(
    inference: InferenceCluster, agents: Agents, deploy: Deploy, traffic: Traffic, submit: Callable[..., Job]
) -> None:
    owned = ServingAgent.enrol("node-1", 2, SPEED)
    deploy(maximum_servers=3, latency_target_seconds=0.2)
    settle_deployments(*agents)
    job = submit("slo", seconds=DEADLINE_SECONDS, iterations=ITERATIONS)
    settle(owned, *agents)
    training = Training(job, traffic, [owned, *agents])
    while "on_loan" not in whereabouts() or training.servers() == {"node-1"}:
        training.step(busy=0.3)
        assert training.seconds < 600.0, "the job does not grow onto lent servers"
    while whereabouts() != ["training"] + ["inference"] * 3:
        training.step(busy=1.9)
    assert serving_on(agents) == [1, 1, 1]
    orders = list(ReclaimOrder.objects.all())
    assert {order.state for order in orders} <= {ReclaimState.RETURNED, ReclaimState.CONFIRMED}
    assert all(order.returned_at <= order.wanted_by for order in orders if order.returned_at)
    assert training.servers() == {"node-1"}
    while job.state != JobState.COMPLETED:
        training.step(busy=1.9)
    assert job.promise_outcome == PromiseOutcome.MET
