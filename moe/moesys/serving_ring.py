"""The ring of a model that serves: layers on the device, and whether a call meets its latency.

The worker plans with what it measures, and the control plane judges a target with what the worker reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moe.moesys.checks import check_not_negative, check_positive
from moe.moesys.ring import RING_SECTIONS, most_sections, period_seconds, spread_layers

#: Usable share of a GPU's memory. The rest is left to the computation.
USABLE_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class ServingRing:
    """Layers on the device and in the ring.

    Attributes:
        layers: that a pass computes.
        sections: of device memory; all but two hold layers that stay.
        section_bytes: the largest layer.
        other_bytes: everything that is not a part of a layer.
    """

    layers: int
    sections: int
    section_bytes: int
    other_bytes: int

    @property
    def pinned(self) -> tuple[int, ...]:
        """Layers that stay on the device, evenly spread."""
        if self.sections >= self.layers:
            return tuple(range(self.layers))
        return spread_layers(self.layers, self.sections)

    @property
    def device_bytes(self) -> int:
        """Device memory of the parameters."""
        return self.other_bytes + self.sections * self.section_bytes

    def with_sections(self, sections: int) -> ServingRing:
        """Return the same model with another number of sections."""
        return ServingRing(self.layers, sections, self.section_bytes, self.other_bytes)

    def pass_seconds(self, compute_seconds: float, load_seconds: float) -> float:
        """Return the time of a pass in steady state.

        Args:
            compute_seconds, load_seconds: of one layer.
        """
        return period_seconds(self.layers, self.sections, compute_seconds, load_seconds, self.pinned)


def plan_serving_ring(layer_bytes: Sequence[int], other_bytes: int, device_bytes: int) -> ServingRing | None:
    """Return the largest ring that fits; None if not even two layers fit, or there are two layers at most.

    Args:
        layer_bytes: of each layer.
        other_bytes: everything that is not a part of a layer.
        device_bytes: that parameters may take.
    """
    layers, section_bytes = len(layer_bytes), max(layer_bytes, default=0)
    if layers <= RING_SECTIONS or section_bytes == 0:
        return None
    # All layers fit without a ring.
    sections = most_sections(layers, section_bytes, other_bytes, device_bytes)
    if sections is None:
        return None
    return ServingRing(layers, min(sections, layers - 1), section_bytes, other_bytes)


@dataclass(frozen=True, slots=True)
class RingTimes:
    """Measurements of a ring.

    Attributes:
        load_seconds: copy of one layer to the device.
        compute_seconds: computation of one layer; 0 before the first call.
        passes: through all layers that a call of `predict` makes; 1 before the first call.
    """

    load_seconds: float
    compute_seconds: float = 0.0
    passes: float = 1.0

    def __post_init__(self) -> None:
        check_not_negative("load_seconds", self.load_seconds)
        check_not_negative("compute_seconds", self.compute_seconds)
        check_positive("passes", self.passes)


@dataclass(frozen=True, slots=True)
class RingVerdict:
    """Whether a call of `predict` meets a target.

    Attributes:
        seconds: predicted time of a call; without measured computation the least that it can be.
        reason: why it does not meet the target, and what would; empty if it does.
    """

    seconds: float
    reason: str

    @property
    def is_admitted(self) -> bool:
        return not self.reason


def judge_ring(ring: ServingRing, times: RingTimes, target_seconds: float | None) -> RingVerdict:
    """Predict the time of a call, and compare it with a target; None admits any time."""

    def predict(candidate: ServingRing) -> float:
        return times.passes * candidate.pass_seconds(times.compute_seconds, times.load_seconds)

    seconds = predict(ring)
    if target_seconds is None or seconds <= target_seconds:
        return RingVerdict(seconds, "")
    streamed = ring.layers - len(ring.pinned)
    measured = f"copying one takes {_ms(times.load_seconds)}"
    if times.compute_seconds:
        measured += f", computing one {_ms(times.compute_seconds)}"
    lower_bound = "" if times.compute_seconds else "at least "
    reason = (
        f"{streamed} of {ring.layers} layers stream from host memory; {measured}, so a call of predict takes "
        f"{lower_bound}{_ms(seconds)}; the latency target is {_ms(target_seconds)}. "
    )
    for sections in range(ring.sections + 1, ring.layers + 1):
        larger = ring.with_sections(sections)
        if predict(larger) <= target_seconds:
            needed = f"{larger.device_bytes} bytes of device memory would meet it"
            return RingVerdict(seconds, f"{reason}{needed}, or a target of {_ms(seconds)}.")
    return RingVerdict(
        seconds,
        f"{reason}Computation alone takes {_ms(predict(ring.with_sections(ring.layers)))}; more device "
        "memory would not meet it.",
    )


def _ms(seconds: float) -> str:
    milliseconds = 1000 * seconds
    return f"{milliseconds:.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"
