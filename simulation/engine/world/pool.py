"""One pool of GPUs of one type: it asks the policy with arrays and applies the answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple

import numpy as np

from recovery.placement.standby import PoolServer, pool_of, replaced
from scheduling.core.elasticflow.pause_budget import published_pause_seconds
from scheduling.core.plans.stored_plans import recut
from scheduling.core.problem.answer import Answer
from scheduling.core.problem.problem import ClusterCapacity, Problem, capacity_of, problem_from
from scheduling.core.question.arrays import BoolArray, Plans, no_plans
from scheduling.core.question.columns import CurveColumns, JobColumns, regather
from scheduling.core.question.decision import ChangeKind, Verdict
from scheduling.core.question.host_memory import servers_with_share, states_memory
from scheduling.core.question.snapshot import FloatArray, IntArray, PlannerSettings, ServerSnapshot
from scheduling.policies.base import Policy
from simulation.engine.asked.policy_facts import facts_of
from simulation.engine.asked.settings import PoolSize
from simulation.engine.curves.tables import CurveTables
from simulation.engine.outside.server_memory import HeldPlans, fitting, guaranteed_share, short_of_memory
from simulation.engine.world.jobs import JobStates
from simulation.engine.world.running import asked_about

NO_ROWS: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class _ServerFacts:
    """Facts about ``servers``. ``state_memory``: whether memory bounds workers. ``ends_at``: known ends."""

    servers: tuple[ServerSnapshot, ...]
    state_memory: bool
    ends_at: tuple[float, ...]


class _KnownCurves(NamedTuple):
    """Servers and curves as the policy receives them."""

    #: The servers, with the host memory guaranteed to each worker.
    servers: tuple[ServerSnapshot, ...]
    #: The levels that elastic policies use.
    curves: CurveColumns
    #: Every measured GPU count.
    measured: CurveColumns
    #: By newcomer's id: bytes of one worker, more than any server guarantees.
    short: dict[str, float]


@dataclass
class PoolState:
    """``rows``: jobs of the last answer, by their row in the workload; ``plans`` and placements have that
    order.

    ``own_servers``: as they are; ``planned_servers``: as in the last question to the policy, with their
    ``capacity``. ``share_bytes``: host memory then guaranteed to each worker. ``standing_by``: numbers of own
    standby servers, lost ones included.
    """

    number: int
    size: PoolSize
    policy: Policy
    settings: PlannerSettings
    tables: CurveTables
    usable: BoolArray
    silent: BoolArray
    capacity: ClusterCapacity
    own_servers: tuple[ServerSnapshot, ...]
    planned_servers: tuple[ServerSnapshot, ...]
    rows: IntArray = field(default_factory=lambda: NO_ROWS)
    plans: Plans = field(default_factory=lambda: no_plans(0))
    planned_at: float = 0.0
    addresses: IntArray = field(default_factory=lambda: NO_ROWS)
    offsets: IntArray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    cluster_memory: FloatArray = field(default_factory=lambda: np.zeros(0))
    slot_ends_at: float = -inf
    wake_at: float = inf
    decision_seconds: float = 0.0
    share_bytes: float = inf
    standing_by: set[int] = field(default_factory=set)
    _facts: _ServerFacts | None = None

    @classmethod
    def empty(
        cls,
        number: int,
        size: PoolSize,
        policy: Policy,
        settings: PlannerSettings,
        tables: CurveTables,
        memory_bytes: Sequence[float] = (),
        standby_servers: int = 0,
    ) -> PoolState:
        """Return a pool with all servers up and idle. ``memory_bytes``: of each server, if stated."""
        usable = np.ones(size.servers, dtype=np.bool_)
        silent = np.zeros(size.servers, dtype=np.bool_)
        servers = _servers(size, memory_bytes)
        names = pool_of([_of_pool(one, standby=False, usable=True) for one in servers], standby_servers)
        servers = tuple(
            replace(one, usable=False, standby=True) if one.id in names else one for one in servers
        )
        capacity = capacity_of(servers, settings.reserve_servers)
        standing_by = {number for number, one in enumerate(servers) if one.standby}
        return cls(
            number, size, policy, settings, tables, usable, silent, capacity, servers, servers,
            standing_by=standing_by,
        )  # fmt: skip

    # Servers ---------------------------------------------------------------------------------

    def set_usable(self, server: int, usable: bool) -> None:
        """Mark a server as lost or back; a standby server replaces a lost one."""
        self.usable[server] = usable
        known = [
            _of_pool(one, standby=number in self.standing_by, usable=bool(self.usable[number]))
            for number, one in enumerate(self.own_servers)
        ]
        number_of = {one.id: number for number, one in enumerate(known)}
        changed = {server}
        for names in replaced(known):
            lost, instead = (number_of[name] for name in names)
            self.standing_by = self.standing_by - {instead} | {lost}
            changed |= {lost, instead}
        for number in changed:
            there, waits = bool(self.usable[number]), number in self.standing_by
            self.put_server(number, usable=there and not waits, standby=there and waits)

    def put_server(self, server: int, **facts: Any) -> None:
        """Change facts about one of the pool's own servers."""
        changed = list(self.own_servers)
        changed[server] = replace(changed[server], **facts)
        self.own_servers = tuple(changed)
        self.plan_on(self.own_servers)

    def known_ends(self) -> tuple[float, ...]:
        """Return the known ends of its own servers."""
        return self._facts_of(self.own_servers).ends_at

    def _facts_of(self, servers: tuple[ServerSnapshot, ...]) -> _ServerFacts:
        """Return the facts about servers, cached because they are needed at each instant and rarely
        change."""
        if self._facts is None or self._facts.servers is not servers:
            ends = tuple(server.ends_at for server in servers if server.ends_at < inf)
            asks = states_memory(servers, self.settings.worker_memory_bytes)
            self._facts = _ServerFacts(servers, asks, ends)
        return self._facts

    def plan_on(self, servers: tuple[ServerSnapshot, ...]) -> None:
        """Use ``servers`` in questions to the policy: the pool's own, as they are to be treated now."""
        if servers != self.planned_servers:
            self.planned_servers = servers
            self.capacity = capacity_of(servers, self.settings.reserve_servers)

    def lasting(self, addresses: IntArray) -> BoolArray:
        """Return, for each GPU, whether it is on an own server without a known end."""
        return addresses < self.size.gpus

    def rows_on(self, server: int) -> list[int]:
        """Return the workload rows of the jobs that hold a GPU of the server."""
        first = server * self.size.gpus_per_server
        inside = (self.addresses >= first) & (self.addresses < first + self.size.gpus_per_server)
        owner = np.repeat(np.arange(self.rows.size), np.diff(self.offsets))
        return np.unique(self.rows[owner[inside]]).tolist()

    def servers_of(self, row: int) -> list[int]:
        """Return the servers of which a job holds a GPU."""
        position = int(np.searchsorted(self.rows, row))
        held = self.addresses[int(self.offsets[position]) : int(self.offsets[position + 1])]
        return np.unique(held // self.size.gpus_per_server).tolist()

    def vacate(self, row: int) -> None:
        """Remove the job's GPUs."""
        position = int(np.searchsorted(self.rows, row))
        begin, end = int(self.offsets[position]), int(self.offsets[position + 1])
        self.addresses = np.delete(self.addresses, np.s_[begin:end])
        self.offsets = self.offsets.copy()
        self.offsets[position + 1 :] -= end - begin

    # Asking ----------------------------------------------------------------------------------

    def problem(
        self, jobs: JobStates, ids: Sequence[str], newcomers: IntArray, now: float, next_slot_at: float
    ) -> Problem:
        """Return the question at ``now``. ``newcomers``: workload rows that are not in the pool yet."""
        rows, source, new = asked_about(jobs.running, self.rows, self.number, newcomers)
        self._asking_rows, self._asking_source = rows, source
        origin = max(0.0, next_slot_at - now)
        stored = recut(self.plans, source, jobs.gpus[rows], now - self.planned_at, origin)
        servers = self._servers_now(jobs, next_slot_at)
        known = self._known_curves(servers, ids, HeldPlans(stored, jobs.gpus[rows], new))
        self.plan_on(known.servers)
        columns = self._columns(jobs, ids, new, known)
        problem = problem_from(
            now=now,
            next_slot_at=next_slot_at,
            settings=self.settings,
            columns=columns,
            stored=stored,
            capacity=self.capacity,
            blocked=self._blocked(jobs, columns.addresses, origin),
            cluster_memory=self.cluster_memory,
            measured=self.policy.any_measured_size,
        )
        problem.short_of_memory_bytes = known.short
        return problem

    def _known_curves(
        self, servers: tuple[ServerSnapshot, ...], ids: Sequence[str], held: HeldPlans
    ) -> _KnownCurves:
        """Return the curves of the question's jobs, restricted to levels that fit into servers' memory if
        that is known."""
        rows, tables = self._asking_rows, self.tables
        curves = _of_rows(tables.planned, rows)
        measured = _of_rows(tables.measured, rows) if self.policy.any_measured_size else curves
        if not self._facts_of(servers).state_memory:
            return _KnownCurves(servers, curves, measured, {})
        least = self.settings.worker_memory_bytes
        needs = _memory_of_rows(tables.planned_memory, rows)
        share = self.share_bytes = guaranteed_share(servers, curves, needs, held, least)
        short = short_of_memory(_Names(ids, rows), curves, needs, np.flatnonzero(held.newcomer), share)
        everything = _memory_of_rows(tables.measured_memory, rows)
        fits = fitting(curves, needs, share)
        return _KnownCurves(
            servers_with_share(servers, share, least),
            fits,
            fitting(measured, everything, share) if self.policy.any_measured_size else fits,
            short,
        )

    def _columns(
        self, jobs: JobStates, ids: Sequence[str], new: BoolArray, known: _KnownCurves
    ) -> JobColumns:
        """Return the question's jobs as columns. ``new``: True for newcomers."""
        rows = self._asking_rows
        addresses, offsets = regather(self.addresses, self.offsets, self._asking_source)
        nothing = np.zeros(rows.size)
        return JobColumns(
            ids=_Names(ids, rows),
            service_class=jobs.service_class.take(rows),
            submitted_at=jobs.submitted_at.take(rows),
            deadline_at=jobs.deadline_at.take(rows),
            remaining_iterations=jobs.remaining.take(rows),
            total_iterations=jobs.total.take(rows),
            curves=known.curves,
            measured=known.measured,
            newcomer=new,
            promised=jobs.promised.take(rows),
            at_risk=jobs.at_risk.take(rows),
            locked=self._on_silent_servers(addresses, offsets),
            gpus=jobs.gpus.take(rows),
            pause_left=jobs.pause_left.take(rows),
            finishing=nothing,
            failure_slack=nothing,
            addresses=addresses,
            offsets=offsets,
            requested_gpus=self.tables.requested_gpus.take(rows),
            requested_seconds=self.tables.requested_seconds.take(rows),
            attained_gpu_seconds=jobs.attained_gpu_seconds.take(rows),
            memory=jobs.memory[rows],
            project=np.zeros(rows.size, dtype=np.int64),
        )

    def _servers_now(self, jobs: JobStates, next_slot_at: float) -> tuple[ServerSnapshot, ...]:
        """Return the pool's own servers as the policy is to treat them now."""
        return self.own_servers

    def _on_silent_servers(self, addresses: IntArray, offsets: IntArray) -> BoolArray:
        """Mark jobs with a GPU on a silent server: its agent cannot receive a change."""
        locked = np.zeros(offsets.size - 1, dtype=np.bool_)
        if self.silent.any():
            owner = np.repeat(np.arange(locked.size), np.diff(offsets))
            locked[owner[self.silent[addresses // self.size.gpus_per_server]]] = True
        return locked

    def _blocked(self, jobs: JobStates, held: IntArray, origin: float) -> dict[int, float] | None:
        """Return until when idle GPUs of silent servers get no work; GPUs held by jobs stay as they are."""
        if not self.silent.any():
            return None
        taken = set(held.tolist())
        until = origin + self.settings.slot_seconds
        width = self.size.gpus_per_server
        return {
            address: until
            for server in np.flatnonzero(self.silent).tolist()
            for address in range(server * width, (server + 1) * width)
            if address not in taken
        }

    def decide(self, problem: Problem) -> Answer:
        """Return verdicts on newcomers, without any change of GPUs."""
        return self._timed(self.policy.decide_newcomers, problem)

    def reallocate(self, problem: Problem) -> Answer:
        """Return verdicts and all jobs' GPUs from now on."""
        return self._timed(self.policy.reallocate, problem)

    def _timed(self, question, problem: Problem) -> Answer:  # type: ignore[no-untyped-def]
        began = time.perf_counter()
        answer: Answer = question(problem)
        self.decision_seconds = time.perf_counter() - began
        return answer

    # Applying --------------------------------------------------------------------------------

    def own_rows(self, jobs: JobStates) -> IntArray:
        """Return the jobs of this pool. ``rows`` also holds newcomers that it refused, which another pool may
        have admitted."""
        own: IntArray = self.rows[jobs.pool[self.rows] == self.number]
        return own

    def speed_ups(self, jobs: JobStates) -> float:
        """Return the sum of its unfinished jobs' speed-ups over one of its GPUs."""
        return jobs.speed_ups(self.rows, self.number, self.tables.one_gpu)

    def keep(self, answer: Answer, jobs: JobStates) -> list[tuple[int, Verdict]]:
        """Store plans, placements and memory of an answer. Return the verdicts by workload row."""
        problem = answer.problem
        rows = self._asking_rows
        verdicts = [
            (int(rows[row]), verdict) for row, verdict in zip(problem.newcomers, answer.verdicts, strict=True)
        ]
        self.rows = rows
        self.plans = answer.plans
        self.planned_at = problem.now
        self.addresses, self.offsets = answer.placements.addresses, answer.placements.offsets
        self.cluster_memory = answer.cluster_memory
        if answer.job_memory is not None:
            jobs.memory[rows] = answer.job_memory
        jobs.at_risk[rows] = False
        if answer.at_risk:
            jobs.at_risk[rows[list(answer.at_risk)]] = True
        return verdicts

    def carry_out(
        self, answer: Answer, jobs: JobStates, latency: FloatArray | None
    ) -> list[tuple[int, ChangeKind]]:
        """Continue jobs with their new GPUs. Return each changed row and its kind of change."""
        now = answer.problem.now
        changed = []
        for number, (position, change) in enumerate(zip(answer.changed, answer.changes, strict=True)):
            row = int(self.rows[position])
            late = 0.0 if latency is None else float(latency[number % latency.size])
            pause = max(0.0, change.pause_seconds - self.tables.charged_latency_seconds)
            jobs.take_gpus(
                row,
                change.gpus_after,
                self._rate(int(position), row, change.gpus_after),
                pause + late + self._restart_seconds(row, change.gpus_after),
                now,
            )
            changed.append((row, change.kind))
        if facts_of(self.policy.name).pauses_everybody and self.tables.measured.pause.any():
            self._pause_unchanged(answer, jobs)
        return changed

    def _rate(self, position: int, row: int, gpus: int) -> float:
        """Return the iterations per second of a job on its new GPUs; ``position`` is its row of the
        answer."""
        return self.tables.rate(row, gpus)

    def _restart_seconds(self, row: int, gpus: int) -> float:
        """Return the cost of a restart after a preemption beyond the change's own pause."""
        return 0.0

    def _pause_unchanged(self, answer: Answer, jobs: JobStates) -> None:
        """Pause jobs with unchanged GPUs too, for the time of a restart among known GPUs."""
        going_on = jobs.gpus[self.rows] > 0
        going_on[list(answer.changed)] = False
        rows = self.rows[going_on]
        pause = published_pause_seconds(1, cluster_gpus=self.size.gpus, cached=True)
        jobs.pause_left[rows] = np.maximum(jobs.pause_left[rows], pause)


class _Names(Sequence[str]):
    """Ids of some rows, looked up on access."""

    def __init__(self, ids: Sequence[str], rows: IntArray) -> None:
        self._ids, self._rows = ids, rows

    def __len__(self) -> int:
        return int(self._rows.size)

    def __getitem__(self, row):  # type: ignore[no-untyped-def]
        return self._ids[self._rows[row]]


def _of_rows(curves: CurveColumns, rows: IntArray) -> CurveColumns:
    return CurveColumns._make(matrix.take(rows, axis=0) for matrix in curves)  # quicker than an index


def _memory_of_rows(memory: FloatArray | None, rows: IntArray) -> FloatArray | None:
    return None if memory is None else memory[rows]


def _of_pool(server: ServerSnapshot, *, standby: bool, usable: bool) -> PoolServer:
    """Return a server as the choice of standby servers reads it. ``usable``: it is not lost."""
    stays = server.ends_at == inf
    return PoolServer(
        server.id,
        server.gpus,
        rack=server.rack,
        standby=standby,
        whole=usable and stays,
        lost=not usable and stays,
    )


def _servers(size: PoolSize, memory_bytes: Sequence[float]) -> tuple[ServerSnapshot, ...]:
    per_rack = size.servers_per_rack or size.servers
    return tuple(
        ServerSnapshot(
            id=f"server-{number:04d}",
            gpus=size.gpus_per_server,
            rack=f"rack-{number // per_rack:03d}",
            memory_bytes=memory_bytes[number] if number < len(memory_bytes) else inf,
        )
        for number in range(size.servers)
    )
