"""The platform's answers as typed values. Field names are those of the REST API; times are in UTC."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from punctual.client.reading import listed, moment, nested, raw_object

#: Final states of a job.
TERMINAL_STATES = frozenset({"declined", "completed", "failed", "cancelled"})
#: States in which the verdict is still open.
UNDECIDED_STATES = frozenset({"submitted", "profiling"})


@dataclass(frozen=True)
class Share:
    """A number of GPUs from `start` to `end`."""

    start: datetime = moment()
    end: datetime = moment()
    gpus: int = 0


@dataclass(frozen=True)
class Offer:
    """A deadline that can be promised, held until `valid_until`.

    Accepting sooner promises `deadline_seconds` from then if there is still room, and `deadline_at` at the
    latest.
    """

    deadline_at: datetime = moment()
    valid_until: datetime | None = moment()
    deadline_seconds: float | None = None


@dataclass(frozen=True)
class TierOption:
    """A number of GPUs with its iteration time in seconds, which may be an upper bound."""

    gpus: int = 0
    step_seconds: float = 0.0
    is_upper_bound: bool = False


@dataclass(frozen=True)
class TierMode:
    """The fewest GPUs that fit a model (None if no number does), the binding limit, and faster options."""

    gpus: int | None = None
    binding: str = ""
    options: tuple[TierOption, ...] = listed(TierOption)


@dataclass(frozen=True)
class TierModes:
    """Requirements of a model with experts, with and without tiers for their states."""

    with_tiers: TierMode | None = nested(TierMode)
    without_tiers: TierMode | None = nested(TierMode)


@dataclass(frozen=True)
class Verdict:
    """The answer to a deadline: `admitted`, `declined` or `pending`, with its reason in words and numbers.

    `minimum_satisfactory_share`: least number of GPUs over time that meets the deadline (ElasticFlow, section
    4.1). `slack_seconds`: between planned finish and deadline. `counts_on`: how many lost servers the promise
    survives. `no_offer`: why a declined job has no offer though a later deadline may be possible.
    """

    decision: str = "pending"
    reason_code: str = ""
    reason: str = ""
    minimum_satisfactory_share: tuple[Share, ...] = listed(Share)
    planned_start_at: datetime | None = moment()
    planned_finish_at: datetime | None = moment()
    slack_seconds: float | None = None
    counts_on: str = ""
    offer: Offer | None = nested(Offer)
    no_offer: str = ""
    decision_id: int | None = None
    needs_profiling: bool = False
    tiers: TierModes | None = nested(TierModes)
    raw: dict[str, Any] = raw_object()


@dataclass(frozen=True)
class Requirements:
    """The requirements of a version, and the state of their installation.

    `state` is `pending`, `building`, `ready`, `failed` or `cancelled`. `builds_before`: number of earlier
    builds in the queue while pending. `error` and `log` (the installer's output) are set for a single
    version, not in lists.
    """

    digest: str = ""
    state: str = ""
    builds_before: int | None = None
    building_since: datetime | None = moment()
    error: str = ""
    log: str = ""
    raw: dict[str, Any] = raw_object()


@dataclass(frozen=True)
class FunctionVersion:
    """One immutable version of an uploaded function."""

    id: Any = None
    name: str = ""
    #: 1, 2, ... within the function.
    version: int = 0
    #: SHA-256 of the bundle.
    digest: str = ""
    #: `module:Class`.
    entry: str = ""
    project: str = ""
    requirements: Requirements | None = nested(Requirements)
    raw: dict[str, Any] = raw_object()

    @property
    def reference(self) -> str:
        """The text by which a job names exactly this version."""
        return f"{self.name}@{self.version}"


@dataclass
class JobFacts:
    """The platform's information on a job at one moment.

    `promised` is true only if the job's deadline was promised. `iterations_done` counts reported iterations,
    never an estimate. `progress` runs from 0 to 1. `slack_seconds` is between planned (or actual) finish and
    deadline. `warning` reports a NaN or infinite loss or final weights.
    """

    id: str
    project: str = ""
    #: Name of the user who submitted it.
    owner: str = ""
    name: str = ""
    #: The user's labels by name.
    labels: dict[str, str] = field(default_factory=dict)
    function: FunctionVersion | None = nested(FunctionVersion)
    #: Values passed to the function.
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    termination: dict[str, Any] = field(default_factory=dict)
    service_class: str = ""
    deadline_at: datetime | None = moment()
    #: Declared data sets.
    data: list[dict[str, Any]] = field(default_factory=list)
    checkpoint_seconds: float | None = None
    seed: int | None = None
    lossy: str = "refused"
    #: Names of the allowed codecs; empty: any, if `lossy` is `allowed`.
    codecs: list[str] = field(default_factory=list)
    protection: dict[str, int] = field(default_factory=dict)
    state: str = "submitted"
    promised: bool = False
    #: Whether no plan keeps its promise.
    at_risk: bool = False
    #: Whether its deadline has passed before its completion.
    late: bool = False
    paused_by_owner: bool = False
    promise_outcome: str = "none"
    void_reason: str = ""
    submitted_at: datetime | None = moment()
    decided_at: datetime | None = moment()
    started_at: datetime | None = moment()
    finished_at: datetime | None = moment()
    iterations_done: int = 0
    progress: float = 0.0
    iterations_per_second: float | None = None
    gpus: int = 0
    gpu_kind: str = ""
    #: Reasons of the kinds of GPU that refused it, by kind.
    refused_kinds: dict[str, str] = field(default_factory=dict)
    #: Whether it runs on emulated GPUs.
    emulated: bool = False
    planned_start_at: datetime | None = moment()
    planned_finish_at: datetime | None = moment()
    slack_seconds: float | None = None
    verdict: Verdict | None = nested(Verdict)
    standing: dict[str, str] = field(default_factory=dict)
    warning: str = ""
    #: None unless it failed.
    failure: dict[str, Any] | None = None
    resubmission_of: str | None = None
    #: Metrics of the final weights; None before.
    final_metrics: dict[str, Any] | None = None
    raw: dict[str, Any] = raw_object()

    @property
    def finished(self) -> bool:
        """Whether the state is final."""
        return self.state in TERMINAL_STATES

    @property
    def decided(self) -> bool:
        """Whether the verdict is known."""
        return self.state not in UNDECIDED_STATES

    @property
    def offer(self) -> Offer | None:
        """The deadline offered instead, if the job was declined with an offer."""
        return self.verdict.offer if self.verdict is not None else None

    @property
    def max_iterations(self) -> int:
        """Largest number of iterations; 0 if unknown."""
        return int(self.termination.get("max_iterations") or 0)


@dataclass(frozen=True)
class JobEvent:
    """One event of a job's history with its reason."""

    id: int = 0
    happened_at: datetime | None = moment()
    kind: str = ""
    #: The event in a sentence.
    message: str = ""
    #: The event's facts by name.
    detail: dict[str, Any] = field(default_factory=dict)
    actor: str = ""
    raw: dict[str, Any] = raw_object()


@dataclass(frozen=True)
class LogChunk:
    """A piece of one worker's output."""

    id: int = 0
    generation: int = 0
    rank: int = 0
    text: str = ""
    received_at: datetime | None = moment()
    raw: dict[str, Any] = raw_object()


@dataclass(frozen=True)
class Metric:
    """Values that the function reported at one iteration, such as the loss."""

    iteration: int = 0
    generation: int = 0
    #: Metrics by name.
    values: dict[str, float] = field(default_factory=dict)
    iterations_per_second: float | None = None
    gpus: int = 0
    measured_at: datetime | None = moment()
    raw: dict[str, Any] = raw_object()


@dataclass(frozen=True)
class Checkpoint:
    """A durable state of a job."""

    iteration: int = 0
    generation: int = 0
    size_bytes: int = 0
    reason: str = ""
    store_seconds: float = 0.0
    stored_at: datetime | None = moment()
    raw: dict[str, Any] = raw_object()


@dataclass(frozen=True)
class Recovery:
    """A failure of a job and its recovery, phase by phase. Sources, phases and lost servers are as in the
    REST API."""

    #: Number of the generation that failed.
    failed_generation: int = 0
    #: Number of the generation that replaces it; None while there is none.
    recovering_generation: int | None = None
    kind: str = ""
    outcome: str = ""
    phase: str = ""
    reason: str = ""
    #: The farthest source of a rank's state; empty before sources are chosen.
    source: str = ""
    #: Ranks of the failed generation on lost servers.
    lost_ranks: list[int] = field(default_factory=list)
    lost_servers: list[dict[str, Any]] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    phases: list[dict[str, Any]] = field(default_factory=list)
    #: Generations that were to recover and did not train.
    attempts: int = 0
    #: Iterations that are repeated; None if unknown.
    iterations_lost: int | None = None
    lost_work_seconds: float = 0.0
    down_seconds: float = 0.0
    detected_at: datetime | None = moment()
    fenced_at: datetime | None = moment()
    running_at: datetime | None = moment()
    raw: dict[str, Any] = raw_object()


@dataclass(frozen=True)
class Artifact:
    """A file of a completed job, with the SHA-256 digest of its bytes."""

    name: str = ""
    size_bytes: int = 0
    sha256: str = ""
    stored_at: datetime | None = moment()
    raw: dict[str, Any] = raw_object()


@dataclass(frozen=True)
class CurveLevel:
    """Measured throughput on a number of GPUs."""

    gpus: int = 0
    iterations_per_second: float = 0.0
    #: Peak host memory of one worker, and the reservation for each; 0 if not measured.
    host_memory_bytes: int = 0
    reserved_memory_bytes: int = 0
    samples: int = 0
    source: str = ""
    raw: dict[str, Any] = raw_object()


@dataclass(frozen=True)
class Gpu:
    """One GPU (or emulated accelerator) of a server.

    `job`: its holder: `id` and `name` of a visible job, else None and "busy"; None while it is free.
    """

    #: Number of the GPU on its server.
    index: int = 0
    kind: str = ""
    memory_bytes: int = 0
    #: Whether its speed and memory are emulated on CPUs.
    emulated: bool = False
    healthy: bool = True
    job: dict[str, Any] | None = None
    raw: dict[str, Any] = raw_object()


@dataclass(frozen=True)
class Server:
    """One machine of the cluster."""

    id: int = 0
    name: str = ""
    state: str = ""
    drain: str = "none"
    drain_reason: str = ""
    #: Whether it belongs to the pool of standby servers.
    standby: bool = False
    #: Name of its rack; empty if unknown.
    rack: str = ""
    #: Number of CPU cores.
    cpu_cores: int = 0
    memory_bytes: int = 0
    #: Host memory limit of one worker there; 0 if not reported.
    worker_memory_bytes: int = 0
    disk_free_bytes: int = 0
    #: When it leaves; None: it stays for good.
    available_until: datetime | None = moment()
    sandbox: str = ""
    silent_seconds: float | None = None
    gpus: tuple[Gpu, ...] = listed(Gpu)
    raw: dict[str, Any] = raw_object()


@dataclass(frozen=True)
class Token:
    """An API token. `token` is known only when it is issued or rotated."""

    id: int = 0
    name: str = ""
    #: First characters of the token.
    prefix: str = ""
    created_at: datetime | None = moment()
    expires_at: datetime | None = moment()
    last_used_at: datetime | None = moment()
    revoked_at: datetime | None = moment()
    #: Its rights: `read`, `submit`, `manage`, `operate`.
    scopes: tuple[str, ...] = field(default=(), metadata={"read": tuple})
    #: Projects to which it is limited; None: all of its owner's.
    projects: tuple[str, ...] | None = field(default=None, metadata={"read": tuple})
    token: str = field(default="", repr=False)
    raw: dict[str, Any] = raw_object()


@dataclass(frozen=True)
class User:
    """An account, as operators see it. `password` is known only when it was generated."""

    username: str = ""
    is_active: bool = True
    is_operator: bool = False
    created_at: datetime | None = moment()
    last_login: datetime | None = moment()
    #: Name and role of each project, as the API writes them.
    projects: tuple[dict[str, Any], ...] = field(default=(), metadata={"read": tuple})
    password: str | None = field(default=None, repr=False)
    raw: dict[str, Any] = raw_object()


@dataclass(frozen=True)
class Project:
    """A group of people with common jobs."""

    name: str = ""
    description: str = ""
    #: The caller's role in the project.
    role: str = ""
    created_at: datetime | None = moment()
    archived_at: datetime | None = moment()
    raw: dict[str, Any] = raw_object()


@dataclass(frozen=True)
class Invitation:
    """An invitation of a person to join a project."""

    id: int = 0
    project: str = ""
    username: str = ""
    role: str = ""
    #: Name of the inviting user.
    invited_by: str = ""
    expires_at: datetime | None = moment()
    raw: dict[str, Any] = raw_object()


@dataclass(frozen=True)
class Member:
    """A person's role in a project: `viewer`, `member` or `owner`."""

    username: str = ""
    role: str = ""
    created_at: datetime | None = moment()
    raw: dict[str, Any] = raw_object()
