"""Random runs of the live services: users submit, pause, resume and cancel; agents are slow, silent, and
repeat reports.

Time is simulated, a second a step. Agents keep the protocol: a worker takes a step a second, reports may be
lost or repeated, and an unreachable agent ends its workers when its lease expires.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q
from django.utils import timezone

from cluster.choices import DrainState, ServerState
from cluster.models import Cluster, Gpu, Server
from projects.errors import Conflict
from scheduling.choices import (
    PLANNED_STATES,
    AssignmentState,
    GenerationState,
    JobState,
    PromiseOutcome,
    VoidReason,
)
from scheduling.core.placement.buddy_blocks import NOWHERE
from scheduling.core.plans.release import UNKNOWN_SECONDS
from scheduling.core.plans.timeline import EVERYTHING
from scheduling.core.problem.problem import build_problem
from scheduling.core.question.arrays import TIME_TOLERANCE
from scheduling.core.question.snapshot import Snapshot
from scheduling.models import Assignment, Generation, Job
from scheduling.selectors.agents.desired_state import desired_state
from scheduling.selectors.cluster.servers_page import server_cards
from scheduling.services.agents.drain import server_drain, server_undrain
from scheduling.services.agents.leases import expire_leases, reconcile
from scheduling.services.agents.reports import Fenced, apply_report
from scheduling.services.generations.blocking import release_bounds
from scheduling.services.planning.planning import run_planner
from scheduling.services.requests.jobs import job_cancel, job_pause, job_resume
from scheduling.services.snapshots.snapshots import pool_snapshot
from tests.control_plane.simulated_agent import KIND, SimulatedAgent, SimulatedWorker
from tests.control_plane.simulated_time import SimulatedTime

Submit = Callable[..., Job]
#: Seconds that differences may last beyond their bounds: rows are reconciled once a step.
LOOKS = 3.0


@dataclass
class RandomAgent(SimulatedAgent):
    """Takes one step a second with every worker, trains in simulated time, and sends only some reports."""

    chance: random.Random = field(default_factory=random.Random)
    silent_until: float = 0.0
    heard_at: float = 0.0
    lease_seconds: float = 20.0
    held_back: list[dict[str, Any]] = field(default_factory=list)

    def second(self, at: float) -> None:
        """Simulate one second of this server."""
        if at - self.heard_at > self.lease_seconds:
            self.workers = {}
        for worker in list(self.workers.values()):
            self._train(worker)
        if at < self.silent_until:
            return
        if self.chance.random() < 0.8:
            self.obey()
        if self.chance.random() < 0.85:
            self._say(at)

    def _say(self, at: float) -> None:
        try:
            if self.held_back and self.chance.random() < 0.5:
                # An earlier report, repeated or late, now arrives out of order.
                apply_report(self.agent, self.held_back.pop())
            self.report()
        except Fenced:
            self.workers = {}
            self.report()
        self.heard_at = at

    def send(self, report: dict[str, Any]) -> Any:
        if self.chance.random() < 0.2:
            self.held_back.append(report)
        return super().send(report)

    def obey(self) -> None:
        desired = desired_state(self.agent.server_id)
        self.desired_version = desired["desired_version"]
        following = {}
        for entry in desired["generations"]:
            for member in entry["workers"]:
                key = (entry["job"], entry["generation"], member["rank"])
                worker = self.workers.get(key) or SimulatedWorker(entry, member["rank"], member["gpu_index"])
                worker.entry = entry
                following[key] = worker
        known_before, self.workers = set(self.workers), following
        for key, worker in following.items():
            if key in known_before and self.chance.random() < 0.8:
                self._follow(worker)

    def _train(self, worker: SimulatedWorker) -> None:
        if worker.phase != "training" or worker.entry["purpose"] != "training":
            return
        worker.iteration += int(self.speed[worker.entry["world_size"]])
        most = worker.entry["termination"]["max_iterations"]
        if worker.iteration >= most and worker.rank == 0:
            self._end(worker, most)
        elif worker.rank == 0 and self.chance.random() < 0.2:
            self._checkpoint(worker)

    def _end(self, worker: SimulatedWorker, iterations: int) -> None:
        worker.phase = "completed"
        self.event(
            worker, "completed", iteration=iterations, reason="max_iterations", artifacts=[], metrics={},
            store_seconds=0.1,
        )  # fmt: skip

    def _checkpoint(self, worker: SimulatedWorker) -> None:
        self.state_stored(worker, worker.iteration)


@dataclass
class RandomDay:
    """One seeded run. ``failures``: whether agents fall silent; then promises may break, and nothing else."""

    seed: int
    cluster: Cluster
    submit: Submit
    time: SimulatedTime
    speed: Mapping[int, float]
    failures: bool = False
    #: Seconds for which a third server is available; None: there are two servers.
    stays_seconds: float | None = None
    #: Bytes of host memory of each server; empty: agents report none.
    memory: tuple[int, ...] = ()
    agents: list[RandomAgent] = field(default_factory=list)
    paused_at: dict[str, float] = field(default_factory=dict)
    paused_ever: set[str] = field(default_factory=set)
    counted_free: dict[tuple[int, int], float] = field(default_factory=dict)
    states: dict[str, float] = field(default_factory=dict)
    #: GPUs kept for two jobs, by address, with the second at which that was first seen.
    kept_twice: dict[int, float] = field(default_factory=dict)
    at: float = 0.0
    #: Paused in a hand-over, and never resumed.
    paused_for_good: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        for number in range(2 if self.stays_seconds is None else 3):
            reported: dict[str, Any] = {"available_seconds": self.stays_seconds} if number == 2 else {}
            if self.memory:
                reported["inventory"] = {"memory_bytes": self.memory[number]}
            agent = RandomAgent.enrol(f"node-{number}", 4, self.speed, **reported)
            assert isinstance(agent, RandomAgent)
            agent.chance = random.Random(1000 * self.seed + number)
            agent.lease_seconds = self.cluster.fence_seconds
            self.agents.append(agent)

    def run(self, seconds: int) -> None:
        """Simulate this many seconds with users and failures, then without them until all bounds have passed.

        The first part lasts up to three times as long until a job was paused in the middle of a hand-over.
        """
        while self.at < seconds or (not self.paused_for_good and self.at < 3 * seconds):
            self._let_people_act()
            if self.failures and self.chance.random() < 0.02:
                agent = self.chance.choice(self.agents)
                agent.silent_until = self.at + self.chance.choice([3, 8, 30, 60])
            self._second()
        for _ in range(int(self._bound()) + 5):
            self._second()

    def _second(self) -> None:
        self.time.turn(1.0)
        self.at += 1.0
        for agent in self.agents:
            agent.second(self.at)
        expire_leases()
        reconcile()
        if self.chance.random() < 0.7:
            run_planner("test")
        self.check()

    def _let_people_act(self) -> None:
        jobs = list(Job.objects.filter(state__in=PLANNED_STATES).order_by("pk"))
        draw = self.chance.random()
        if draw < 0.1 and len(jobs) < 6:
            iterations = self.chance.choice([100, 400, 1500, 3000])
            if self.chance.random() < 0.6:
                self.submit(seconds=self.chance.choice([40, 90, 200, 400]), iterations=iterations)
            else:
                self.submit("best_effort", iterations=iterations)
        elif draw < 0.13 and jobs:
            self._pause_or_resume(self.chance.choice(jobs))
        elif draw < 0.14 and jobs:
            job = self.chance.choice(jobs)
            job_cancel(job=job, actor=job.owner)
        elif draw < 0.24:
            self._drain_or_undrain(Server.objects.get(pk=self.chance.choice(self.agents).agent.server_id))

        # Pausing in the middle of a hand-over is the hardest case, and random pauses rarely hit it: pause in
        # every hand-over until the first such pause, then in half of them.
        for generation in Generation.objects.filter(
            state=GenerationState.HANDOVER, start__contains={"from": "handover"}
        ):
            often = not self.paused_for_good or self.chance.random() < 0.5
            if often and not generation.job.paused_by_owner:
                self._pause_or_resume(generation.job)
                self.paused_for_good.add(generation.job_id)

    def _drain_or_undrain(self, server: Server) -> None:
        """Drain or undrain servers as an operator, where no promise breaks."""
        operator = Job.objects.first()
        if operator is None:
            return
        with contextlib.suppress(Conflict):
            if server.drain != DrainState.NONE:
                server_undrain(server=server, actor=operator.owner)
            elif Server.objects.exclude(drain=DrainState.NONE).count() == 0:
                server_drain(server=server, actor=operator.owner)

    def _pause_or_resume(self, job: Job) -> None:
        if job.paused_by_owner and job.pk not in self.paused_for_good:
            job_resume(job=job, actor=job.owner)
            self.paused_at.pop(job.pk, None)
        elif not job.paused_by_owner:
            job_pause(job=job, actor=job.owner)
            self.paused_at[job.pk] = self.at
            self.paused_ever.add(job.pk)

    # What must hold after every second ---------------------------------------------------------

    def check(self) -> None:
        """Check all invariants against the rows and the agents' true workers."""
        self._nobody_shares_a_gpu()
        self._paused_jobs_leave()
        self._states_agree()
        self._plans_count_on_nothing_that_is_held()
        self._nobody_is_where_time_is_over()
        self._no_server_is_overcommitted()
        assert not Job.objects.filter(state=JobState.FAILED).exists(), f"{self._where()}: a job failed"
        if not self.failures:
            self._promises_are_kept()

    def _nobody_shares_a_gpu(self) -> None:
        for agent in self.agents:
            owners: dict[int, str] = {}
            for (job, _, _), worker in agent.workers.items():
                assert owners.setdefault(worker.gpu_index, job) == job, f"{self._where()}: two jobs on a GPU"

    def _nobody_is_where_time_is_over(self) -> None:
        for server in Server.objects.filter(available_until__lte=timezone.now()):
            there = Assignment.objects.filter(gpu__server=server).exclude(state=AssignmentState.RELEASED)
            assert not there.exists(), f"{self._where()}: somebody is on {server.name}, which is gone"

    def _no_server_is_overcommitted(self) -> None:
        """Check that each server has the memory reserved by its workers and by those that are starting."""
        if not self.memory:
            return  # agents report no memory
        for card in server_cards(Job.objects.earliest("submitted_at").owner, timezone.now()):
            if card.server.memory_bytes:
                assert card.reserved_bytes <= card.server.memory_bytes, (
                    f"{self._where()}: {card.server.name} is overcommitted"
                )

    def _paused_jobs_leave(self) -> None:
        for job_id, since in self.paused_at.items():
            held = Assignment.objects.filter(job_id=job_id).exclude(state=AssignmentState.RELEASED)
            if self.at - since > self._bound() and held.exists():
                raise AssertionError(
                    f"{self._where()}: {job_id} holds GPUs, paused {self.at - since:.0f} s ago"
                )

    def _states_agree(self) -> None:
        """Check that a job is `running` while a generation of it trains or starts, within ``LOOKS``."""
        generations = Generation.objects.filter(job__state__in=PLANNED_STATES, purpose="training")
        states_by_job: dict[str, set[str]] = {}
        for job_id, state in generations.values_list("job_id", "state"):
            states_by_job.setdefault(job_id, set()).add(state)
        for job in Job.objects.filter(state__in=PLANNED_STATES).only("state"):
            states = states_by_job.get(job.pk, set())
            live = GenerationState.LIVE in states
            coming = bool(states - {GenerationState.LIVE, GenerationState.RETIRED})
            agrees = (live or coming) if job.state == JobState.RUNNING else not live
            if agrees:
                self.states.pop(job.pk, None)
            since = self.states.setdefault(job.pk, self.at) if not agrees else self.at
            assert self.at - since <= LOOKS, f"{self._where()}: {job.pk} is {job.state}, live: {live}"

    def _plans_count_on_nothing_that_is_held(self) -> None:
        """Check that each held GPU is its job's in the snapshot, or is blocked for as long as it is held."""
        snapshot = pool_snapshot(Cluster.objects.get(), KIND, timezone.now()).snapshot
        planned = {job.id for job in snapshot.jobs}
        until: dict[int, float] = {}
        for block in snapshot.blocked:
            for address in block.addresses:
                until[address] = max(until.get(address, 0.0), block.until)
        self._nothing_is_planned_twice(snapshot)
        order = {
            gpu.pk: address
            for address, gpu in enumerate(Gpu.objects.order_by("server__rack", "server_id", "index"))
        }
        held = Assignment.objects.exclude(state=AssignmentState.RELEASED).select_related("generation")
        seconds_left = {}
        for assignment in held:
            generation = assignment.generation
            if generation.state == GenerationState.RETIRED:
                continue
            in_plan = assignment.job_id in planned and generation.purpose == "training"
            address = order[assignment.gpu_id]
            assert in_plan or address in until, f"{self._where()}: GPU {address} is held and counted as free"
            if not in_plan:
                seconds_left[(assignment.gpu_id, generation.pk)] = until[address] - snapshot.now
        for key, seconds in seconds_left.items():
            ends_at = self.counted_free.setdefault(key, self.at + seconds)
            # A later estimate may replace an earlier one only before the earlier one has expired.
            assert self.at <= ends_at + LOOKS, f"{self._where()}: GPU held after it was counted as free"
        self.counted_free = {key: value for key, value in self.counted_free.items() if key in seconds_left}

    def _nothing_is_planned_twice(self, snapshot: Snapshot) -> None:
        """Check that GPUs passing between jobs belong to a locked job within a pass, and that no plan uses
        these or blocked GPUs."""
        fixed = Counter(address for job in snapshot.jobs if job.locked for address in job.placement)
        twice = {address for address, jobs in fixed.items() if jobs > 1}
        self.kept_twice = {address: self.kept_twice.get(address, self.at) for address in twice}
        for address, since in self.kept_twice.items():
            assert self.at - since <= LOOKS, f"{self._where()}: GPU {address} is kept for two jobs"
        problem = build_problem(snapshot)
        times, free, pieces = problem.opened
        for piece in range(pieces):
            begins_at = snapshot.now + float(times[piece])
            kept_gpus = {
                address
                for block in snapshot.blocked
                for address in block.addresses
                if block.until > begins_at + TIME_TOLERANCE
            }
            if piece == 0:
                kept_gpus |= set(fixed)
            usable = sum(problem.blocks.block_of[address] != NOWHERE for address in kept_gpus)
            assert free[EVERYTHING, piece] <= problem.gpus - usable, (
                f"{self._where()}: GPUs that are held are counted as free"
            )

    def _promises_are_kept(self) -> None:
        broken = Q(promise_outcome=PromiseOutcome.MISSED) | Q(void_reason=VoidReason.FAILURES)
        for job in Job.objects.filter(broken).exclude(pk__in=self.paused_ever):
            raise AssertionError(f"{self._where()}: the promise to {job.pk} was broken")

    def _bound(self) -> float:
        bounds = release_bounds(self.cluster)
        longest = bounds.handover_seconds + bounds.suspending_seconds + LOOKS
        assert longest < UNKNOWN_SECONDS
        silent = Server.objects.exclude(state=ServerState.UP).exists() or self.failures
        return longest + (2 * bounds.silence_seconds if silent else 0.0)

    def _where(self) -> str:
        return f"seed {self.seed}, second {self.at:.0f}"
