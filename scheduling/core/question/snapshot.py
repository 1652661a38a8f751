"""What a decision is computed from: one frozen picture of jobs, curves, plans and servers.

Times are seconds on one monotone axis chosen by the caller (live: Unix time, simulated: trace
time). Throughput is iterations of the *global* batch per second. GPU addresses are indices into
the cluster's GPUs in topology order: server 0's GPUs first, then server 1's, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from scheduling.core.question.two_phase_options import TwoPhaseOptions

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

NO_DEADLINE = float("inf")
AGEING_WEIGHT = 0.5
"""Usual weight of waiting under ``punctual``: who comes later than twice a job's running time after it is not
served before it."""


class ServiceClass(StrEnum):
    """How a job's deadline binds: a promise, a wish, or none."""

    SLO = "slo"
    SOFT = "soft"
    BEST_EFFORT = "best_effort"


class Fill(StrEnum):
    """Variant of progressive filling (ElasticFlow section 4.1; spec 2.4)."""

    UNIFORM = "uniform"
    SUFFIX = "suffix"


class Newcomers(StrEnum):
    """Whether every newcomer that fits is promised its deadline, or room is kept for smaller ones
    (bid_prices.py)."""

    OPEN = "open"
    PRUDENT = "prudent"


class AdmissionRule(StrEnum):
    """Whether newcomers of one instant are decided one by one or all or nothing (spec 2.5)."""

    PER_JOB = "per_job"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class ScalingCurve:
    """Measured throughput of one job by number of GPUs. Only measured levels are levels.

    ``levels``: GPUs that the job holds, ascending powers of two (`worker_counts.py`). ``throughput``:
    iterations per second at each level, strictly increasing. ``pause_seconds``: the pause charged when the
    job starts on, or is moved or rescaled onto, that many GPUs. ``memory_bytes``: host memory that is
    reserved for one worker at each level, 0 where nobody measured it; None where that is all of them.
    """

    levels: IntArray
    throughput: FloatArray
    pause_seconds: FloatArray
    memory_bytes: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The GPUs a job is planned to hold over time: ``gpus[k]`` on ``[start[k], end[k])``.

    Pieces are ascending, do not overlap and may be zero. ``finish_at`` is the exact forecast
    time of the last iteration with all pauses charged (infinity when the plan does not finish).
    """

    start: FloatArray
    end: FloatArray
    gpus: IntArray
    finish_at: float


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """One unfinished job as the planner sees it.

    ``newcomer`` jobs await their verdict. ``promised`` jobs hold a stored plan that must keep
    meeting ``deadline_at``. ``gpus_now`` is what the job holds until ``next_slot_at``;
    ``placement`` its GPU addresses. ``pause_left_seconds`` is what is left of a pause it is in.
    ``finishing_seconds`` is the measured time to store final weights after the last iteration:
    every finish test includes it. A newcomer's ``stored_plan`` is that of the offer it accepts.
    """

    id: str
    service_class: ServiceClass
    submitted_at: float
    deadline_at: float
    remaining_iterations: float
    curve: ScalingCurve
    newcomer: bool = False
    promised: bool = False
    at_risk: bool = False
    gpus_now: int = 0
    placement: tuple[int, ...] = ()
    pause_left_seconds: float = 0.0
    finishing_seconds: float = 0.0
    stored_plan: StoredPlan | None = None
    #: The job is in the middle of a change of generation: it keeps `gpus_now` and `placement`
    #: through this decision (no change for it), whatever else moves.
    locked: bool = False
    #: All iterations of the job; those left where nobody says.
    total_iterations: float = 0.0
    #: GPU time that the job has held so far.
    attained_gpu_seconds: float = 0.0
    #: The size a user of a scheduler without elasticity would ask for, and the job's time on it. Only
    #: policies that are not elastic read them.
    requested_gpus: int = 0
    requested_seconds: float = 0.0
    #: Every measured GPU count, rising or not, where that is more than the curve's levels.
    measured: ScalingCurve | None = None
    #: What the policy noted about the job at its last decision (`Decision.job_memory`).
    memory: tuple[float, ...] = ()
    #: The job's curve on the kind of GPU that borrowed servers have; None where it was not measured there.
    lent_curve: ScalingCurve | None = None
    #: Whose job it is: projects share contested GPU time. 0 where nobody says.
    project: int = 0
    #: Which GPUs of `placement` flexible workers hold; empty where nobody knows: then all beyond the lowest
    #: level.
    flexible: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """One server: ``usable`` is false while it is down, suspect or drained.

    ``on_loan``: it is borrowed from an inference cluster. No promise rests on it. ``same_kind``: it is, and
    has the cluster's own kind of GPU. ``ends_at``: from then on nobody may be there; no promise rests on it
    either (`known_ends.py`). ``memory_bytes``: host memory that workers on all its GPUs may take together
    (`host_memory.py`); infinity where nobody says.
    """

    id: str
    gpus: int
    usable: bool = True
    rack: str = ""
    on_loan: bool = False
    same_kind: bool = False
    ends_at: float = float("inf")
    memory_bytes: float = float("inf")


@dataclass(frozen=True, slots=True)
class HeldOffer:
    """Capacity held for an offer that its project may still accept.

    ``job``, where known, is the job as it would be accepted (with the offered deadline): the
    forecast of pauses then watches over the offer as it does over promises.
    """

    id: str
    plan: StoredPlan
    valid_until: float
    job: JobSnapshot | None = None


@dataclass(frozen=True, slots=True)
class BlockedGpus:
    """GPUs that no job may be placed on before ``until``: a profiling run, workers being swept away."""

    addresses: tuple[int, ...]
    until: float


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """Operator's choices. ``reserve_servers`` whole servers back no promise (contracts 6).

    ``reserve_slack_seconds``: slack that a new promise keeps for all failures that the reserve covers
    together (fence and margin, lost iterations, restart). ``minimum_gain_iterations``: a grant must win more
    than this over what its pause costs, counted for as long as the forecast leaves the GPUs to the job.
    ``most_work``: count of work (`scheduling.core.problem.work`) after which newcomers wait for another
    decision; None: all get their verdict. ``two_phase``: choices for policies that share out workers; None
    leaves them all their own rules. ``ageing_weight``: seconds of running time that a second since its
    submission makes up for, where jobs without a promise are served shortest first (policy ``punctual``;
    decision 0025). ``change_slack_seconds``: slack that a new promise keeps for changes that come later than
    is charged (decision 0029). ``worker_memory_bytes``: servers with less host memory for each GPU are not
    used (decision 0038).
    """

    slot_seconds: float = 5.0
    fill: Fill = Fill.UNIFORM
    admission: AdmissionRule = AdmissionRule.PER_JOB
    stored_plans: bool = True
    reserve_servers: int = 0
    reserve_slack_seconds: float = 0.0
    offer_hold_seconds: float = 120.0
    minimum_gain_iterations: float = 0.0
    two_phase: TwoPhaseOptions | None = None
    newcomers: Newcomers = Newcomers.OPEN
    most_work: int | None = None
    ageing_weight: float = 0.0
    change_slack_seconds: float = 0.0
    worker_memory_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a decision depends on.

    Allocations are frozen on ``[now, next_slot_at)``; a reallocation takes effect at
    ``next_slot_at`` (equal to ``now`` when the slot boundary has come). ``seed`` feeds whatever
    breaks ties at random; none of the default policy does.
    """

    now: float
    next_slot_at: float
    servers: tuple[ServerSnapshot, ...]
    jobs: tuple[JobSnapshot, ...]
    held_offers: tuple[HeldOffer, ...] = ()
    blocked: tuple[BlockedGpus, ...] = ()
    settings: PlannerSettings = field(default_factory=PlannerSettings)
    seed: int = 0
    #: What the policy noted about the cluster at its last decision (`Decision.memory`).
    memory: tuple[float, ...] = ()
