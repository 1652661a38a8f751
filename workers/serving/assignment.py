"""The agent's `assign` message to a serving worker, in types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workers.runtime.assignment import Device, read_device
from workers.serving.limits import ServingLimits

WEIGHTS = "weights.pt"


@dataclass(frozen=True)
class GroupPlace:
    """This server's place in a group. `address`, `port`: where rank 0 serves the group's store."""

    rank: int
    #: Number of servers in the group.
    size: int
    address: str
    port: int


@dataclass(frozen=True)
class ServingAssignment:
    """One replica of a deployment (docs/protocols.md 2.12).

    Attributes:
        job: the key of the replica.
        address, port: where it listens.
        group: its place among servers that spread the experts of one model; None: it is alone.
        device_bytes: device memory that weights may take; None: no limit.
        latency_target_seconds: latency that a ring must be able to meet; None: no target.
        has_weights: whether a job's final weights are in the box; otherwise `init_model`'s are served.
    """

    job: str
    generation: int
    rank: int
    #: `module:Class` of the function.
    entry: str
    #: Values passed to the function.
    hyperparameters: Mapping[str, Any]
    seed: int
    address: str
    port: int
    device: Device
    has_weights: bool
    limits: ServingLimits
    group: GroupPlace | None = None
    device_bytes: int | None = None
    latency_target_seconds: float | None = None

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> ServingAssignment:
        """Read an `assign` message. Raise ValueError if a field is missing or invalid."""
        memory = message.get("memory") or {}
        try:
            return cls(
                job=str(message["job"]),
                generation=int(message["generation"]),
                rank=int(message["rank"]),
                entry=str(message["function"]["entry"]),
                hyperparameters=dict(message["hyperparameters"]),
                seed=int(message.get("seed") or 0),
                address=str(message["interface_address"]),
                port=int(message["handover_port"]),
                device=read_device(message["device"]),
                has_weights=any(file["name"] == WEIGHTS for file in message.get("files") or []),
                limits=ServingLimits.from_message(message.get("serving") or {}),
                group=_read_group(message),
                device_bytes=None if memory.get("device_bytes") is None else int(memory["device_bytes"]),
                latency_target_seconds=_read_target(memory),
            )
        except KeyError as error:
            raise ValueError(f"the assignment lacks {error.args[0]!r}") from error
        except TypeError as error:
            raise ValueError(f"the assignment is malformed: {error}") from error


def _read_target(memory: Mapping[str, Any]) -> float | None:
    target = memory.get("latency_target_seconds")
    return None if target is None else float(target)


def _read_group(message: Mapping[str, Any]) -> GroupPlace | None:
    if int(message["world_size"]) == 1:
        return None
    return GroupPlace(
        rank=int(message["rank"]),
        size=int(message["world_size"]),
        address=str(message["master_address"]),
        port=int(message["master_port"]),
    )
