"""What a simulation is run with."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from scheduling.core.question.snapshot import AGEING_WEIGHT, AdmissionRule, Fill, Newcomers
from simulation.engine.asked.pauses import Pauses
from simulation.engine.asked.sharing import SharingSettings
from simulation.policies import policies_where, policy_named


class Recovery(StrEnum):
    """What jobs of a lost server begin again from: the memory of peers, or durable storage alone."""

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
    """A server of the first pool leaves for good at ``ends_at``, and who plans knows it from ``known_at``
    on."""

    server: int
    ends_at: float
    known_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Imperfections:
    """How reality departs from what the planner knows. All zero: it does not.

    ``profile_error``: a job really runs at its measured throughput times 1 + e, e uniform in plus or minus
    this, drawn once a job. ``promise_margin``: share by which the planner lowers measured throughput, as the
    live platform does. ``agent_latency_seconds``: time by which each change comes later than decided, uniform
    from 0 to this; policies that charge pauses charge the longest. ``checkpoint_seconds``: time between
    checkpoints; what was done since the last one is lost with a server. ``fence_seconds``: from a server's
    loss until its jobs may start elsewhere.
    """

    profile_error: float = 0.0
    promise_margin: float = 0.0
    agent_latency_seconds: float = 0.0
    checkpoint_seconds: float = 600.0
    fence_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """One run. ``reserve_slack_seconds`` is what each promise keeps for failures (contracts 6).
    ``standby_servers``: servers of each pool that nothing is planned on until they take a lost server's
    place. ``bound``: also how many deadlines any schedule could meet. ``known_ends``: servers that leave.
    ``server_memory_bytes``: host memory of each server of each pool, empty where nobody says it;
    ``worker_memory_bytes``: the operator's least share of it for a worker (decision 0017). ``replicas``:
    copies of a job's state, the local one included, where recovery is from memory.
    ``failures_per_server_day``: what who plans expects of a server; promises count on throughput without what
    failures are expected to take (decision 0028).
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
        """Whether the scheduler looks once a slot, at fixed times, as Lyra's does, instead of at events."""
        return self.sharing is not None and not self.sharing.by_curves


def require_pricing(settings: SimulationSettings) -> None:
    """Raises ValueError where newcomers shall be priced and the policy does not do that."""
    if settings.newcomers is Newcomers.PRUDENT and not policy_named(settings.policy).prices_newcomers:
        able = ", ".join(sorted(policies_where(lambda policy: policy.prices_newcomers)))
        raise ValueError(
            f"policy {settings.policy} keeps no room for newcomers; prudent newcomers go with {able}"
        )
