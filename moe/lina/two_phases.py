"""The two phases of Lina's placement in inference (Lina 6.2; step I5).

The first phase places the experts of a layer by their estimated popularity, before the layer's gate has run.
The second phase compares the estimate with the gate's choices, and places again if it was wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from moe.lina.expert_paths import Counts, Probabilities
from moe.lina.expert_placement import ReplicaPlacement, even_placement, place_experts
from moe.lina.popularity import Popularity, most_popular


class Match(StrEnum):
    """How the 2k most popular experts by estimate and by choice must agree: in order, or as a set."""

    ORDERED = "ordered"
    SET = "set"


@dataclass(frozen=True)
class PlacementRules:
    """How the experts of a model are placed.

    Attributes:
        devices: number of devices.
        experts_per_token: k; lists of 2k experts are compared.
        most_on_device: as in `place_experts`.
        seed: seed of the random devices; each layer has its own.
    """

    devices: int
    experts_per_token: int = 1
    match: Match = Match.ORDERED
    most_on_device: int | None = None
    seed: int = 0

    def place(self, layer: int, demands: Probabilities) -> ReplicaPlacement:
        """Return the placement of a layer for the devices that each expert needs."""
        seed = int(np.random.SeedSequence([self.seed, layer]).generate_state(1)[0])
        return place_experts(demands, self.devices, most_on_device=self.most_on_device, seed=seed)


@dataclass(frozen=True)
class FirstPhase:
    """The plan of a layer before its gate ran.

    Attributes:
        popularity: the estimate; None if there was none, so the placement is even and stays.
    """

    layer: int
    placement: ReplicaPlacement
    popularity: Popularity | None = None


@dataclass(frozen=True)
class Comparison:
    """Whether the most popular experts by estimate are those by choice."""

    is_same_order: bool
    is_same_set: bool


@dataclass(frozen=True)
class SecondPhase:
    """The placement with which a layer runs.

    Attributes:
        comparison: None if the layer had no estimate.
        is_replaced: whether the experts were placed again. If not, the layer resumes with the first phase's
            placement.
    """

    placement: ReplicaPlacement
    comparison: Comparison | None = None
    is_replaced: bool = False


def plan_first_phase(
    rules: PlacementRules, layer: int, experts: int, popularity: Popularity | None
) -> FirstPhase:
    """Place the experts of a layer by the estimate for the tokens of all devices.

    Args:
        experts: experts of the layer.
        popularity: None without estimate, as in the first l layers; then the placement is even.
    """
    if popularity is None or not popularity.tokens:
        return FirstPhase(layer, even_placement(experts, rules.devices))
    return FirstPhase(layer, rules.place(layer, popularity.demands(rules.devices)), popularity)


def plan_second_phase(rules: PlacementRules, first: FirstPhase, counts: Counts) -> SecondPhase:
    """Resume with the first phase's placement if its estimate was right; else place by the gate's choices.

    Args:
        counts: (experts): tokens of all devices by expert.

    Raises:
        ValueError: `counts` has another shape or negative numbers.
    """
    counts = np.asarray(counts, dtype=np.int64)
    if counts.shape != (first.placement.experts,) or (counts < 0).any():
        raise ValueError(f"counts are {counts}; there must be {first.placement.experts} of at least 0")
    if first.popularity is None:
        return SecondPhase(first.placement)
    length = 2 * rules.experts_per_token
    estimated, chosen = most_popular(first.popularity.expected, length), most_popular(counts, length)
    comparison = Comparison(estimated == chosen, set(estimated) == set(chosen))
    is_right = comparison.is_same_order if rules.match is Match.ORDERED else comparison.is_same_set
    if is_right or not counts.any():
        return SecondPhase(first.placement, comparison)
    placement = rules.place(first.layer, demands_of(counts, rules.devices))
    return SecondPhase(placement, comparison, is_replaced=True)


def demands_of(counts: Counts, devices: int) -> Probabilities:
    """Return how many devices each expert needs for its tokens."""
    return np.asarray(devices * counts / max(1, counts.sum()))
