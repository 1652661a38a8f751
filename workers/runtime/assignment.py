"""The agent's `assign` message, which gives a warm worker its job, read into types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from emulated_links.rates import ServerLinks
from punctual.protocol.hyperparameters import Settings, read_settings
from recovery.costs.failures import PUBLISHED_FAILURES_A_DAY, SECONDS_PER_DAY
from recovery.traffic.modes import TrafficMode
from workers.runtime.emulation.device_models import DeviceModel
from workers.runtime.emulation.places import Places
from workers.runtime.runtime_plan import RuntimePlan
from workers.runtime.tiers.disk_share import DiskShare

DEFAULT_CHECKPOINT_SECONDS = 60.0


@dataclass(frozen=True)
class Device:
    """The accelerator of this worker.

    Attributes:
        kind: `cpu`, `cuda` or `emulated` (a CPU slot paced like a declared accelerator).
        index: the CUDA device's index on its server.
        model: the device model of an emulated accelerator.
        links: the links of an emulated accelerator's server.
        place: numbers of its server and rack, eight bytes each, the same for all generations of all jobs.
    """

    kind: str
    index: int = 0
    model: DeviceModel | None = None
    links: ServerLinks | None = None
    place: bytes = bytes(16)


@dataclass(frozen=True)
class Target:
    """The value of a metric at which the job ends."""

    #: Name of the metric.
    metric: str
    #: The job ends at this value or above; None if the other bound is set.
    at_least: float | None
    #: The job ends at this value or below; None if the other bound is set.
    at_most: float | None

    def reached(self, values: Mapping[str, float]) -> bool:
        """Return whether `values` hold the metric and it is good enough."""
        value = values.get(self.metric)
        if value is None or not isfinite(value):
            return False
        above = self.at_least is None or value >= self.at_least
        below = self.at_most is None or value <= self.at_most
        return above and below


@dataclass(frozen=True)
class ProfilePlan:
    """Which levels (GPU counts) to measure and for how long.

    Attributes:
        known: iterations per second measured before on fewer GPUs; a level that is no faster is no gain.
    """

    #: Numbers of GPUs, in the order of measurement.
    levels: tuple[int, ...]
    seconds_per_level: float
    max_seconds: float
    known: float | None = None


@dataclass(frozen=True)
class Assignment:
    """One rank of one generation (docs/protocols.md, 2.3 and 3)."""

    job: str
    generation: int
    purpose: str
    rank: int
    world_size: int
    #: Address of torch's rendezvous store.
    master_address: str
    #: Port of torch's rendezvous store.
    master_port: int
    #: Port on which this rank serves its shard to a successor; None without one.
    handover_port: int | None
    #: The job's secret, which ranks prove to have at a hand-over.
    secret: str
    #: Address of the declared interface, on which the hand-over listens; None: `master_address`.
    interface_address: str | None
    device: Device
    #: `module:Class` of the function.
    entry: str
    #: The job's hyperparameters by name.
    hyperparameters: Mapping[str, Any]
    #: The hyperparameters that the runtime reads.
    settings: Settings
    #: Iteration after which the job ends; None: no limit.
    max_iterations: int | None
    #: Metric value at which the job ends; None without one.
    target: Target | None
    seed: int
    checkpoint_seconds: float
    #: Server and rack of each rank.
    places: Places
    #: Levels to measure; None for training.
    profile: ProfilePlan | None
    #: Choices of the control plane, such as a communication plan.
    runtime_plan: RuntimePlan
    #: Share of the time that copying recovery points into memory may take; None: the node has no store.
    memory_share: float | None
    #: Bytes of expert states that this worker may keep in files, and may write in total; None: no limit.
    worker_disk_bytes: int | None = None
    worker_disk_writes_bytes: int | None = None
    #: Rate at which it may read and write those files; None: no limit.
    worker_disk_bytes_per_second: float | None = None
    #: How copies of these points are sent to other servers.
    copy_mode: TrafficMode = TrafficMode.GEMINI
    #: Maximum age of the newest state that survives the loss of a server; beyond it a durable state is
    #: stored. None: no maximum.
    safe_seconds: float | None = None
    #: Maximum number of iterations between two points in memory, set by the job's owner.
    point_iterations: int | None = None
    #: Failure rate with which the runtime weighs the cost of recovery points against the work they save.
    failures_per_server_day: float = PUBLISHED_FAILURES_A_DAY

    @property
    def global_batch_size(self) -> int:
        """Samples per iteration over all workers."""
        return self.settings.global_batch_size

    @property
    def disk_share(self) -> DiskShare:
        """Limits on this worker's use of its server's disk."""
        return DiskShare(
            self.worker_disk_bytes, self.worker_disk_writes_bytes, self.worker_disk_bytes_per_second
        )

    @property
    def failures_per_second(self) -> float:
        """Failure rate of all servers on which the generation trains, together."""
        return len(set(self.places.servers)) * self.failures_per_server_day / SECONDS_PER_DAY

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Assignment:
        """Read an `assign` message.

        Raises:
            ValueError: a field is missing or invalid; the message names it.
        """
        try:
            return cls._read(message)
        except KeyError as error:
            raise ValueError(f"the assignment lacks {error.args[0]!r}") from error

    @classmethod
    def _read(cls, message: Mapping[str, Any]) -> Assignment:
        termination = message.get("termination") or {}
        profile = message.get("profile")
        return cls(
            job=str(message["job"]),
            generation=int(message["generation"]),
            purpose=message["purpose"],
            rank=int(message["rank"]),
            world_size=int(message["world_size"]),
            master_address=message["master_address"],
            master_port=int(message["master_port"]),
            handover_port=message.get("handover_port"),
            secret=message.get("secret") or "",
            interface_address=message.get("interface_address"),
            device=read_device(message["device"]),
            entry=message["function"]["entry"],
            hyperparameters=dict(message["hyperparameters"]),
            settings=read_settings(message["hyperparameters"]),
            max_iterations=termination.get("max_iterations"),
            target=_read_target(termination.get("target")),
            seed=int(message.get("seed") or 0),
            checkpoint_seconds=float(message.get("checkpoint_seconds") or DEFAULT_CHECKPOINT_SECONDS),
            places=_read_places(message.get("places"), int(message["world_size"])),
            profile=None
            if profile is None
            else ProfilePlan(
                levels=tuple(sorted({int(level) for level in profile["levels"]})),
                seconds_per_level=float(profile["seconds_per_level"]),
                max_seconds=float(profile["max_seconds"]),
                known=None if profile.get("known") is None else float(profile["known"]),
            ),
            runtime_plan=RuntimePlan.from_message(message["runtime_plan"]),
            memory_share=_read_memory_share(message.get("memory_points")),
            worker_disk_bytes=message.get("worker_disk_bytes"),
            worker_disk_writes_bytes=message.get("worker_disk_writes_bytes"),
            worker_disk_bytes_per_second=_read_disk_rate(message.get("worker_disk_bytes_per_second")),
            copy_mode=TrafficMode((message.get("memory_points") or {}).get("copies", TrafficMode.GEMINI)),
            safe_seconds=_read_safe_seconds(message.get("safe_seconds")),
            point_iterations=_read_point_iterations(message.get("point_iterations")),
            failures_per_server_day=_read_failures(message.get("failures_per_server_day")),
        )


def read_device(message: Mapping[str, Any]) -> Device:
    """Read the part `device` of an assignment. Raise KeyError or ValueError if it is invalid."""
    kind = message["kind"]
    if kind not in {"cpu", "cuda", "emulated"}:
        raise ValueError(f"unknown kind of device {kind!r}")
    if kind != "emulated":
        return Device(kind=kind, index=int(message.get("index") or 0))
    return Device(
        kind=kind,
        model=DeviceModel.from_message(message["model"]),
        links=ServerLinks.from_message(message["links"]),
        place=bytes.fromhex(message["place"]),
    )


def _read_memory_share(message: Mapping[str, Any] | None) -> float | None:
    if message is None:
        return None
    share = float(message["share"])
    if not 0 < share <= 1:
        raise ValueError(f"the share of memory_points must be above 0 and at most 1, not {share:g}")
    return share


def _read_safe_seconds(told: Any) -> float | None:
    if told is None:
        return None
    if not float(told) > 0:
        raise ValueError(f"safe_seconds must be positive, not {told!r}")
    return float(told)


def _read_point_iterations(value: Any) -> int | None:
    if value is None:
        return None
    if not int(value) >= 1:
        raise ValueError(f"point_iterations must be a whole number from 1, not {value!r}")
    return int(value)


def _read_disk_rate(value: Any) -> float | None:
    if value is None:
        return None
    if not (isfinite(float(value)) and float(value) > 0):
        raise ValueError(f"worker_disk_bytes_per_second must be a number above 0, not {value!r}")
    return float(value)


def _read_failures(value: Any) -> float:
    """Return the failure rate; the published one if the control plane or agent is too old to send it."""
    if value is None:
        return PUBLISHED_FAILURES_A_DAY
    if not (isfinite(float(value)) and float(value) >= 0):
        raise ValueError(f"failures_per_server_day must be a number from 0, not {value!r}")
    return float(value)


def _read_places(message: Mapping[str, Any] | None, world_size: int) -> Places:
    """Return the places of the ranks; one server for all if the message names none."""
    message = message or {"servers": [0] * world_size, "racks": [0] * world_size}
    places = Places(tuple(map(int, message["servers"])), tuple(map(int, message["racks"])))
    if not len(places.servers) == len(places.racks) == world_size:
        raise ValueError(f"places must name a server and a rack for each of {world_size} ranks")
    return places


def _read_target(message: Mapping[str, Any] | None) -> Target | None:
    if message is None:
        return None
    return Target(message["metric"], message.get("at_least"), message.get("at_most"))
