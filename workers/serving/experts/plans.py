"""Expert placement in serving: plans where each layer's experts are computed, the same on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moe.lina.dispatch import dispatch
from moe.lina.expert_paths import PATH_LENGTH, Counts, PathProfile, profile_paths
from moe.lina.popularity import Estimate, Popularity, estimate_popularity
from moe.lina.two_phases import (
    FirstPhase,
    PlacementRules,
    SecondPhase,
    plan_first_phase,
    plan_second_phase,
)
from punctual.moe.expert_paths import ExpertPaths


@dataclass(frozen=True)
class LayerPlan:
    """The plan of one pass of a layer.

    Attributes:
        flows: (sources, devices, experts): rows that each rank sends to each.
    """

    first: FirstPhase
    second: SecondPhase
    flows: Counts


class ExpertPlanner:
    """Plans the passes of one model. Layers count from 0 in the order in which a token passes them."""

    def __init__(
        self,
        experts: Sequence[int],
        devices: int,
        profile: PathProfile | None,
        *,
        experts_per_token: int = 1,
        estimate: Estimate = Estimate.NORM,
    ) -> None:
        """Take the model's layers.

        Args:
            experts: experts of each layer.
            profile: paths in training; None: even placement everywhere.
            experts_per_token: k of the gate.
        """
        self.experts = tuple(experts)
        self.rules = PlacementRules(devices, experts_per_token)
        self._profile, self._estimate = profile, estimate
        self._first: dict[int, FirstPhase] = {}

    def estimate(self, layer: int, choices: Mapping[int, Counts]) -> Popularity | None:
        """Return the estimate of this rank's own tokens for a layer; None if there is none.

        Args:
            choices: by layer, the best expert of each token.
        """
        profile = self._profile
        if profile is None or not 0 < layer < len(self.experts) or not profile.can_estimate(layer):
            return None
        before = [choices.get(each) for each in range(layer - profile.path_length, layer)]
        known = [each for each in before if each is not None]
        if len(known) < len(before) or len({len(each) for each in known}) > 1:
            return None
        kept = min(self.rules.experts_per_token, self.experts[layer])
        return estimate_popularity(profile, layer, np.stack(known, axis=1), kept, self._estimate)

    def plan_ahead(self, layer: int, popularity: Popularity | None) -> FirstPhase:
        """Plan the first phase of a layer from the estimate for the tokens of all ranks."""
        first = plan_first_phase(self.rules, layer, self.experts[layer], popularity)
        self._first[layer] = first
        return first

    def plan(self, layer: int, counts: Counts) -> LayerPlan:
        """Plan a pass after its gate's choices.

        Args:
            counts: (ranks, experts): rows.
        """
        first = self._first.pop(layer, None) or plan_first_phase(self.rules, layer, self.experts[layer], None)
        second = plan_second_phase(self.rules, first, counts.sum(axis=0))
        return LayerPlan(first, second, dispatch(counts, second.placement, prefers_local=True))


def profile_of(paths: ExpertPaths | None, layers: Mapping[str, int]) -> PathProfile | None:
    """Return the profile of a job's paths; None with fewer than two layers.

    Args:
        layers: names and numbers of experts of the model's layers.

    Raises:
        ValueError: the paths are those of another model.
    """
    if paths is None:
        return None
    if dict(zip(paths.layers, paths.experts, strict=True)) != dict(layers):
        raise ValueError("its layers or their numbers of experts are not those of the model")
    if len(layers) < 2:
        return None
    choices: NDArray[np.int64] = paths.paths.numpy().astype(np.int64)
    return profile_paths(choices, paths.experts, min(PATH_LENGTH, len(layers) - 1))
