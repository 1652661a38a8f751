"""An agent without processes: it follows the desired state as docs/protocols.md specifies and reports through
the services.

Its workers behave as real workers do, but at once: a test decides how far they get and what fails.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from cluster.choices import ServerState
from cluster.models import Agent
from lending.models import InferenceCluster
from lending.services.inference_clusters import server_token_create
from projects.prepared import PreparedRows, PreparedValues
from scheduling.models import Job
from scheduling.selectors.agents.desired_state import desired_state
from scheduling.services.agents.enrolment import agent_enrol, enrolment_token_create
from scheduling.services.agents.reports import ReportAnswer, apply_report
from tests.control_plane.simulated_time import let_pass

KIND = "emulated-test"
#: Each round takes longer than a slot of the tests' cluster.
ROUND_SECONDS = 0.01
#: Limit on the agents' reports between two passes of the planner.
MOST_EXCHANGES = 20
#: By job and generation, the last state that all ranks store: its iteration and the reason for storing it.
POINTS: dict[tuple[str, int], tuple[int, str]] = {}


@dataclass
class SimulatedWorker:
    entry: Mapping[str, Any]
    rank: int
    gpu_index: int
    phase: str = "preparing"
    iteration: int = 0
    stored: tuple[int, str] | None = None
    #: When the worker became ready; None before.
    ready_at: datetime | None = None
    #: When the worker began to measure; None before.
    measures_since: datetime | None = None

    def ready_age_seconds(self) -> float | None:
        if self.ready_at is None and self.phase not in ("starting", "preparing"):
            self.ready_at = timezone.now()
        return None if self.ready_at is None else (timezone.now() - self.ready_at).total_seconds()


@dataclass
class SimulatedAgent:
    """An agent with measurements that report: `speed`, iterations a second by number of GPUs; `memory`, a
    worker's bytes of host memory by number of GPUs; `state_bytes`, the size of the state; `mixture`, the
    sizes of a model with experts. `measuring_seconds`: time until the levels are reported."""

    agent: Agent
    speed: Mapping[int, float]
    workers: dict[tuple[str, int, int], SimulatedWorker] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    sequence: int = 0
    desired_version: int = 0
    memory: Mapping[int, int] = field(default_factory=dict)
    state_bytes: int = 0
    mixture: Mapping[str, Any] | None = None
    measuring_seconds: float = 0.0
    #: The result of ``shown`` at the last report.
    reported: tuple[int, dict[tuple[str, int, int], str]] | None = None

    def shown(self) -> tuple[int, dict[tuple[str, int, int], str]]:
        """Return the last version received, and the phase of each of its workers."""
        return self.desired_version, {place: worker.phase for place, worker in self.workers.items()}

    @classmethod
    def enrol(
        cls,
        name: str,
        gpus: int,
        speed: Mapping[int, float],
        inference_cluster: InferenceCluster | None = None,
        kind: str = KIND,
        **fields: Any,
    ) -> SimulatedAgent:
        """Enrol a server with this many GPUs, and send its first report. ``fields``: further fields of the
        enrolment request; ``inventory`` is merged into its inventory."""
        enrolled = agent_enrol(
            {
                "token": (
                    enrolment_token_create(created_by=None, server_name=name)
                    if inference_cluster is None
                    else server_token_create(
                        inference_cluster=inference_cluster, created_by=None, server_name=name
                    )
                ),
                "name": name,
                "address": "127.0.0.1",
                "port_range": (20_000, 20_100),
                "inventory": {
                    "gpus": [{"index": index, "kind": kind, "emulated": True} for index in range(gpus)],
                    "sandbox": "namespaces",
                    **fields.pop("inventory", {}),
                },
                **fields,
            }
        )
        agent = cls(Agent.objects.select_related("server").get(server=enrolled.server), speed)
        agent.report()
        return agent

    def report(self, **extra: Any) -> ReportAnswer:
        """Send the true state, as the real agent does once a second."""
        self.agent = _AGENT.get(self.agent.pk)
        self.sequence += 1
        self.reported = self.shown()
        self._store_agreed()
        events, self.events = self.events, []
        return self.send(
            {
                "sequence": self.sequence,
                "boot_id": "boot",
                "desired_version": self.desired_version,
                "workers": [
                    {
                        "key": f"{job}-{generation}-{rank}",
                        "job": job,
                        "generation": generation,
                        "rank": rank,
                        "gpu_index": worker.gpu_index,
                        "phase": worker.phase,
                        "ready_age_seconds": worker.ready_age_seconds(),
                    }
                    for (job, generation, rank), worker in self.workers.items()
                ],
                "events": events,
                **extra,
            }
        )

    def has_news(self) -> bool:
        """Return whether the desired state changed or a report is due, which is at least once a second."""
        ((version, state, last_report_at),) = _LAST_REPORTED.ask(self.agent.pk)
        return bool(
            version != self.desired_version
            or state != ServerState.UP
            or self.reported != self.shown()
            or self.events
            or any(map(self._has_measured, self.workers.values()))
            or any(
                POINTS.get(place[:2], worker.stored) != worker.stored
                for place, worker in self.workers.items()
            )
            or last_report_at is None
            or timezone.now() - last_report_at >= timedelta(seconds=1)
        )

    def send(self, report: dict[str, Any]) -> ReportAnswer:
        """Pass a report to the control plane."""
        return apply_report(self.agent, report)

    def obey(self) -> None:
        """Fetch the desired state and take every worker as far as its goal allows."""
        desired = desired_state(self.agent.server_id)
        self.desired_version = desired["desired_version"]
        workers = {}
        for entry in desired["generations"]:
            for member in entry["workers"]:
                key = (entry["job"], entry["generation"], member["rank"])
                worker = self.workers.get(key) or SimulatedWorker(entry, member["rank"], member["gpu_index"])
                worker.entry = entry
                workers[key] = worker
        self.workers = workers
        for worker in workers.values():
            self._follow(worker)

    def event(self, worker: SimulatedWorker, kind: str, **fields: Any) -> dict[str, Any]:
        """Add an event of a worker to the next report, and return it."""
        event = {
            "id": str(uuid.uuid4()),
            "kind": kind,
            "job": worker.entry["job"],
            "generation": worker.entry["generation"],
            "age_seconds": 0.0,
            **fields,
        }
        self.events.append(event)
        return event

    def shard_stored(self, worker: SimulatedWorker, iteration: int, reason: str) -> dict[str, Any]:
        """Return the event that a rank's part of a state is durable."""
        folder = f"{worker.entry['job']}/checkpoints/{worker.entry['generation']}-{iteration}"
        return self.event(
            worker,
            "shard_stored",
            rank=worker.rank,
            iteration=iteration,
            uri=f"memory://{folder}/{worker.rank}.pt",
            bytes=9,
            sha256="0" * 64,
            reason=reason,
        )

    def state_stored(self, worker: SimulatedWorker, iteration: int, reason: str = "periodic") -> None:
        """Let each rank of a worker's generation store the state of this iteration at its agent's next
        report."""
        POINTS[worker.entry["job"], worker.entry["generation"]] = (iteration, reason)

    def _store_agreed(self) -> None:
        for (job, generation, _), worker in self.workers.items():
            point = POINTS.get((job, generation))
            if point is not None and worker.stored != point:
                worker.stored = point
                self.shard_stored(worker, *point)

    def rank_zero(self, job_id: str) -> SimulatedWorker | None:
        """Return the training rank 0 of a job on this server."""
        candidates = [
            worker
            for (job, _, rank), worker in self.workers.items()
            if job == job_id and rank == 0 and worker.entry["purpose"] == "training"
        ]
        return max(candidates, key=lambda worker: worker.entry["generation"]) if candidates else None

    def complete(self, job_id: str) -> None:
        """Let a training job reach its last iteration and store its weights."""
        worker = self.rank_zero(job_id)
        assert worker is not None
        worker.phase = "completed"
        self.event(
            worker,
            "completed",
            iteration=worker.entry["termination"]["max_iterations"],
            reason="max_iterations",
            artifacts=[{"name": "weights.pt", "uri": "memory://weights.pt", "bytes": 4, "sha256": "0" * 64}],
            metrics={"loss": 0.1},
            store_seconds=0.2,
        )

    def _follow(self, worker: SimulatedWorker) -> None:
        if worker.entry["purpose"] == "profiling":
            self._profile(worker)
            return
        goal = worker.entry["goal"]
        if goal == "prepare":
            worker.phase = "ready"
        elif goal == "train" and worker.phase in ("preparing", "ready"):
            worker.phase = "training"
            worker.iteration = _iteration_before(worker) + 1
            if worker.rank == 0:
                self.event(worker, "first_iteration", iteration=worker.iteration, pause_seconds=0.1)
        elif goal in ("suspend", "hand_over") and worker.phase == "training":
            worker.phase = "suspended" if goal == "suspend" else "handed_over"
            reason = "suspend" if goal == "suspend" else "handover"
            key = (worker.entry["job"], worker.entry["generation"])
            if POINTS.get(key, (0, ""))[1] != reason:
                POINTS[key] = (worker.iteration, reason)
            worker.iteration = POINTS[key][0]

    def _has_measured(self, worker: SimulatedWorker) -> bool:
        since = worker.measures_since if worker.phase == "profiling" else None
        return since is not None and timezone.now() >= since + timedelta(seconds=self.measuring_seconds)

    def _profile(self, worker: SimulatedWorker) -> None:
        if worker.phase == "completed":
            return
        if worker.measures_since is None:
            worker.phase, worker.measures_since = "profiling", timezone.now()
            if self.mixture is not None and worker.rank == 0:
                self.event(worker, "mixture", **self.mixture)
                return
        if not self._has_measured(worker):
            return
        worker.phase = "completed"
        if worker.rank == 0:
            for level in worker.entry["profile"]["levels"]:
                self.event(
                    worker,
                    "profile_level",
                    gpus=level,
                    iterations_per_second=self.speed[level],
                    train_seconds=0.1,
                    pause_seconds=0.1,
                    host_memory_bytes=self.memory.get(level, 0),
                    state_bytes=self.state_bytes,
                )
            self.event(worker, "profile_done", reason="all_levels")


_AGENT = PreparedRows(lambda agent_id: Agent.objects.select_related("server").filter(pk=agent_id))
_LAST_REPORTED = PreparedValues(
    lambda agent_id: Agent.objects.filter(pk=agent_id).values_list(
        "server__desired_version", "server__state", "last_report_at"
    )
)


def _iteration_before(worker: SimulatedWorker) -> int:
    """Return the iteration of the state that a worker starts from."""
    start = worker.entry["start"] or {}
    handed_over, _ = POINTS.get((worker.entry["job"], start.get("generation", 0)), (0, ""))
    return int(start.get("iteration", handed_over))


def settle(*agents: SimulatedAgent, rounds: int = 12) -> None:
    """Alternate planner and agents until a pass gives no agent anything to do (bounded passes)."""
    from scheduling.services.planning.planning import run_planner

    for _ in range(rounds):
        let_pass(ROUND_SECONDS)
        run_planner("test")
        if not let_agents_answer(*agents):
            return


def let_agents_answer(*agents: SimulatedAgent) -> bool:
    """Let agents follow the desired state and report until none has news; return whether any had."""
    for exchange in range(MOST_EXCHANGES):
        with_news = [agent for agent in agents if agent.has_news()]
        if not with_news:
            return exchange > 0
        for agent in with_news:
            agent.obey()
            agent.report()
    raise AssertionError("the agents always have news")


def settle_through_slots(*agents: SimulatedAgent, rounds: int = 9) -> None:
    """Alternate planner and agents while slots end, until a round changes nothing."""
    for _ in range(rounds):
        before = _visible_state(agents)
        settle(*agents, rounds=1)
        let_pass(0.1)
        if _visible_state(agents) == before:
            return


def _visible_state(agents: Sequence[SimulatedAgent]) -> tuple[object, ...]:
    """Return the state of all jobs as users and agents see it."""
    jobs = Job.objects.order_by("pk").values_list(
        "pk", "state", "curve", "curve__state", "curve__complete", "awaits_levels", "refused_kinds"
    )
    return (*jobs, *(agent.shown() for agent in agents))
