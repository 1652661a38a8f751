"""Whether an inference job with experts in a ring of device memory meets its latency."""

from __future__ import annotations

from dataclasses import dataclass

from moe.moesys.checks import check_at_least, check_at_most, check_not_negative, check_positive
from moe.moesys.choices import Pinning, Remedy
from moe.moesys.ring import (
    RING_SECTIONS,
    RingMemory,
    fewest_sections,
    first_pass_seconds,
    most_sections,
    period_seconds,
    schedule_ring,
    spread_layers,
    steady_seconds,
)

MAX_LAYERS = 1024
MAX_GPUS = 4096


@dataclass(frozen=True, slots=True)
class RingRequest:
    """An inference job.

    Attributes:
        layers: decoder layers.
        layer_bytes: experts of one layer on each GPU.
        gpu_bytes: device memory of each GPU.
        compute_seconds: computation of one layer with the job's batch.
        host_bytes_per_second: from host memory to one GPU.
        dense_bytes, activation_bytes: on each GPU.
        gpus: of the job.
        rings: ring jobs that share the path to host memory, this one included.
        latency_seconds: largest time of a token; None for any.
        pinning: which layers stay on the device.

    Raises:
        ValueError: a value is out of range.
    """

    layers: int
    layer_bytes: float
    gpu_bytes: float
    compute_seconds: float
    host_bytes_per_second: float = 25e9
    dense_bytes: float = 0.0
    activation_bytes: float = 0.0
    gpus: int = 1
    rings: int = 1
    latency_seconds: float | None = None
    pinning: Pinning = Pinning.SPREAD

    def __post_init__(self) -> None:
        check_at_least("layers", self.layers)
        check_at_most("layers", self.layers, MAX_LAYERS)
        for name in ("layer_bytes", "gpu_bytes", "compute_seconds", "host_bytes_per_second"):
            check_positive(name, getattr(self, name))
        check_not_negative("dense_bytes", self.dense_bytes)
        check_not_negative("activation_bytes", self.activation_bytes)
        check_at_least("gpus", self.gpus)
        check_at_most("gpus", self.gpus, MAX_GPUS)
        check_at_least("rings", self.rings)
        if self.latency_seconds is not None:
            check_positive("latency_seconds", self.latency_seconds)

    @property
    def load_seconds(self) -> float:
        """Copy of one layer to the device (ℓ)."""
        return self.layer_bytes * self.rings / self.host_bytes_per_second


@dataclass(frozen=True, slots=True)
class RingAdmission:
    """The verdict on a job, and its prediction.

    Attributes:
        sections: K; None if not even two fit.
        is_resident: whether all layers fit.
        pinned: layers that stay on the device.
        bytes: device memory on each GPU; with two sections if not even two fit.
        first_pass_seconds, steady_seconds: time of the first token, and of a token in steady state.
        fewest_sections: K_min, with which the first pass never waits for a copy.
        is_admitted: whether the job fits and meets its latency.
        binding: what a rejected job lacks: `gpu` memory, or time before the `deadline`.
        remedy: what would let it meet its latency.
        remedy_gpus: number of GPUs of the remedy.
        is_load_bound: whether copies take longer than computation. Then a larger batch costs no latency until
            computation takes as long.
    """

    sections: int | None
    is_resident: bool
    pinned: tuple[int, ...]
    bytes: float
    first_pass_seconds: float | None
    steady_seconds: float | None
    fewest_sections: int
    is_admitted: bool
    binding: str
    remedy: Remedy
    remedy_gpus: int | None
    is_load_bound: bool


def admit_ring(request: RingRequest, max_sections: int | None = None) -> RingAdmission:
    """Return the verdict with the largest ring that fits.

    Args:
        max_sections: limit of the sections; None for no limit.

    Raises:
        ValueError: the limit is below 1.
    """
    sections = _fitting_sections(request, 1)
    if max_sections is not None:
        check_at_least("sections", max_sections)
        sections = sections and min(sections, max_sections)
    memory = RingMemory(
        request.layers,
        sections or RING_SECTIONS,
        request.layer_bytes,
        request.dense_bytes,
        request.activation_bytes,
    )
    first, steady = predict_ring(request, sections) if sections else (None, None)
    is_admitted = steady is not None and _meets_latency(request, steady)
    remedy, remedy_gpus = (Remedy.NONE, None) if is_admitted else _find_remedy(request)
    is_ring = sections is not None and sections < request.layers
    return RingAdmission(
        sections=sections,
        is_resident=sections == request.layers,
        pinned=_pinned(request, sections) if sections else (),
        bytes=memory.bytes,
        first_pass_seconds=first,
        steady_seconds=steady,
        fewest_sections=fewest_sections(request.layers, request.compute_seconds, request.load_seconds),
        is_admitted=is_admitted,
        binding="" if is_admitted else "gpu" if sections is None else "deadline",
        remedy=remedy,
        remedy_gpus=remedy_gpus,
        is_load_bound=is_ring and request.load_seconds > request.compute_seconds,
    )


def predict_ring(request: RingRequest, sections: int) -> tuple[float, float]:
    """Return the seconds of the first pass and of a pass in steady state, whether the sections fit or not."""
    check_at_least("sections", sections)
    used = min(sections, request.layers)
    pinned = _pinned(request, used)
    compute, load = request.compute_seconds, request.load_seconds
    if not pinned:
        first = first_pass_seconds(request.layers, used, compute, load)
    else:
        first = schedule_ring(request.layers, used, compute, load, 1, pinned).seconds
    return first, _steady_seconds(request, used, load)


def _fitting_sections(request: RingRequest, factor: int) -> int | None:
    """Return K on `factor` times as many GPUs, over which the experts spread."""
    other_bytes = request.dense_bytes + request.activation_bytes
    return most_sections(request.layers, request.layer_bytes / factor, other_bytes, request.gpu_bytes)


def _pinned(request: RingRequest, sections: int) -> tuple[int, ...]:
    return spread_layers(request.layers, sections) if request.pinning is Pinning.SPREAD else ()


def _steady_seconds(request: RingRequest, sections: int, load_seconds: float) -> float:
    pinned = _pinned(request, sections)
    if not pinned:
        return steady_seconds(request.layers, sections, request.compute_seconds, load_seconds)
    return period_seconds(request.layers, sections, request.compute_seconds, load_seconds, pinned)


def _meets_latency(request: RingRequest, seconds: float) -> bool:
    return request.latency_seconds is None or seconds <= request.latency_seconds


def _find_remedy(request: RingRequest) -> tuple[Remedy, int | None]:
    if not _meets_latency(request, request.layers * request.compute_seconds):
        return Remedy.FASTER_COMPUTATION, None
    factor = 2
    while request.gpus * factor <= MAX_GPUS:
        sections = _fitting_sections(request, factor)
        if sections:
            seconds = _steady_seconds(request, sections, request.load_seconds / factor)
            if _meets_latency(request, seconds):
                return Remedy.MORE_GPUS, request.gpus * factor
        factor *= 2
    return Remedy.REJECT, None
