"""The exchange of a group: costs of encoding and sending it, from placement, link and codec.

Compressed groups are gathered by all workers, because payloads cannot be summed; uncompressed ones are
all-reduced. On several servers only the exchange between servers is compressed: the GPUs of a server
reduce-scatter their gradients, each exchanges its part with its peers on other servers, and the results are
gathered within the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np

from communication.collectives import all_gather_bytes, all_reduce_bytes, reduce_scatter_bytes
from communication.cupcake.costs import FREE, Cost
from communication.cupcake.problem import FusionProblem
from communication.profiles.arrays import Floats, Integers
from communication.profiles.codec import CodecProfile
from communication.profiles.link import LinkProfile
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """Settings that the paper leaves open.

    Attributes:
        decode_per_payload: decode each worker's payload separately, as the public code does; otherwise all
            payloads of a group at once. decode_at_end: decode groups after they arrive, so that only the last
            decoding is waited for; otherwise decoding is charged with encoding.
        host_seconds_per_call: time that a collective call takes from the computing stream.

    Raises ValueError for negative or infinite seconds.
    """

    decode_per_payload: bool = True
    decode_at_end: bool = False
    host_seconds_per_call: float = 0.0

    def __post_init__(self) -> None:
        if not (isfinite(self.host_seconds_per_call) and self.host_seconds_per_call >= 0.0):
            raise ValueError(
                f"host_seconds_per_call is {self.host_seconds_per_call}; it must be finite and not negative"
            )


@dataclass(frozen=True, slots=True)
class Exchange:
    """A model's gradients on a placement, under one codec; None sends gradients uncompressed."""

    model: ModelProfile
    placement: PlacementShape
    link: LinkProfile
    codec: CodecProfile | None
    settings: ExchangeSettings = ExchangeSettings()

    @property
    def participants(self) -> int:
        """Participants of the compressed exchange: servers, or workers if all are on one server."""
        return self.placement.servers if self.placement.spread else self.placement.workers

    @property
    def parts(self) -> int:
        """Number of parts into which the GPUs of a server divide a group before exchanging it."""
        return self.placement.gpus_per_server if self.placement.spread else 1

    def problem(self) -> FusionProblem:
        """Return the fusion problem of this exchange."""
        decode: Cost = _Coding(self, decodes=True)
        at_end = self.settings.decode_at_end
        return FusionProblem(
            self.model.gap_seconds,
            self.model.sizes_bytes.astype(np.float64),
            encode=_Coding(self, encodes=True, calls=True, decodes=not at_end),
            transfer=_Transfer(self),
            other_seconds=self.model.other_seconds,
            ending=decode if at_end else FREE,
        )

    def part_elements(self, sizes_bytes: Floats) -> Integers:
        """Return the elements that one GPU encodes of groups of these sizes: its part, rounded up."""
        elements = np.asarray(sizes_bytes) / self.model.bytes_per_element
        return np.ceil(elements / self.parts).astype(np.int64)

    def payload_bytes(self, sizes_bytes: Floats) -> Integers:
        """Return the encoded bytes that one GPU sends of these groups."""
        parts = self.part_elements(sizes_bytes)
        return parts * self.model.bytes_per_element if self.codec is None else self.codec.wire.bytes_of(parts)

    def received_bytes(self, sizes_bytes: Floats) -> Floats:
        """Return the bytes that a server, or a worker if all are on one server, receives from the others."""
        if self.codec is None:
            return np.asarray(sizes_bytes) * all_reduce_bytes(self.participants, 1.0)
        payloads = self.payload_bytes(sizes_bytes).astype(np.float64) * self.parts
        return payloads * all_gather_bytes(self.participants, 1.0)

    def received_within(self, sizes_bytes: Floats) -> Floats:
        """Return the bytes that a GPU receives from the others of its server: before and after the exchange
        between servers, or in the exchange itself if all workers are on one server."""
        if not self.placement.spread:
            return self.received_bytes(sizes_bytes)
        return 2.0 * np.asarray(sizes_bytes) * reduce_scatter_bytes(self.parts, 1.0)

    def coding_seconds(self, sizes_bytes: Floats) -> Floats:
        """Return the seconds that a device spends encoding and decoding groups."""
        return _Coding(self, encodes=True, decodes=True)(sizes_bytes)


@dataclass(frozen=True, slots=True)
class _Coding:
    """h: encoding, decoding, and the stream time of calls."""

    exchange: Exchange
    encodes: bool = False
    decodes: bool = False
    calls: bool = False

    def __call__(self, sizes_bytes: Floats) -> Floats:
        one = self.exchange
        sizes = np.asarray(sizes_bytes, dtype=np.float64)
        seconds = np.zeros(sizes.shape)
        if one.participants == 1:
            return seconds
        if self.calls:
            seconds = np.where(sizes > 0.0, one.settings.host_seconds_per_call, seconds)
        if one.codec is None:
            return seconds
        elements = one.part_elements(sizes)
        if self.encodes:
            seconds = seconds + one.codec.seconds_to_encode(elements)
        if self.decodes:
            payloads = one.participants if one.settings.decode_per_payload else 1
            seconds = seconds + payloads * one.codec.seconds_to_decode(elements)
        return seconds


@dataclass(frozen=True, slots=True)
class _Transfer:
    """g: one call between the participants, plus two within each server if there are several servers with
    several GPUs."""

    exchange: Exchange

    def __call__(self, sizes_bytes: Floats) -> Floats:
        one = self.exchange
        sizes = np.asarray(sizes_bytes, dtype=np.float64)
        if one.participants == 1:
            return np.zeros(sizes.shape)
        rate = one.link.rate(spread=one.placement.spread)
        seconds = rate.latency_seconds + one.received_bytes(sizes) / rate.bytes_per_second
        if one.parts > 1:
            within = one.link.within
            calls = 2.0 * within.latency_seconds
            seconds = seconds + calls + one.received_within(sizes) / within.bytes_per_second
        return np.where(sizes > 0.0, seconds, 0.0)
