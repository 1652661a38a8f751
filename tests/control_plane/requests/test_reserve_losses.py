"""With one server in reserve, a server is lost for good at the worst moment and every promise holds. Live
services, simulated time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from cluster.models import Cluster, Server
from scheduling.choices import GenerationState, JobState, PromiseOutcome
from scheduling.models import Checkpoint, Generation, Job
from scheduling.services.agents.leases import expire_leases, reconcile
from scheduling.services.planning.planning import run_planner
from scheduling.services.requests.accepting import job_accept_offer
from tests.control_plane.conftest import SPEED
from tests.control_plane.planning.random_days import RandomAgent
from tests.control_plane.planning.test_random_days import store_curve
from tests.control_plane.simulated_agent import SimulatedWorker
from tests.control_plane.simulated_time import SimulatedTime

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.timeout(400)]

Submit = Callable[..., Job]
LONGEST_SECONDS = 600
RECONCILED_EVERY_SECONDS = 2.0  # as by the clock of the platform


class Never(random.Random):
    """Always returns 0.5: unlikely events never happen, likely events always do."""

    def random(self) -> float:
        return 0.5


@dataclass
class SteadyAgent(RandomAgent):
    """Trains a step a second and stores states at the required rate; once ``lost``, never reports again."""

    lost: bool = False
    since_stored: dict[tuple[str, int, int], int] = field(default_factory=dict)
    #: Iterations at which states were handed over, by job and generation. Agents exchange them directly.
    handed_over: dict[tuple[str, int], int] = field(default_factory=dict)

    def second(self, at: float) -> None:
        if not self.lost:
            super().second(at)

    def obey(self) -> None:
        current_version = Server.objects.values_list("desired_version", flat=True).get(
            pk=self.agent.server_id
        )
        if current_version != self.desired_version:
            super().obey()
            return
        for worker in self.workers.values():
            self._follow(worker)

    def _follow(self, worker: SimulatedWorker) -> None:
        job, start = worker.entry["job"], worker.entry.get("start") or {}
        if start.get("from") == "handover" and worker.entry["goal"] == "train" and worker.phase == "ready":
            donor = (job, start["generation"])
            if donor not in self.handed_over:
                return  # wait for the state
            worker.entry = {**worker.entry, "start": {**start, "iteration": self.handed_over[donor]}}
        before = worker.phase
        super()._follow(worker)
        if worker.phase == "handed_over" != before and worker.rank == 0:
            self.handed_over[job, worker.entry["generation"]] = worker.iteration

    def _train(self, worker: SimulatedWorker) -> None:
        if worker.phase != "training" or worker.entry["purpose"] != "training":
            return
        key = (worker.entry["job"], worker.entry["generation"], worker.rank)
        worker.iteration += int(self.speed[worker.entry["world_size"]])
        most = worker.entry["termination"]["max_iterations"]
        if worker.rank != 0:
            return
        self.since_stored[key] = self.since_stored.get(key, 0) + 1
        if worker.iteration >= most:
            self._end(worker, most)
        elif self.since_stored[key] >= worker.entry["checkpoint_seconds"]:
            self.since_stored[key] = 0
            self._checkpoint(worker)


@dataclass
class Days:
    """Runs the cluster in steps of a second."""

    time: SimulatedTime
    agents: list[SteadyAgent]
    at: float = 0.0

    def until(self, condition: Callable[[], bool], description: str) -> None:
        for _ in range(LONGEST_SECONDS):
            if condition():
                return
            self.time.turn(1.0)
            self.at += 1.0
            for agent in self.agents:
                agent.second(self.at)
            expire_leases()
            if self.at % RECONCILED_EVERY_SECONDS == 0.0:
                reconcile()
            run_planner("test")
        pytest.fail(f"waited {LONGEST_SECONDS} s in vain for: {description}")

    def lose_server_of(self, job: Job) -> None:
        """Lose the server of rank 0 of the job's present generation."""
        live = Generation.objects.get(job=job, state=GenerationState.LIVE)
        name = live.assignments.get(rank=0).gpu.server.name
        (agent,) = [agent for agent in self.agents if agent.agent.server.name == name]
        agent.lost, agent.workers = True, {}


@pytest.fixture
def curves_known() -> bool:
    return False


@pytest.fixture
def days(cluster: Cluster, clock: SimulatedTime) -> Days:
    cluster.reserve_servers = 1
    cluster.slot_seconds = 5.0
    cluster.suspect_seconds, cluster.fence_seconds = 6.0, 20.0
    cluster.prepare_timeout_seconds = cluster.handover_timeout_seconds = 12.0
    cluster.suspend_timeout_seconds = 12.0
    cluster.promise_margin = 0.1
    cluster.save()
    agents: list[SteadyAgent] = []
    handed_over: dict[tuple[str, int], int] = {}
    for number in range(2):
        agent = SteadyAgent.enrol(f"node-{number}", 4, SPEED)
        assert isinstance(agent, SteadyAgent)
        agent.chance = Never()
        agent.handed_over = handed_over
        agent.lease_seconds = cluster.fence_seconds
        agents.append(agent)
    return Days(clock, agents)


def promised_at_the_earliest_deadline(submit: Submit, iterations: int) -> Job:
    """Return a job promised at the earliest deadline that the platform offers."""
    declined = submit(seconds=5, iterations=iterations)
    assert declined.curve is not None
    if not declined.curve.levels.exists():
        store_curve(declined.curve)
    run_planner("test")
    declined.refresh_from_db()
    assert declined.state == JobState.DECLINED
    job = job_accept_offer(job=declined, actor=declined.owner)
    assert job.promised
    return job


def trains(job: Job) -> bool:
    return Generation.objects.filter(job=job, purpose="training", state=GenerationState.LIVE).exists()


def assert_met(days: Days, *jobs: Job) -> None:
    def finished() -> bool:
        return all(Job.objects.get(pk=job.pk).finished() for job in jobs)

    days.until(finished, "all jobs have ended")
    for job in jobs:
        job.refresh_from_db()
        assert (job.state, job.promise_outcome) == (JobState.COMPLETED, PromiseOutcome.MET)


def test_a_server_lost_just_before_a_checkpoint_breaks_no_promise(days: Days, submit: Submit) -> None:
    # Long enough that a minute passes without a checkpoint even if growth, which also stores, comes between.
    job = promised_at_the_earliest_deadline(submit, iterations=60 * 140)
    days.until(lambda: trains(job), "it trains")
    days.until(
        lambda: any(59 <= seconds < 60 for agent in days.agents for seconds in agent.since_stored.values()),
        "a minute of work is about to be stored",
    )
    assert not Checkpoint.objects.filter(job=job, reason="periodic").exists()
    days.lose_server_of(job)
    assert_met(days, job)


def test_a_server_lost_in_a_hand_over_breaks_no_promise(days: Days, submit: Submit) -> None:
    # Long enough that growing is worth the pause.
    first = promised_at_the_earliest_deadline(submit, iterations=60 * 140)
    days.until(lambda: trains(first), "it trains")
    second = promised_at_the_earliest_deadline(submit, iterations=60 * 10)
    in_hand_over = Generation.objects.filter(
        job=first, state=GenerationState.HANDOVER, start__contains={"from": "handover"}
    )
    days.until(in_hand_over.exists, "the first hands over, to grow after the second has ended")
    days.lose_server_of(first)
    assert_met(days, first, second)
