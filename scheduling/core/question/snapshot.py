"""The input of a decision: an immutable snapshot of jobs, curves, plans and servers.

Times are seconds on one monotone axis chosen by the caller (live: Unix time, simulated: trace time).
Throughput is iterations of the *global* batch per second. GPU addresses are indices into the cluster's GPUs
in topology order: server 0's GPUs first, then server 1's, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from scheduling.core.question.two_phase_options import TwoPhaseOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Text, so that processes that hand snapshots' names around and compute nothing load no numpy.
IntArray: TypeAlias = "NDArray[np.int64]"
FloatArray: TypeAlias = "NDArray[np.float64]"

NO_DEADLINE = float("inf")
AGEING_WEIGHT = 0.5
"""Default ageing weight under ``punctual``. Jobs that are submitted more than twice a job's running time
after it do not overtake it."""


class ServiceClass(StrEnum):
    """Whether a job has a deadline to promise, a soft deadline, or none."""

    SLO = "slo"
    SOFT = "soft"
    BEST_EFFORT = "best_effort"


class Fill(StrEnum):
    """Variant of progressive filling (ElasticFlow section 4.1)."""

    UNIFORM = "uniform"
    SUFFIX = "suffix"


class Newcomers(StrEnum):
    """Whether every newcomer that fits is promised its deadline, or room is kept for smaller ones
    (bid_prices.py)."""

    OPEN = "open"
    PRUDENT = "prudent"


class AdmissionRule(StrEnum):
    """Whether newcomers of one instant are decided one by one or all or nothing."""

    PER_JOB = "per_job"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class ScalingCurve:
    """Measured throughput of one job by number of GPUs; only measured GPU counts are levels."""

    #: GPUs that the job holds, ascending powers of two (`worker_counts.py`).
    levels: IntArray
    #: Iterations per second at each level, strictly increasing.
    throughput: FloatArray
    #: Pause of a start on each level, or of a move or rescale to it.
    pause_seconds: FloatArray
    #: Host memory reserved for one worker at each level; 0 where not measured, None if no level was.
    memory_bytes: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The GPUs that a job is planned to hold over time: ``gpus[k]`` on ``[start[k], end[k])``.

    Pieces are ascending and do not overlap.
    """

    #: When each piece begins.
    start: FloatArray
    #: When each piece ends.
    end: FloatArray
    #: GPUs of each piece, possibly 0.
    gpus: IntArray
    #: Forecast end of the last iteration with all pauses charged; infinity where the plan does not finish.
    finish_at: float


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """One unfinished job as the planner sees it."""

    #: The job's id.
    id: str
    #: Whether its deadline is promised, soft, or none.
    service_class: ServiceClass
    #: When the job was submitted.
    submitted_at: float
    #: Its deadline; infinity for none.
    deadline_at: float
    #: Iterations left.
    remaining_iterations: float
    #: Its scaling curve on the cluster's own kind of GPU.
    curve: ScalingCurve
    #: The job awaits its verdict.
    newcomer: bool = False
    #: The job holds a stored plan that must keep meeting ``deadline_at``.
    promised: bool = False
    #: No plan keeps its promise at present.
    at_risk: bool = False
    #: GPUs that the job holds until ``next_slot_at``.
    gpus_now: int = 0
    #: Addresses of these GPUs.
    placement: tuple[int, ...] = ()
    #: Seconds left of a pause that has begun.
    pause_left_seconds: float = 0.0
    #: Measured seconds to store the final weights after the last iteration; every deadline test includes
    #: them.
    finishing_seconds: float = 0.0
    #: The job's stored plan; for a newcomer that accepts an offer, the offer's plan.
    stored_plan: StoredPlan | None = None
    #: The job is in the middle of a change of generation: this decision leaves `gpus_now` and `placement` as
    #: they are.
    locked: bool = False
    #: All iterations of the job; 0 stands for ``remaining_iterations``.
    total_iterations: float = 0.0
    #: GPU seconds that the job has held so far.
    attained_gpu_seconds: float = 0.0
    #: The GPU count that a user of a scheduler without elasticity would request. Only policies that are not
    #: elastic read it.
    requested_gpus: int = 0
    #: Seconds that the job takes on ``requested_gpus``.
    requested_seconds: float = 0.0
    #: Every measured GPU count, even without rising throughput; None where the curve has them all.
    measured: ScalingCurve | None = None
    #: What the policy noted about the job at its last decision (`Decision.job_memory`).
    memory: tuple[float, ...] = ()
    #: The job's curve on the borrowed kind of GPU; None where it was not measured there.
    lent_curve: ScalingCurve | None = None
    #: The project that owns the job: projects share contested GPU time. 0 for unknown.
    project: int = 0
    #: Which GPUs of `placement` flexible workers hold. If empty, all GPUs beyond the lowest level count as
    #: flexible.
    flexible: tuple[bool, ...] = ()
    #: What the failures that the reserve covers may cost this job together: fence and margin, lost
    #: iterations, restart. A new promise keeps as much slack, beside what the settings ask of every job.
    failure_slack_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """One server."""

    #: The server's id.
    id: str
    #: Number of its GPUs.
    gpus: int
    #: False while the server is down, suspect, drained or standing by.
    usable: bool = True
    #: The server's rack.
    rack: str = ""
    #: Whether it is borrowed from an inference cluster. No promise rests on it.
    on_loan: bool = False
    #: Whether it is borrowed and has the cluster's own kind of GPU.
    same_kind: bool = False
    #: When the server leaves: no job may be on it then. No promise rests on it (`known_ends.py`).
    ends_at: float = float("inf")
    #: Host memory for the workers on all its GPUs together (`host_memory.py`); infinity where not reported.
    memory_bytes: float = float("inf")
    #: Whether it stands by, not usable now, to take a lost server's place.
    standby: bool = False


@dataclass(frozen=True, slots=True)
class HeldOffer:
    """Capacity held for an offer that its project may still accept."""

    #: The offer's id.
    id: str
    #: The plan whose GPUs are held.
    plan: StoredPlan
    #: Until when the offer can be accepted.
    valid_until: float
    #: The job as it would be accepted, with the offered deadline; None where unknown. With it, the forecast
    #: of pauses protects the offer as it does promises.
    job: JobSnapshot | None = None


@dataclass(frozen=True, slots=True)
class BlockedGpus:
    """GPUs that may not be used for now: by a profiling run, or while old workers are stopped."""

    #: Addresses of the GPUs.
    addresses: tuple[int, ...]
    #: Until when no job may be placed on them.
    until: float


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """The operator's choices for the planner."""

    #: Length of a slot, in seconds.
    slot_seconds: float = 5.0
    #: Variant of progressive filling.
    fill: Fill = Fill.UNIFORM
    #: Whether newcomers are decided one by one or together.
    admission: AdmissionRule = AdmissionRule.PER_JOB
    #: Whether stored plans may be used when jobs cannot be filled afresh.
    stored_plans: bool = True
    #: Number of whole servers that back no promise.
    reserve_servers: int = 0
    #: Slack for failures that every new promise keeps where servers are in reserve, beside that of its own
    #: job (`JobSnapshot.failure_slack_seconds`).
    reserve_slack_seconds: float = 0.0
    #: Seconds for which an offer is held.
    offer_hold_seconds: float = 120.0
    #: Iterations that a grant must gain beyond what its pause costs, over the time for which the forecast
    #: leaves the GPUs to the job.
    minimum_gain_iterations: float = 0.0
    #: Choices for policies that divide workers; None leaves each policy its own rules.
    two_phase: TwoPhaseOptions | None = None
    #: Whether room is kept for smaller newcomers.
    newcomers: Newcomers = Newcomers.OPEN
    #: Work (`scheduling.core.problem.work`) after which newcomers wait for another decision; None for no
    #: limit.
    most_work: int | None = None
    #: Seconds of running time that one second since submission makes up for, where jobs without a promise run
    #: shortest first (policy ``punctual``; decision 0014).
    ageing_weight: float = 0.0
    #: Slack that a new promise keeps for changes that happen later than charged (decision 0010).
    change_slack_seconds: float = 0.0
    #: Servers with less host memory for each GPU are not used (decision 0017).
    worker_memory_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a decision depends on.

    Allocations are frozen on ``[now, next_slot_at)``; a reallocation takes effect at ``next_slot_at``.
    """

    #: The time of the decision.
    now: float
    #: The next slot boundary; equal to ``now`` when it has come.
    next_slot_at: float
    #: All servers, in topology order.
    servers: tuple[ServerSnapshot, ...]
    #: All unfinished jobs.
    jobs: tuple[JobSnapshot, ...]
    #: Offers that can still be accepted.
    held_offers: tuple[HeldOffer, ...] = ()
    #: GPUs that may not be used for now.
    blocked: tuple[BlockedGpus, ...] = ()
    #: The operator's choices.
    settings: PlannerSettings = field(default_factory=PlannerSettings)
    #: Seed of policies that break ties at random; the default policy does not.
    seed: int = 0
    #: What the policy noted about the cluster at its last decision (`Decision.memory`).
    memory: tuple[float, ...] = ()
