"""State of a simulated cluster at an instant: its jobs, its pools of GPUs, and each job's results so far.

The event loop (`run.py`), the lender and the invariant checks all work on it.
"""

from __future__ import annotations

import numpy as np

from scheduling.core.question.snapshot import PlannerSettings
from scheduling.policies.base import Policy
from simulation.engine.asked.policy_facts import facts_of
from simulation.engine.asked.settings import Recovery, SimulationSettings, require_pricing
from simulation.engine.curves.tables import curve_tables
from simulation.engine.outside.expected_failures import failures_of_pool
from simulation.engine.world.fates import Fates
from simulation.engine.world.jobs import JobStates
from simulation.engine.world.memory_points import MemoryPoints
from simulation.engine.world.pool import PoolState
from simulation.engine.world.recording import Recorder
from simulation.policies import policy_named
from simulation.workloads.workload import Workload


class World:
    """A workload on a cluster under a policy, `now` seconds after the beginning."""

    def __init__(self, workload: Workload, settings: SimulationSettings) -> None:
        self.workload = workload
        self.settings = settings
        self.policy: Policy = policy_named(settings.policy)
        require_pricing(settings)
        self.jobs = JobStates.of(workload, len(self.policy.memory_columns))
        self.fates = Fates.of(workload.jobs)
        self.recorder = Recorder()
        self.broken: dict[str, str] = {}
        """Broken promises by job id, with the reason."""
        self.now = 0.0
        self.jobs_under_way = 0
        """Number of jobs, the first of the workload, under way at the beginning."""
        self.reclaims = 0
        """Number of reclaims so far; each may stop or shrink jobs."""
        self.pools = self._empty_pools()
        self.points: MemoryPoints | None = None
        if settings.recovery is Recovery.MEMORY:
            racks = [size.servers_per_rack for size in settings.pools]
            self.points = MemoryPoints(settings.replicas, racks)

    def _empty_pools(self) -> list[PoolState]:
        settings, workload = self.settings, self.workload
        facts = facts_of(self.policy.name)
        error = settings.imperfections.profile_error
        factor = 1.0 + np.random.default_rng(seeds_of(settings)[1]).uniform(-error, error, workload.jobs)
        planner = _planner_settings(settings)
        pools = []
        for number, size in enumerate(settings.pools):
            tables = curve_tables(
                workload,
                size,
                settings.pauses,
                charges_pauses=facts.charges_pauses,
                adapts_batch=facts.adapts_batch,
                promise_margin=settings.imperfections.promise_margin,
                agent_latency_seconds=settings.imperfections.agent_latency_seconds,
                true_factor=factor,
                failures=failures_of_pool(settings, workload, size),
            )
            pools.append(
                PoolState.empty(
                    number,
                    size,
                    self.policy,
                    planner,
                    tables,
                    settings.server_memory_bytes,
                    settings.standby_servers,
                )
            )
        return pools


def seeds_of(settings: SimulationSettings) -> list[np.random.SeedSequence]:
    """Return the seeds of a run: for agents' latencies, and for errors of profiles."""
    return np.random.SeedSequence(settings.seed).spawn(2)


def _planner_settings(settings: SimulationSettings) -> PlannerSettings:
    return PlannerSettings(
        slot_seconds=settings.slot_seconds,
        fill=settings.fill,
        admission=settings.admission,
        stored_plans=settings.stored_plans,
        reserve_servers=settings.reserve_servers,
        reserve_slack_seconds=settings.reserve_slack_seconds,
        newcomers=settings.newcomers,
        ageing_weight=settings.ageing_weight,
        two_phase=None if settings.sharing is None else settings.sharing.choices,
        worker_memory_bytes=settings.worker_memory_bytes,
    )
