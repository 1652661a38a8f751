"""Start and end of each layer under two-dimensional prefetch.

Dense slices are gathered over the links between GPUs. States of experts are fetched from host memory. Each
is a FIFO channel beside computation. The transfers of layer j are issued when the computation of layer j - W
starts; W is the lookahead. Those of layers 0 to W - 1 are issued at the beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moe.moesys.capacity import FILE_BYTES, WEIGHT_BYTES
from moe.moesys.checks import check_at_least, check_not_negative, check_positive

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Durations of each layer in seconds, in the order in which layers compute.

    Attributes:
        compute: (layers): computation.
        gather: (layers): gathering of its dense slices.
        fetch: (layers): fetching of its experts' states.

    Raises:
        ValueError: the lengths differ, there is no layer, or a time is negative or not finite.
    """

    compute: Floats
    gather: Floats
    fetch: Floats

    def __post_init__(self) -> None:
        for name in ("compute", "gather", "fetch"):
            times = np.array(getattr(self, name), dtype=np.float64)
            if times.ndim != 1 or not len(times) or not (np.isfinite(times) & (times >= 0.0)).all():
                raise ValueError(f"{name} must have one finite time of at least 0 for each layer")
            times.flags.writeable = False
            object.__setattr__(self, name, times)
        lengths = [len(self.compute), len(self.gather), len(self.fetch)]
        if len(set(lengths)) > 1:
            raise ValueError(f"compute, gather and fetch have {lengths} layers; they must have equally many")

    def __len__(self) -> int:
        """Return the number of layers."""
        return len(self.compute)

    def followed_by(self, later: LayerTimes) -> LayerTimes:
        """Return these layers and then others, such as a forward pass and its backward pass."""
        pairs = ((getattr(self, name), getattr(later, name)) for name in ("compute", "gather", "fetch"))
        return LayerTimes(*(np.concatenate(pair) for pair in pairs))


@dataclass(frozen=True, slots=True)
class PrefetchSchedule:
    """Times of each layer in seconds from the start: the paper's de, pe, cs and ce."""

    gather_end: Floats
    fetch_end: Floats
    compute_start: Floats
    compute_end: Floats

    @property
    def seconds(self) -> float:
        """End of the last layer."""
        return float(self.compute_end[-1])

    @property
    def stalls(self) -> Floats:
        """(layers): time that computation waits for the transfers of each layer."""
        previous_ends = np.concatenate(([0.0], self.compute_end[:-1]))
        return self.compute_start - previous_ends


def two_channel_schedule(times: LayerTimes, lookahead: int = 1) -> PrefetchSchedule:
    """Return the schedule with a channel for gathers and one for fetches. `lookahead` is at least 1."""
    check_at_least("lookahead", lookahead)
    layers = len(times)
    gather_ends, fetch_ends, starts, ends = (np.zeros(layers) for _ in range(4))
    last_gather = last_fetch = last_compute = 0.0
    for layer in range(layers):
        issued = starts[layer - lookahead] if layer >= lookahead else 0.0
        gather_ends[layer] = last_gather = max(last_gather, issued) + times.gather[layer]
        fetch_ends[layer] = last_fetch = max(last_fetch, issued) + times.fetch[layer]
        starts[layer] = max(last_compute, last_gather, last_fetch)
        ends[layer] = last_compute = starts[layer] + times.compute[layer]
    return PrefetchSchedule(gather_ends, fetch_ends, starts, ends)


def gather_seconds(dense_parameters: float, ranks: int, bytes_per_second: float) -> float:
    """Return the time to gather a layer's dense slices over `ranks` ranks that own equal parts.

    Raises:
        ValueError: parameters are negative, or there is no rank or rate.
    """
    check_not_negative("dense_parameters", dense_parameters)
    check_at_least("ranks", ranks)
    check_positive("bytes_per_second", bytes_per_second)
    return (ranks - 1) / ranks * WEIGHT_BYTES * dense_parameters / bytes_per_second


def fetch_seconds(
    active: float,
    missing: float,
    expert_parameters: float,
    host_bytes_per_second: float,
    file_bytes_per_second: float,
) -> float:
    """Return the time to fetch a layer's experts to the device.

    Args:
        active: experts that are fetched.
        missing: those of them that are not in host memory and must be read from files first.
        expert_parameters: parameters of one expert.

    Raises:
        ValueError: a number is negative, or a rate is not above 0.
    """
    for name, value in (("active", active), ("missing", missing), ("expert_parameters", expert_parameters)):
        check_not_negative(name, value)
    check_positive("host_bytes_per_second", host_bytes_per_second)
    check_positive("file_bytes_per_second", file_bytes_per_second)
    to_device = WEIGHT_BYTES * active * expert_parameters / host_bytes_per_second
    return to_device + FILE_BYTES * missing * expert_parameters / file_bytes_per_second


def predict_experts(
    received: Sequence[int], frequencies: Sequence[float], on_device: Collection[int], most: int
) -> tuple[int, ...]:
    """Return the experts of a layer to fetch ahead: those that received tokens in the last iteration.

    They are ordered by cache frequency, then by tokens, both descending, then by id. The gate exchanges these
    counts already, so the prediction needs no communication.

    Args:
        received: (experts): tokens of the last iteration.
        frequencies: (experts): counts of the cache.
        on_device: experts that need no fetch.
        most: the largest number of experts that the buffer on the device holds.
    """
    if len(received) != len(frequencies):
        raise ValueError(f"frequencies has {len(frequencies)} values; received has {len(received)}")
    check_at_least("most", most, 0)
    needed = [expert for expert, tokens in enumerate(received) if tokens > 0 and expert not in on_device]
    needed.sort(key=lambda expert: (-frequencies[expert], -received[expert], expert))
    return tuple(needed[:most])
