"""Slices of parameters that are gathered together, and buckets of gradients.

Large parameters are cut over the ranks, and one collective gathers all slices of a layer. Small parameters
stay whole. Gradients are sent to their owners in buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from moe.moesys.checks import check_at_least, check_not_negative, check_positive

ALIGNMENT_BYTES = 256
#: Parameters with at most this many elements stay whole.
SEGMENT_ELEMENTS = 2**20
BUCKET_ELEMENTS = 2**23


def padding(elements: int, element_bytes: int) -> int:
    """Return the elements between the end of a parameter and the next multiple of 256 bytes."""
    check_at_least("elements", elements)
    check_at_least("element_bytes", element_bytes)
    return -elements * element_bytes % ALIGNMENT_BYTES // element_bytes


@dataclass(frozen=True, slots=True)
class ParameterSlices:
    """Equal slices of a parameter.

    Attributes:
        elements: of the parameter.
        padded: elements of all slices together.
        ranks: number of slices.
    """

    elements: int
    padded: int
    ranks: int

    @property
    def slice_elements(self) -> int:
        """Elements of each slice."""
        return self.padded // self.ranks

    def owned(self, rank: int) -> tuple[int, int]:
        """Return begin and end of the parameter's elements in a rank's slice, without padding. The last ranks
        may own padding alone."""
        begin = min(self.elements, rank * self.slice_elements)
        return begin, min(self.elements, begin + self.slice_elements)


def slice_parameter(elements: int, element_bytes: int, ranks: int) -> ParameterSlices:
    """Cut a parameter into equal slices, padded to 256 bytes and then to a multiple of `ranks`."""
    check_at_least("ranks", ranks)
    aligned = elements + padding(elements, element_bytes)
    return ParameterSlices(elements, ceil(aligned / ranks) * ranks, ranks)


@dataclass(frozen=True, slots=True)
class GatherLayout:
    """The buffer of a fused gather.

    Attributes:
        slices: of each parameter of the layer.
        offsets: of each parameter's slice in the part that a rank sends, in elements.
        part_elements: elements that a rank sends.
    """

    slices: tuple[ParameterSlices, ...]
    offsets: tuple[int, ...]
    part_elements: int


def plan_gather(elements: Sequence[int], element_bytes: int, ranks: int) -> GatherLayout:
    """Return the layout of one gather for all parameters of a layer, in their order.

    Raises:
        ValueError: there is no parameter, or one without elements.
    """
    check_at_least("parameters", len(elements))
    slices = tuple(slice_parameter(count, element_bytes, ranks) for count in elements)
    offsets, total = [], 0
    for parameter in slices:
        offsets.append(total)
        total += parameter.slice_elements
    return GatherLayout(slices, tuple(offsets), total)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are sent together.

    Attributes:
        members: index of a gradient and its offset in elements.
        fill: elements in use.
    """

    members: tuple[tuple[int, int], ...]
    fill: int


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """Buckets, and gradients that are sent alone."""

    buckets: tuple[Bucket, ...]
    alone: tuple[int, ...]

    @property
    def collectives(self) -> int:
        """Collectives of an iteration."""
        return len(self.buckets) + len(self.alone)


def plan_buckets(
    elements: Sequence[int],
    element_bytes: int,
    owners: Sequence[int] | None = None,
    capacity: int = BUCKET_ELEMENTS,
) -> BucketPlan:
    """Put gradients of one type into a bucket for each owner, the smallest gradients first.

    Args:
        elements: of each gradient.
        owners: the rank that each gradient is reduced to. None: all have the same owner.
        capacity: of a bucket in elements; 0 for no buckets.
    """
    check_at_least("capacity", capacity, 0)
    owners = owners if owners is not None else [0] * len(elements)
    if len(owners) != len(elements):
        raise ValueError(f"owners has {len(owners)} values; there are {len(elements)} gradients")
    members: dict[int, list[tuple[int, int]]] = {}
    fill: dict[int, int] = {}
    alone = []
    for index in sorted(range(len(elements)), key=lambda index: elements[index]):
        padded = elements[index] + padding(elements[index], element_bytes)
        owner = owners[index]
        if fill.get(owner, 0) + padded > capacity:
            alone.append(index)
            continue
        members.setdefault(owner, []).append((index, fill.get(owner, 0)))
        fill[owner] = fill.get(owner, 0) + padded
    buckets = tuple(Bucket(tuple(members[owner]), fill[owner]) for owner in sorted(members))
    return BucketPlan(buckets, tuple(alone))


def unfused_seconds(message_bytes: Sequence[float], latency_seconds: float, bytes_per_second: float) -> float:
    """Return the time to send the tensors separately."""
    _check_link(latency_seconds, bytes_per_second)
    return sum(latency_seconds + size / bytes_per_second for size in message_bytes)


def fused_seconds(
    message_bytes: Sequence[float], bucket_bytes: float, latency_seconds: float, bytes_per_second: float
) -> float:
    """Return the time to send all tensors in full buckets."""
    _check_link(latency_seconds, bytes_per_second)
    check_positive("bucket_bytes", bucket_bytes)
    total = sum(message_bytes)
    return ceil(total / bucket_bytes) * latency_seconds + total / bytes_per_second


def _check_link(latency_seconds: float, bytes_per_second: float) -> None:
    check_not_negative("latency_seconds", latency_seconds)
    check_positive("bytes_per_second", bytes_per_second)
