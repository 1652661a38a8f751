"""Events of workers: messages that must not be lost and are applied once (docs/protocols.md 2.2)."""

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

    `waiting_seconds`: part of the pause until its state was found, `loading_seconds`: until it was loaded.
    """

    iteration: Count
    pause_seconds: Pause
    waiting_seconds: Pause = 0.0
    loading_seconds: Pause = 0.0


class ProfileLevel(Message):
    """One measured level of a scaling curve.

    `overrun`: by which fraction an emulated device took longer than emulated; above 0.05 the measurement is
    invalid for the device. `host_memory_bytes`: peak host memory of one worker. `state_bytes`: of the whole
    state; 0 if not measured.
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
    """The curve is complete for this profiling block."""

    reason: Literal["no_gain", "all_levels", "time", "out_of_memory"]


class CopyTraffic(Message):
    """Rank 0's schedule for the copies of its recovery points, and its measurements of them.

    Attributes:
        every: iterations from one point to the next. iterations: over which its copies are spread, in `spans`
            idle spans each. bytes: to all peers. idle_seconds: of an iteration. copy_seconds: network time.
            extension_seconds: time that a point adds to an iteration, by the plan. write_seconds: to hand a
            point to the store. with_seconds, without_seconds: medians of iterations with and without copies
            in progress.
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
    """The loss became NaN or infinite, or is finite again; or weights are not finite, possibly those of the
    result.

    Attributes:
        since: of a loss: the first iteration of the run. tensors, of: number of tensors that are not finite,
            out of the model's. names: of the first of them.
    """

    what: Literal["loss_began", "loss_ended", "weights", "final_weights"]
    iteration: Count
    since: Count = 0
    tensors: Count = 0
    of: Count = 0
    names: Annotated[list[ShortText], Field(max_length=limits.TENSORS_NAMED)] = []


class Failed(Message):
    """This rank cannot continue."""

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

    `copy_seconds`: how long training stopped to copy it. `writing_seconds`: from then until it was announced,
    followed by `store_seconds`. Null if the shard was written at an end.
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
    """A file of a completed job."""

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
    """The agent has refused a worker's message or file. Made by the agent, a few times for each worker."""

    what: Label
    reason: Text


#: Events that user code may send; the agent adds job, generation and rank.
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
    """Identity of an event. `rank` is omitted for events that only rank 0 sends."""

    id: EventId
    kind: ShortText
    job: JobId
    generation: Number
    rank: Number = 0
    age_seconds: Age = 0.0
