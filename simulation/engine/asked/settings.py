"""Settings of a simulation."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from scheduling.core.question.snapshot import AGEING_WEIGHT, AdmissionRule, Fill, Newcomers
from simulation.engine.asked.pauses import Pauses
from simulation.engine.asked.sharing import SharingSettings
from simulation.policies import policies_where, policy_named


class Recovery(StrEnum):
    """Where jobs of a lost server restart from: the memory of peers, or durable storage alone."""

    MEMORY = "memory"
    DURABLE = "durable"


@dataclass(frozen=True, slots=True)
class PoolSize:
    """Servers of one kind of GPU. Promises are made on one pool each; a job stays in its pool."""

    kind: str
    servers: int
    gpus_per_server: int
    servers_per_rack: int = 0

    @property
    def gpus(self) -> int:
        """GPUs of the pool."""
        return self.servers * self.gpus_per_server


@dataclass(frozen=True, slots=True)
class KnownEnd:
    """A server of the first pool that leaves for good at ``ends_at``; the planner reckons with it from
    ``known_at`` on. Times are seconds from time 0."""

    server: int
    ends_at: float
    known_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Imperfections:
    """Differences between reality and the planner's data; none if all fields are zero.

    ``profile_error``: a job's real throughput is the measured one times 1 + e, with e drawn once per job,
    uniform in plus or minus this. ``promise_margin``: share by which the planner lowers measured throughput,
    as the live platform does. ``agent_latency_seconds``: delay of each change after its decision, uniform
    from 0 to this; policies that charge pauses charge the maximum. ``checkpoint_seconds``: time between
    checkpoints; work since the last one is lost with a server. ``fence_seconds``: from a server's loss until
    its jobs may start elsewhere.
    """

    profile_error: float = 0.0
    promise_margin: float = 0.0
    agent_latency_seconds: float = 0.0
    checkpoint_seconds: float = 600.0
    fence_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """One run. ``reserve_slack_seconds``: slack that each promise keeps for failures.
    ``standby_servers``: servers of each pool that are not planned on until one replaces a lost server.
    ``bound``: also compute how many deadlines any schedule could meet. ``known_ends``: servers that leave.
    ``server_memory_bytes``: host memory of each server, one entry per pool; empty if unknown.
    ``worker_memory_bytes``: the operator's minimum for each worker's share of it (decision 0017).
    ``replicas``: copies of a job's state, the local one included, if recovery is from memory.
    ``failures_per_server_day``: expected failures; promises count on throughput lowered by their expected
    cost (decision 0028).
    """

    policy: str
    pools: tuple[PoolSize, ...]
    slot_seconds: float = 60.0
    pauses: Pauses = Pauses.MEASURED
    fill: Fill = Fill.UNIFORM
    admission: AdmissionRule = AdmissionRule.PER_JOB
    stored_plans: bool = True
    reserve_servers: int = 0
    standby_servers: int = 0
    reserve_slack_seconds: float = 0.0
    seed: int = 0
    imperfections: Imperfections = field(default_factory=Imperfections)
    check_invariants: bool = False
    sharing: SharingSettings | None = None
    newcomers: Newcomers = Newcomers.OPEN
    ageing_weight: float = AGEING_WEIGHT
    bound: bool = False
    known_ends: tuple[KnownEnd, ...] = ()
    server_memory_bytes: tuple[float, ...] = ()
    worker_memory_bytes: float = 0.0
    recovery: Recovery = Recovery.DURABLE
    replicas: int = 2
    failures_per_server_day: float = 0.0

    @property
    def on_ticks(self) -> bool:
        """Whether the scheduler decides once per slot at fixed times, as Lyra's does, not at events."""
        return self.sharing is not None and not self.sharing.by_curves


def require_pricing(settings: SimulationSettings) -> None:
    """Raise ValueError if ``settings`` ask for prudent newcomers and the policy does not price newcomers."""
    if settings.newcomers is Newcomers.PRUDENT and not policy_named(settings.policy).prices_newcomers:
        able = ", ".join(sorted(policies_where(lambda policy: policy.prices_newcomers)))
        raise ValueError(
            f"policy {settings.policy} keeps no room for newcomers; prudent newcomers go with {able}"
        )
