"""Events of workers: what must not be lost and is applied once (docs/protocols.md 2.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from punctual.protocol import limits
from punctual.protocol.communication import CommunicationProfile, CommunicationWindow
from punctual.protocol.experts import ExpertRouting
from punctual.protocol.fields import (
    Age,
    ArtifactName,
    Count,
    EventId,
    GpuCount,
    JobId,
    Label,
    Message,
    Metrics,
    Number,
    Pause,
    Rate,
    ShortText,
    Text,
    TrainSeconds,
)
from punctual.protocol.mixtures import Mixture

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Digest = Annotated[str, Field(pattern=rf"^[A-Za-z0-9+/=_:.-]{{0,{limits.DIGEST_CHARACTERS}}}$")]
Overrun = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Uri = Annotated[str, Field(max_length=2000)]


class FirstIteration(Message):
    """Rank 0 has finished its first iteration after loading: the generation trains.

    Of the pause `waiting_seconds` went by until its state was found, `loading_seconds` until it was loaded.
    """

    iteration: Count
    pause_seconds: Pause
    waiting_seconds: Pause = 0.0
    loading_seconds: Pause = 0.0


class ProfileLevel(Message):
    """One measured level of a scaling curve.

    `overrun`: on an emulated device, by which fraction it took longer than emulated; above 0.05 the
    measurement is void as one of the device. `host_memory_bytes`: the most that one worker took of its host.
    `state_bytes`: of the whole state; 0 where nobody looked.
    """

    gpus: GpuCount
    iterations_per_second: Rate
    train_seconds: TrainSeconds
    pause_seconds: Pause
    memory_bytes: Count = 0
    host_memory_bytes: Count = 0
    state_bytes: Count = 0
    overrun: Overrun | None = None


class ProfileDone(Message):
    """The curve is complete for this block."""

    reason: Literal["no_gain", "all_levels", "time", "out_of_memory"]


class CopyTraffic(Message):
    """How rank 0 plans the copies of its recovery points, and what it has measured of them.

    Attributes:
        every: iterations from one point to the next. iterations: over which its copies are spread, in so many
            idle spans of each. bytes: to all peers. idle_seconds: of an iteration. copy_seconds: on the
            network. extension_seconds: by which a point lengthens an iteration, by the plan. write_seconds:
            to leave a point with the store. with_seconds, without_seconds: medians of iterations with and
            without copies on their way.
    """

    every: Annotated[int, Field(ge=1, le=limits.LARGEST_COUNT)]
    iterations: Annotated[int, Field(ge=1, le=1000)]
    spans: Number
    bytes: Count
    iteration_seconds: TrainSeconds
    idle_seconds: TrainSeconds
    copy_seconds: TrainSeconds
    extension_seconds: TrainSeconds
    write_seconds: TrainSeconds
    with_seconds: TrainSeconds | None = None
    without_seconds: TrainSeconds | None = None


class Nonfinite(Message):
    """The loss became NaN or infinite, or is finite again; or weights are not finite, those of the result
    maybe.

    Attributes:
        since: of a loss: the first iteration of the run. tensors: so many of a model's tensors. names: of the
            first of them.
    """

    what: Literal["loss_began", "loss_ended", "weights", "final_weights"]
    iteration: Count
    since: Count = 0
    tensors: Count = 0
    of: Count = 0
    names: Annotated[list[ShortText], Field(max_length=limits.TENSORS_NAMED)] = []


class Failed(Message):
    """This rank cannot go on."""

    reason: Literal[
        "function_error",
        "nonfinite",
        "function_load_error",
        "environment_failed",
        "data_unavailable",
        "peer_lost",
        "storage_failed",
        "start_failed",
        "declined",
        "plan_refused",
        "killed",
        "lease_ended",
        "memory_exceeded",
        "processes_exceeded",
        "disk_writes_exceeded",
        "measuring_timeout",
    ]
    message: Text = ""
    traceback: Text = ""
    iteration: Count | None = 0


class ShardStored(Message):
    """A rank's shard of the state is durable. Made by the agent.

    `copy_seconds`: for so long training stopped to copy it. `writing_seconds`: from then on until it was
    announced; what follows is `store_seconds`. Null where the shard was written at an end.
    """

    iteration: Count
    uri: Uri
    bytes: Count
    sha256: Sha256
    store_seconds: Age = 0.0
    copy_seconds: Age | None = None
    writing_seconds: Age | None = None
    reason: Literal["periodic", "suspend", "handover", "stop"] = "periodic"


class StoredArtifact(Message):
    """A file that a completed job leaves."""

    name: ArtifactName
    uri: Uri
    bytes: Count
    sha256: Sha256


class Completed(Message):
    """Final weights and metrics are durable. Made by the agent."""

    iteration: Count
    reason: Literal["max_iterations", "target", "should_stop"] = "max_iterations"
    artifacts: Annotated[list[StoredArtifact], Field(max_length=limits.ARTIFACTS_OF_A_JOB)] = []
    metrics: Metrics = {}
    sample_order_digest: Digest = ""
    store_seconds: Age = 0.0


class Refused(Message):
    """The agent has refused something that a worker said or left. Made by the agent, a few for each
    worker."""

    what: Label
    reason: Text


#: What user code may say itself; job, generation and rank are the agent's to add.
FROM_WORKERS: Mapping[str, type[Message]] = {
    "first_iteration": FirstIteration,
    "profile_level": ProfileLevel,
    "profile_done": ProfileDone,
    "copy_traffic": CopyTraffic,
    "communication_profile": CommunicationProfile,
    "communication_window": CommunicationWindow,
    "mixture": Mixture,
    "expert_routing": ExpertRouting,
    "nonfinite": Nonfinite,
    "failed": Failed,
}
EVENTS: Mapping[str, type[Message]] = {
    **FROM_WORKERS,
    "shard_stored": ShardStored,
    "completed": Completed,
    "refused": Refused,
}


class EventHead(Message):
    """Which event it is, and whose. `rank` is missing where it is rank 0's by its nature."""

    id: EventId
    kind: ShortText
    job: JobId
    generation: Number
    rank: Number = 0
    age_seconds: Age = 0.0
