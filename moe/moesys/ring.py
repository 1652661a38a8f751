"""Inference with experts in a ring of device memory.

Host memory holds the experts of all layers, and K sections of device memory hold those of K layers. When a
layer has computed, its section receives a later layer, copied beside computation. Layers may be pinned: they
stay on the device, and the others share the remaining sections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite

from moe.moesys.checks import check_at_least, check_not_negative, check_positive

#: Sections of the ring if all others hold pinned layers: one computes while the other is filled.
RING_SECTIONS = 2


@dataclass(frozen=True, slots=True)
class RingSchedule:
    """Times in seconds from the start, of each layer of all passes.

    Attributes:
        layers: of one pass.
        loads: copies of all passes.
        load_start, load_end: 0 for a layer that is not copied.
        compute_start, compute_end: computation.
    """

    layers: int
    loads: int
    load_start: tuple[float, ...]
    load_end: tuple[float, ...]
    compute_start: tuple[float, ...]
    compute_end: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """End of the last pass."""
        return self.compute_end[-1]

    @property
    def pass_ends(self) -> tuple[float, ...]:
        """End of each pass."""
        return self.compute_end[self.layers - 1 :: self.layers]


def schedule_ring(
    layers: int,
    sections: int,
    compute_seconds: float | Sequence[float],
    load_seconds: float | Sequence[float],
    passes: int = 1,
    pinned: Sequence[int] = (),
) -> RingSchedule:
    """Return the schedule of one compute stream and one copy stream.

    The sections hold the first layers at the start. A running counter over all passes chooses the section.

    Args:
        sections: of device memory (K), those of pinned layers included.
        compute_seconds, load_seconds: one time for all layers, or (layers).
        pinned: layers that stay on the device.

    Raises:
        ValueError: there is no layer, section or pass, times are wrong, or pinned layers leave no section.
    """
    _check_ring(layers, sections)
    check_at_least("passes", passes)
    compute = _times_by_layer("compute_seconds", compute_seconds, layers)
    load = _times_by_layer("load_seconds", load_seconds, layers)
    resident = set(range(layers)) if sections >= layers else _check_pinned(pinned, layers, sections)
    ring = sections - len(resident) if sections < layers else 0
    starts, ends, load_starts, load_ends = ([0.0] * (layers * passes) for _ in range(4))
    in_ring: list[int] = []
    last_compute = last_load = 0.0
    for step in range(layers * passes):
        layer = step % layers
        if layer not in resident:
            if len(in_ring) >= ring:
                load_starts[step] = max(ends[in_ring[-ring]], last_load)
                load_ends[step] = last_load = load_starts[step] + load[layer]
            in_ring.append(step)
        starts[step] = max(last_compute, load_ends[step])
        ends[step] = last_compute = starts[step] + compute[layer]
    loads = max(0, len(in_ring) - ring)
    return RingSchedule(layers, loads, tuple(load_starts), tuple(load_ends), tuple(starts), tuple(ends))


def first_pass_seconds(layers: int, sections: int, compute_seconds: float, load_seconds: float) -> float:
    """Return the time of a single pass without pinned layers, in closed form."""
    _check_ring(layers, sections)
    _check_times(compute_seconds, load_seconds)
    if sections >= layers:
        return layers * compute_seconds
    if sections == 1:
        return compute_seconds + (layers - 1) * (load_seconds + compute_seconds)
    if load_seconds <= compute_seconds:
        return layers * compute_seconds
    return max(layers * compute_seconds, 2 * compute_seconds + (layers - sections) * load_seconds)


def steady_seconds(layers: int, sections: int, compute_seconds: float, load_seconds: float) -> float:
    """Return the time of a pass in steady state without pinned layers. More than two sections do not lower
    it."""
    _check_ring(layers, sections)
    _check_times(compute_seconds, load_seconds)
    if sections >= layers:
        return layers * compute_seconds
    if sections == 1:
        return layers * (compute_seconds + load_seconds)
    return layers * max(compute_seconds, load_seconds)


def without_overlap_seconds(layers: int, sections: int, compute_seconds: float, load_seconds: float) -> float:
    """Return the time of a single pass in which computation waits for each copy."""
    _check_ring(layers, sections)
    _check_times(compute_seconds, load_seconds)
    return layers * compute_seconds + max(0, layers - sections) * load_seconds


def fewest_sections(layers: int, compute_seconds: float, load_seconds: float) -> int:
    """Return the fewest sections with which a single pass never waits for a copy (K_min)."""
    check_at_least("layers", layers)
    _check_times(compute_seconds, load_seconds)
    if load_seconds <= compute_seconds:
        return min(layers, RING_SECTIONS)
    # Rounded, since a quotient may miss a whole number by its rounding error.
    needed = ceil(round(layers - (layers - 2) * compute_seconds / load_seconds, 9))
    return min(layers, max(RING_SECTIONS, needed))


def spread_layers(layers: int, sections: int) -> tuple[int, ...]:
    """Return the layers to pin, evenly spread: all sections but two hold one each. Copies of other layers run
    while pinned layers compute. Empty if all layers fit, or if there are two sections at most."""
    _check_ring(layers, sections)
    count = sections - RING_SECTIONS
    if sections >= layers or count <= 0:
        return ()
    return tuple((2 * index + 1) * layers // (2 * count) for index in range(count))


def period_seconds(
    layers: int,
    sections: int,
    compute_seconds: float | Sequence[float],
    load_seconds: float | Sequence[float],
    pinned: Sequence[int] = (),
    warm_up_passes: int = 8,
) -> float:
    """Return the mean time of a pass after `warm_up_passes` others, by the schedule."""
    ends = schedule_ring(
        layers, sections, compute_seconds, load_seconds, 2 * warm_up_passes, pinned
    ).pass_ends
    return float(ends[-1] - ends[warm_up_passes - 1]) / warm_up_passes


@dataclass(frozen=True, slots=True)
class RingMemory:
    """Device memory of a ring on one GPU.

    Attributes:
        layer_bytes: experts of one layer.
        dense_bytes: all other parameters.
        activation_bytes: activations.

    Raises:
        ValueError: there is no layer or section, or bytes are negative.
    """

    layers: int
    sections: int
    layer_bytes: float
    dense_bytes: float = 0.0
    activation_bytes: float = 0.0

    def __post_init__(self) -> None:
        _check_ring(self.layers, self.sections)
        for name in ("layer_bytes", "dense_bytes", "activation_bytes"):
            check_not_negative(name, getattr(self, name))

    @property
    def resident_bytes(self) -> float:
        """Memory if all layers are on the device."""
        return self.dense_bytes + self.layers * self.layer_bytes + self.activation_bytes

    @property
    def bytes(self) -> float:
        """Memory with the ring."""
        held = min(self.layers, self.sections)
        return self.dense_bytes + held * self.layer_bytes + self.activation_bytes

    @property
    def saving(self) -> float:
        """Share of memory that the ring saves."""
        return 1.0 - self.bytes / self.resident_bytes if self.resident_bytes else 0.0


def most_sections(layers: int, layer_bytes: float, other_bytes: float, device_bytes: float) -> int | None:
    """Return the most sections that fit beside `other_bytes`; None if not even two do."""
    check_at_least("layers", layers)
    check_positive("layer_bytes", layer_bytes)
    check_not_negative("other_bytes", other_bytes)
    check_not_negative("device_bytes", device_bytes)
    sections = min(layers, int((device_bytes - other_bytes) // layer_bytes))
    return sections if sections >= min(RING_SECTIONS, layers) else None


def _check_ring(layers: int, sections: int) -> None:
    check_at_least("layers", layers)
    check_at_least("sections", sections)


def _check_times(compute_seconds: float, load_seconds: float) -> None:
    check_not_negative("compute_seconds", compute_seconds)
    check_not_negative("load_seconds", load_seconds)


def _times_by_layer(name: str, seconds: float | Sequence[float], layers: int) -> Sequence[float]:
    times = seconds if isinstance(seconds, Sequence) else [seconds] * layers
    if len(times) != layers:
        raise ValueError(f"{name} has {len(times)} times; it must be one time, or one for each layer")
    if not all(isfinite(time) and time >= 0.0 for time in times):
        raise ValueError(f"{name} must be finite and at least 0")
    return times


def _check_pinned(pinned: Sequence[int], layers: int, sections: int) -> set[int]:
    resident = set(pinned)
    if len(resident) != len(pinned) or any(not 0 <= layer < layers for layer in resident):
        raise ValueError(f"pinned is {tuple(pinned)}; it must be different layers from 0 to {layers - 1}")
    if len(resident) >= sections:
        raise ValueError(f"pinned has {len(resident)} layers; with {sections} sections fewer can be pinned")
    return resident
