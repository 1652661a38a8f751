"""A pool that inference servers join and leave, with workers on both kinds of servers (Lyra sections 3.2 to
3.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from scheduling.core.lyra.base_and_flexible import Demands, demands_of
from scheduling.core.lyra.fleet import NO_ROLE, Fleet, WorkerMap
from scheduling.core.lyra.reclaiming.effects import effects_of
from scheduling.core.lyra.worker_changes import roles_with
from scheduling.core.problem.answer import Answer
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.columns import CurveColumns, regather
from scheduling.core.question.decision import Verdict
from scheduling.core.question.known_ends import Holding, servers_at_present
from scheduling.core.question.snapshot import IntArray, ServerSnapshot
from scheduling.core.together.shared_problem import shared
from scheduling.core.together.sharing import Servers, Sharing, count_workers, loaned_fleet
from simulation.engine.curves.tables import CurveTables
from simulation.engine.curves.worker_tables import WorkerTables, speeds_of_columns, speeds_of_rows
from simulation.engine.outside.server_memory import fitting
from simulation.engine.world.jobs import JobStates
from simulation.engine.world.pool import PoolState

NO_MARKS: BoolArray = np.zeros(0, dtype=np.bool_)


@dataclass
class SharedPool(PoolState):
    """Owned servers come first, then those of the inference cluster, usable while ``on_loan``.

    ``broken``: servers of the inference cluster that were fenced and are not back, at home or on loan.
    ``flexible``: in the order of ``addresses``, True for GPUs of flexible workers. ``role``: of every server.
    ``restarting``: workload rows that were preempted and have not started again. ``lent_tables``: curves on
    the inference cluster's kind of GPU, if jobs follow measured curves. ``same_kind``: it is the training
    cluster's kind too, so a job may have GPUs of both. ``leaving``: own servers with a known end that are now
    planned as on loan (`scheduling.core.question.known_ends`).
    """

    workers: WorkerTables = field(kw_only=True)
    servers: Servers = field(kw_only=True)
    on_loan: BoolArray = field(kw_only=True)
    broken: BoolArray = field(kw_only=True)
    role: IntArray = field(kw_only=True)
    restart_seconds: float = field(kw_only=True, default=0.0)
    lent_tables: CurveTables | None = field(kw_only=True, default=None)
    same_kind: bool = field(kw_only=True, default=False)
    leaving: BoolArray = field(kw_only=True, default_factory=lambda: NO_MARKS)
    flexible: BoolArray = field(kw_only=True, default_factory=lambda: NO_MARKS)
    restarting: set[int] = field(kw_only=True, default_factory=set)

    @classmethod
    def beside(
        cls,
        plain: PoolState,
        inference_servers: int,
        workers: WorkerTables,
        *,
        restart_seconds: float,
        lent_tables: CurveTables | None = None,
        same_kind: bool = False,
    ) -> SharedPool:
        """Return the pool beside an inference cluster that has lent nothing yet, whose servers have as many
        GPUs as the pool's."""
        gpus = np.full(plain.size.servers + inference_servers, plain.size.gpus_per_server)
        return cls(
            plain.number, plain.size, plain.policy, plain.settings, plain.tables, plain.usable,
            np.concatenate((plain.silent, np.zeros(inference_servers, dtype=np.bool_))), plain.capacity,
            plain.own_servers, plain.planned_servers,
            workers=workers,
            leaving=np.zeros(gpus.size, dtype=np.bool_),
            servers=Servers(np.cumsum(gpus) - gpus, gpus),
            on_loan=np.zeros(gpus.size, dtype=np.bool_),
            broken=np.zeros(gpus.size, dtype=np.bool_),
            role=np.full(gpus.size, NO_ROLE),
            restart_seconds=restart_seconds,
            lent_tables=lent_tables,
            same_kind=same_kind,
            standing_by=plain.standing_by,
        )  # fmt: skip

    # Asking ----------------------------------------------------------------------------------

    def problem(
        self, jobs: JobStates, ids: Sequence[str], newcomers: IntArray, now: float, next_slot_at: float
    ) -> Problem:
        """Return the question at ``now``, with the further inputs of Lyra's policies."""
        problem = super().problem(jobs, ids, newcomers, now, next_slot_at)
        rows = self._asking_rows
        marks, _ = regather(self.flexible.astype(np.int64), self.offsets, self._asking_source)
        blocked = self._idle_on_silent_servers(problem.columns.addresses)
        blocked_on = np.bincount(self.servers.server_of()[blocked], minlength=self.servers.gpus.size)
        fleet = self._planned_fleet()
        sharing = Sharing(
            servers=self.servers,
            fleet=fleet._replace(gpus=np.maximum(0, fleet.gpus - blocked_on)),
            blocked=blocked,
            flexible=marks.astype(np.bool_),
            demands=self._demands(jobs, rows, now, problem),
            same_kind=self.same_kind,
        )
        return shared(problem, sharing)

    def _servers_now(self, jobs: JobStates, next_slot_at: float) -> tuple[ServerSnapshot, ...]:
        """Return servers with a known end as the live planner treats them: mostly like servers on loan."""
        if not self.has_ends:
            return self.own_servers
        servers = servers_at_present(
            self.own_servers,
            self._holdings_of_promises(jobs),
            next_slot_at=next_slot_at,
            slot_seconds=self.settings.slot_seconds,
        )
        leaving = self.leaving.copy()
        leaving[: self.size.servers] = [server.on_loan for server in servers]
        newly = leaving & ~self.leaving
        if newly.any():
            self.forget_ended(jobs)
            self.role = np.where(newly, roles_with(newly, self.worker_map()), self.role)
        self.leaving = leaving
        return servers

    @property
    def has_ends(self) -> bool:
        """Whether any of its own servers has a known end."""
        return any(server.ends_at < inf for server in self.own_servers)

    def _holdings_of_promises(self, jobs: JobStates) -> list[Holding]:
        """Return the promised jobs' GPUs, each with whether a flexible worker holds it."""
        promised = jobs.promised[self.rows] & (jobs.gpus[self.rows] > 0)
        spans = zip(self.offsets[:-1][promised].tolist(), self.offsets[1:][promised].tolist(), strict=True)
        return [
            (self.addresses[begin:end].tolist(), self.flexible[begin:end].tolist())
            for begin, end in spans
            if end > begin
        ]

    def gpus_leaving(self) -> int:
        """Return the GPUs of its own servers that are planned as on loan."""
        able = np.array([server.usable for server in self.planned_servers], dtype=np.bool_)
        own = slice(0, self.size.servers)
        return int(self.servers.gpus[own][self.leaving[own] & able].sum())

    def lasting(self, addresses: IntArray) -> BoolArray:
        """Return, for each GPU, whether it is on an own server without a known end."""
        lasts = np.zeros(self.servers.gpus.size, dtype=np.bool_)
        lasts[: self.size.servers] = [server.ends_at == inf for server in self.own_servers]
        found: BoolArray = lasts[self.servers.server_of()[addresses]]
        return found

    def _planned_fleet(self) -> Fleet:
        """Return the servers of `fleet`, with leaving servers as on loan."""
        if not self.leaving.any():
            return self.fleet()
        own = np.array([server.usable for server in self.planned_servers], dtype=np.bool_)
        usable = np.concatenate((own, (self.on_loan & ~self.broken)[own.size :]))
        return loaned_fleet(self.servers, usable, self.on_loan | self.leaving, self.role)

    def fleet(self) -> Fleet:
        """Return all servers; those that are lost, on standby or not on loan have no GPUs."""
        usable = np.concatenate((self.usable, (self.on_loan & ~self.broken)[self.usable.size :]))
        usable[list(self.standing_by)] = False
        return loaned_fleet(self.servers, usable, self.on_loan, self.role)

    def _idle_on_silent_servers(self, held: IntArray) -> IntArray:
        """Return the idle GPUs of silent servers, which get no work for now."""
        silent = np.flatnonzero(self.silent[self.servers.server_of()])
        idle: IntArray = silent[~np.isin(silent, held)] if silent.size else silent
        return idle

    def out_of_reach(self) -> BoolArray:
        """Mark silent servers, and those of jobs that also run on a silent one: such a job cannot be
        stopped."""
        out = self.silent.copy()
        if out.any():
            locked = np.repeat(self._on_silent_servers(self.addresses, self.offsets), np.diff(self.offsets))
            out[self.servers.server_of()[self.addresses[locked]]] = True
        return out

    def _demands(self, jobs: JobStates, rows: IntArray, now: float, problem: Problem) -> Demands:
        ranges = self.workers.ranges
        owned, lent = speeds_of_rows(self.workers.owned, rows), speeds_of_rows(self.workers.lent, rows)
        if self.lent_tables is not None and self.share_bytes < inf:
            planned, needs = self.lent_tables.planned, self.lent_tables.planned_memory
            there = CurveColumns(planned.levels[rows], planned.throughput[rows], planned.pause[rows])
            owned = speeds_of_columns(problem.columns.curves)
            lent = speeds_of_columns(fitting(there, None if needs is None else needs[rows], self.share_bytes))
        return demands_of(
            ranges.gpus_per_worker[rows],
            self.believed_remaining(jobs, rows),
            owned,
            lent,
            work=jobs.total[rows] * ranges.estimate_factor[rows],
            waiting_seconds=np.maximum(0.0, now - jobs.submitted_at[rows]),
            mixes=ranges.mixes[rows],
        )

    def believed_remaining(self, jobs: JobStates, rows: IntArray) -> np.ndarray:
        """Return the work left by the estimate, at least 5 % of the estimate."""
        estimate = jobs.total[rows] * self.workers.ranges.estimate_factor[rows]
        done = jobs.total[rows] - jobs.remaining[rows]
        outlived = np.maximum(estimate - done, 0.05 * estimate)
        return np.where(self.workers.ranges.estimate_factor[rows] == 1.0, jobs.remaining[rows], outlived)

    def worker_map(self) -> WorkerMap:
        """Return the present workers of the pool's jobs, in the order of ``self.rows``."""
        workers: WorkerMap = count_workers(
            self.addresses, self.offsets, self.flexible, self.servers.server_of(),
            self.workers.ranges.gpus_per_worker[self.rows],
        )  # fmt: skip
        return workers

    # Applying --------------------------------------------------------------------------------

    def keep(self, answer: Answer, jobs: JobStates) -> list[tuple[int, Verdict]]:
        """Store plans, placements, marks and roles of an answer. Return the verdicts by workload row."""
        choices = self.settings.two_phase
        if choices is not None and choices.elastic_moves:
            self._note_moves(answer)
        verdicts = super().keep(answer, jobs)
        if answer.flexible is not None and answer.server_roles is not None:
            self.flexible, self.role = answer.flexible, answer.server_roles
        else:
            self.flexible = np.zeros(self.addresses.size, dtype=np.bool_)
        return verdicts

    def _note_moves(self, answer: Answer) -> None:
        """Let jobs that move from owned servers to servers on loan restart as after a preemption, with their
        progress kept."""
        columns, placements = answer.problem.columns, answer.placements
        for position in answer.changed:
            before = columns.addresses[columns.offsets[position] : columns.offsets[position + 1]]
            after = placements.addresses[placements.offsets[position] : placements.offsets[position + 1]]
            if before.size and after.size and before.max() < self.size.gpus <= after.min():
                self.restarting.add(int(self._asking_rows[position]))

    def _rate(self, position: int, row: int, gpus: int) -> float:
        return self.rate_now(position)

    def rate_now(self, position: int) -> float:
        """Return the work per second of a job, by its position in ``rows``, on the GPUs that it holds."""
        row = int(self.rows[position])
        held = self.addresses[self.offsets[position] : self.offsets[position + 1]]
        owned = int((held < self.size.gpus).sum())
        if self.lent_tables is not None:
            return self._tables_of(owned, int(held.size)).rate(row, int(held.size))
        width = int(self.workers.ranges.gpus_per_worker[row])
        return self.workers.rate(row, owned // width, (held.size - owned) // width)

    def _tables_of(self, owned: int, gpus: int) -> CurveTables:
        """Return the curves of a job on ``gpus`` GPUs, ``owned`` of them on owned servers."""
        assert self.lent_tables is not None
        return self.tables if owned and (owned == gpus or not self.same_kind) else self.lent_tables

    def drop_to_level(self, position: int) -> None:
        """Shrink a job that lost GPUs to the next lower measured level, by removing its last flexible
        workers.

        Jobs with ranges of workers run on any number of them and are left as they are.
        """
        if self.lent_tables is None:
            return
        begin, end = int(self.offsets[position]), int(self.offsets[position + 1])
        held = self.addresses[begin:end]
        levels = self._tables_of(int((held < self.size.gpus).sum()), held.size).planned.levels[
            self.rows[position]
        ]
        level = int(levels[levels <= held.size].max(initial=0))
        if held.size > level:
            kept = np.ones(self.addresses.size, dtype=np.bool_)
            kept[begin + np.flatnonzero(self.flexible[begin:end])[-(held.size - level) :]] = False
            self._keep_entries(kept)

    def scale_in_pause(self, position: int) -> float:
        """Return the pause in seconds of a job that continues without returned GPUs; 0 if the workload has no
        curves."""
        held = self.addresses[self.offsets[position] : self.offsets[position + 1]]
        if self.lent_tables is None:
            return 0.0
        owned = int((held < self.size.gpus).sum())
        return self._tables_of(owned, int(held.size)).pause(int(self.rows[position]), int(held.size))

    def _restart_seconds(self, row: int, gpus: int) -> float:
        if gpus and row in self.restarting:
            self.restarting.discard(row)
            return self.restart_seconds
        return 0.0

    # Servers come and go -----------------------------------------------------------------------

    def set_usable(self, server: int, usable: bool) -> None:
        """Mark a server as lost or back; a server on loan remains on loan."""
        if server < self.size.servers:
            super().set_usable(server, usable)
            return
        self.broken[server] = not usable
        self.clear_roles()

    def lendable(self) -> BoolArray:
        """Mark the servers of the inference cluster that are at home and neither broken nor silent."""
        able = ~self.on_loan & ~self.broken & ~self.silent
        able[: self.size.servers] = False
        return able

    def give_back(self, servers: IntArray) -> tuple[IntArray, IntArray]:
        """Return servers on loan. Return the positions in ``rows`` of the jobs that lose all their GPUs, and
        of those that continue without some."""
        returned = np.zeros(self.on_loan.size, dtype=np.bool_)
        returned[servers] = True
        effects = effects_of(
            self._owner(), self.servers.server_of()[self.addresses], ~self.flexible, returned, self.rows.size
        )
        self._keep_entries(effects.kept)
        return np.flatnonzero(effects.preempted), np.flatnonzero(effects.scaled_in)

    def _owner(self) -> IntArray:
        """Return, for each of ``addresses``, the position in ``rows`` of the job that holds it."""
        return np.repeat(np.arange(self.rows.size), np.diff(self.offsets))

    def _keep_entries(self, kept: BoolArray) -> None:
        """Remove all other entries from ``addresses``."""
        held = np.bincount(self._owner()[kept], minlength=self.rows.size)
        self.addresses, self.flexible = self.addresses[kept], self.flexible[kept]
        self.offsets = np.concatenate(([0], np.cumsum(held)))

    def vacate(self, row: int) -> None:
        """Remove the job's GPUs."""
        self._keep_entries(self._owner() != int(np.searchsorted(self.rows, row)))

    def forget_ended(self, jobs: JobStates) -> None:
        """Remove the GPUs of jobs that ended since the last answer."""
        kept = (jobs.gpus[self.rows] > 0)[self._owner()]
        if not kept.all():
            self._keep_entries(kept)

    def clear_roles(self) -> None:
        """Clear the roles of servers without jobs."""
        busy = np.zeros(self.role.size, dtype=np.bool_)
        busy[self.servers.server_of()[self.addresses]] = True
        self.role = np.where(busy, self.role, NO_ROLE)
