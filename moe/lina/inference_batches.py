"""SIM-I: batches through a mixture of experts in inference, layer by layer, under each placement.

A layer waits for its fullest device, in the experts and in the all-to-all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from moe.lina.dispatch import imbalance, quotas
from moe.lina.expert_paths import Counts, PathProfile
from moe.lina.expert_placement import ReplicaPlacement, even_placement
from moe.lina.popularity import Estimate, Popularity, estimate_popularity
from moe.lina.two_phases import (
    Comparison,
    PlacementRules,
    demands_of,
    plan_first_phase,
    plan_second_phase,
)


class Serving(StrEnum):
    """How experts are placed.

    EVEN: expert e on device e. LINA: both phases. WITHOUT_ESTIMATION: by the gate's choices at every layer,
    while its tokens wait. WITHOUT_FINE_TUNING: the first phase alone.
    """

    EVEN = "even"
    LINA = "lina"
    WITHOUT_ESTIMATION = "without_estimation"
    WITHOUT_FINE_TUNING = "without_fine_tuning"


@dataclass(frozen=True)
class LayerTimes:
    """Times of one layer in ms, for twelve layers and 16 experts (CAL-2).

    Derived from published overheads, ratios and shares of the all-to-all; none is published.

    Attributes:
        rest: everything but experts and all-to-all.
        experts: experts, with tokens spread evenly.
        all_to_all: both all-to-alls, with tokens spread evenly.
        resume: second phase that keeps the placement (published).
        schedule: placement while tokens wait (published).
    """

    rest: float = 8.3
    experts: float = 3.7
    all_to_all: float = 3.4
    resume: float = 1.45
    schedule: float = 6.2

    def layer(self, imbalance_factor: float) -> float:
        """Return the time of a layer whose fullest device has `imbalance_factor` times the mean of tokens."""
        return self.rest + (self.experts + self.all_to_all) * imbalance_factor


@dataclass(frozen=True)
class ServedLayer:
    """One layer of one batch.

    Attributes:
        time: in the unit of `LayerTimes`.
        imbalance: tokens of the fullest device relative to the mean.
        first_imbalance: the same under the first phase's placement; None if the layer had no estimate.
        comparison: None if the layer had no estimate.
        is_replaced: whether the second phase placed the experts again.
    """

    time: float
    imbalance: float
    first_imbalance: float | None = None
    comparison: Comparison | None = None
    is_replaced: bool = False


@dataclass(frozen=True)
class ServedBatches:
    """All layers of all batches.

    Attributes:
        batches: layers of each batch.
        ideal_time: time of a batch whose tokens are spread evenly.
    """

    batches: Sequence[Sequence[ServedLayer]]
    ideal_time: float

    def relative_times(self) -> list[float]:
        """Return the times of the batches relative to the ideal one."""
        return [sum(layer.time for layer in batch) / self.ideal_time for batch in self.batches]

    def percentile(self, percent: float) -> float:
        """Return a percentile of the relative times."""
        return float(np.percentile(self.relative_times(), percent))

    @property
    def imbalance(self) -> float:
        """Mean imbalance of all layers."""
        return _mean([layer.imbalance for layer in self._layers()])

    @property
    def first_imbalance(self) -> float:
        """Mean imbalance under first phases' placements, over layers with an estimate; NaN without."""
        layers = self._layers()
        return _mean([layer.first_imbalance for layer in layers if layer.first_imbalance is not None])

    @property
    def set_accuracy(self) -> float:
        """Share of the layers with an estimate whose most popular experts it named; NaN without."""
        return _mean([one.is_same_set for one in self._comparisons()])

    @property
    def order_accuracy(self) -> float:
        """Share of the layers with an estimate whose most popular experts it named in order; NaN without."""
        return _mean([one.is_same_order for one in self._comparisons()])

    @property
    def replaced_share(self) -> float:
        """Share of all layers, including those without estimate, whose experts were placed again."""
        return _mean([layer.is_replaced for layer in self._layers()])

    def _layers(self) -> list[ServedLayer]:
        return [layer for batch in self.batches for layer in batch]

    def _comparisons(self) -> list[Comparison]:
        return [layer.comparison for layer in self._layers() if layer.comparison is not None]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def serve(
    serving: Serving,
    batches: Sequence[Counts],
    rules: PlacementRules,
    profile: PathProfile,
    *,
    estimate: Estimate = Estimate.NORM,
    times: LayerTimes | None = None,
) -> ServedBatches:
    """Serve batches of tokens whose experts at each layer are known.

    Args:
        batches: experts of each batch, as (tokens, layers).
        profile: of paths; its layers and experts are those of the batches.

    Raises:
        ValueError: there is no batch, or a batch does not fit the profile.
    """
    if not batches:
        raise ValueError("batches are empty; there must be at least 1")
    layers = _Layers(serving, rules, profile, estimate, times or LayerTimes())
    numbers = range(len(profile.experts))
    served = [[layers.serve(batch, layer) for layer in numbers] for batch in batches]
    return ServedBatches(served, len(numbers) * layers.times.layer(1.0))


@dataclass(frozen=True)
class _Layers:
    serving: Serving
    rules: PlacementRules
    profile: PathProfile
    estimate: Estimate
    times: LayerTimes

    def serve(self, batch: Counts, layer: int) -> ServedLayer:
        experts, devices = self.profile.experts[layer], self.rules.devices
        counts = np.bincount(batch[:, layer], minlength=experts)
        if self.serving is Serving.EVEN:
            found = placement_imbalance(even_placement(experts, devices), counts)
            return ServedLayer(self.times.layer(found), found)
        if self.serving is Serving.WITHOUT_ESTIMATION:
            found = placement_imbalance(self.rules.place(layer, demands_of(counts, devices)), counts)
            return ServedLayer(self.times.layer(found) + self.times.schedule, found)
        first = plan_first_phase(self.rules, layer, experts, self._popularity(batch, layer))
        second = plan_second_phase(self.rules, first, counts)
        estimated = placement_imbalance(first.placement, counts)
        if second.comparison is None:
            return ServedLayer(self.times.layer(estimated), estimated)
        if self.serving is Serving.WITHOUT_FINE_TUNING:
            return ServedLayer(self.times.layer(estimated), estimated, estimated, second.comparison)
        found = placement_imbalance(second.placement, counts)
        overhead = self.times.schedule if second.is_replaced else self.times.resume
        time = self.times.layer(found) + overhead
        return ServedLayer(time, found, estimated, second.comparison, second.is_replaced)

    def _popularity(self, batch: Counts, layer: int) -> Popularity | None:
        if not self.profile.can_estimate(layer):
            return None
        paths = batch[:, layer - self.profile.path_length : layer]
        return estimate_popularity(self.profile, layer, paths, self.rules.experts_per_token, self.estimate)


def placement_imbalance(placement: ReplicaPlacement, counts: Counts) -> float:
    """Return the tokens of the fullest device relative to the mean, if hosts divide them by quotas."""
    return imbalance(quotas(counts, placement).sum(axis=1))
