"""The cost of each operation of an option: bytes that a rank receives, and seconds of a resource.

A collective call takes α plus its bytes over the bandwidth. GPUs that exchange between servers at the same
time share the server's network interface. Encoding and decoding take the times of the codec's profile; the
processors of a server serve all its GPUs in sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from communication.collectives import all_gather_bytes, all_reduce_bytes, reduce_scatter_bytes, tree_bytes
from communication.espresso.operations import Operation, Resource
from communication.espresso.options import Level, Routine, Task
from communication.profiles.arrays import Floats, Integers
from communication.profiles.codec import CodecProfile, Device
from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.placement import PlacementShape


@dataclass(frozen=True)
class CostModel:
    """A job's placement, and the costs of links and codecs there.

    Attributes:
        codecs: one algorithm, on each device that may compress; empty to compress nothing. A CPU codec's rate
            is that of all processors of one server.
        decode_per_payload: whether each payload of a stack is decoded by its own kernel launch.
        single_channel: whether links within and between servers together serve one operation at a time.
        cpu_servers: operations that a server's processors serve concurrently, each at the codec's rate.
        free_compression: codecs take no time, for upper bounds.

    Raises ValueError for a codec under the wrong device, codecs of different wire formats, no CPU server.
    """

    shape: PlacementShape
    links: LinkProfile
    codecs: Mapping[Device, CodecProfile] = field(default_factory=dict)
    decode_per_payload: bool = True
    single_channel: bool = False
    cpu_servers: int = 1
    free_compression: bool = False

    def __post_init__(self) -> None:
        for device, codec in self.codecs.items():
            if codec.device is not device:
                raise ValueError(f"codec {codec.name!r} was measured on {codec.device}, not on {device}")
        if len({(codec.name, codec.wire) for codec in self.codecs.values()}) > 1:
            raise ValueError("the devices have different codecs; a job has one codec on every device")
        if self.cpu_servers < 1:
            raise ValueError(f"cpu_servers is {self.cpu_servers}; it must be at least 1")

    @property
    def devices(self) -> tuple[Device, ...]:
        """Devices that may compress."""
        return tuple(device for device in Device if device in self.codecs)

    def received_bytes(self, operation: Operation, elements: Integers, bytes_per_element: int = 4) -> Floats:
        """Return the bytes that a rank receives in an exchange of gradients of these sizes; for an exchange
        with a root the largest number. 0 for a codec's step."""
        if operation.step.is_codec:
            return np.zeros(len(elements))
        participants, routine = operation.participants, operation.step.routine
        if routine in (Routine.REDUCE_SCATTER, Routine.ALL_TO_ALL):
            part = self.held_bytes(operation, elements, bytes_per_element, participants)
            return reduce_scatter_bytes(participants, float(participants)) * part
        held = self.held_bytes(operation, elements, bytes_per_element)
        if routine is Routine.ALL_REDUCE:
            return all_reduce_bytes(participants, 1.0) * held
        if routine in (Routine.ALL_GATHER, Routine.GATHER):
            return all_gather_bytes(participants, 1.0) * held
        return tree_bytes(participants, 1.0) * held

    def seconds(self, operation: Operation, elements: Integers, bytes_per_element: int = 4) -> Floats:
        """Return the seconds for which an operation occupies its resource, for gradients of these sizes."""
        if operation.step.is_codec:
            return self._codec_seconds(operation, elements)
        rate = self._rate(operation)
        calls = 2 if operation.step.routine is Routine.ALL_REDUCE else 1
        received = self.received_bytes(operation, elements, bytes_per_element) * self.sharers(operation)
        return calls * rate.latency_seconds + received / rate.bytes_per_second

    def sharers(self, operation: Operation) -> int:
        """Return the ranks of a server that receive through its network interface at once; 1 within a server.

        A flat ring enters each server once, and a flat root is one rank. In a flat all-to-all exchange every
        rank receives from the other servers.
        """
        if operation.resource(self.shape) is not Resource.BETWEEN:
            return 1
        if operation.step.level is Level.INTER:
            return operation.per_server
        return self.shape.gpus_per_server if operation.step.routine is Routine.ALL_TO_ALL else 1

    def _rate(self, operation: Operation) -> LinkRate:
        return self.links.rate(spread=operation.resource(self.shape) is Resource.BETWEEN)

    def held_bytes(
        self, operation: Operation, elements: Integers, bytes_per_element: int = 4, divided: int = 1
    ) -> Floats:
        """Return the bytes that a rank holds before an operation: sums of its part, or a stack of payloads.

        ``divided``: count one of this many parts of it. Of unequal parts the largest counts.
        """
        part = _divided(elements, operation.parts * divided)
        if not operation.compressed:
            return np.asarray(part * float(bytes_per_element), dtype=np.float64)
        piece = _divided(elements, operation.parts * operation.pieces)
        wire = next(iter(self.codecs.values())).wire.bytes_of(piece)
        return np.asarray(operation.payloads * np.ceil(part / piece) * wire, dtype=np.float64)

    def _codec_seconds(self, operation: Operation, elements: Integers) -> Floats:
        device = operation.step.device
        assert device is not None
        if self.free_compression:
            return np.zeros(len(elements))
        codec = self.codecs[device]
        part = _divided(elements, operation.parts)
        # A server's processors compress for all its GPUs.
        ranks = operation.per_server if device is Device.CPU else 1
        if operation.step.task is Task.COMP:
            return ranks * codec.seconds_to_encode(part)
        if self.decode_per_payload:
            return ranks * operation.payloads * codec.seconds_to_decode(part)
        return ranks * codec.seconds_to_decode(operation.payloads * part)


def _divided(elements: Integers, parts: int) -> Integers:
    return np.asarray(-(-elements // parts))
