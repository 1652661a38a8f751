"""A group's counts of each layer's experts (`punctual.protocol.serving.ExpertCounts`)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moe.lina.dispatch import quotas
from moe.lina.expert_paths import Counts
from moe.lina.expert_placement import ReplicaPlacement, even_placement
from punctual.protocol.limits import SERVED_EXPERTS
from workers.serving.experts.held import HeldExperts
from workers.serving.experts.plans import LayerPlan


@dataclass
class _Layer:
    name: str
    rows: Counts
    expected: NDArray[np.float64]
    hosts: list[list[int]] = field(default_factory=list)
    passes: int = 0
    estimated: int = 0
    replaced: int = 0
    fullest_rows: int = 0
    fullest_rows_evenly: int = 0


class ExpertCounts:
    """Counts of all ranks since the group began, the same on every rank."""

    def __init__(self, layers: Mapping[str, int], devices: int, held: HeldExperts) -> None:
        """Begin to count.

        Args:
            layers: number of experts by the layer's name.
        """
        self._lock = threading.Lock()
        self._held = held
        self._even = [even_placement(experts, devices) for experts in layers.values()]
        self._layers = [
            _Layer(name, np.zeros(experts, dtype=np.int64), np.zeros(experts), _hosts(even))
            for (name, experts), even in zip(layers.items(), self._even, strict=True)
        ]

    def passed(self, number: int, plan: LayerPlan) -> None:
        """Count a pass of a layer."""
        layer, counts = self._layers[number], plan.flows.sum(axis=(0, 1))
        popularity, placement = plan.first.popularity, plan.second.placement
        with self._lock:
            layer.passes += 1
            layer.rows += counts
            layer.hosts = _hosts(placement)
            layer.fullest_rows += int(plan.flows.sum(axis=(0, 2)).max())
            layer.fullest_rows_evenly += int(quotas(counts, self._even[number]).sum(axis=1).max())
            if popularity is not None:
                layer.estimated += 1
                layer.replaced += plan.second.is_replaced
                # An estimate is of tokens; rows of tokens with two experts count twice.
                layer.expected += popularity.shares * counts.sum()

    def report(self) -> dict[str, Any]:
        """Return all counts, as the worker reports them; the first layers if there are too many experts."""
        reported, room = [], SERVED_EXPERTS
        with self._lock:
            for layer in self._layers:
                room -= len(layer.rows)
                if room < 0:
                    break
                reported.append(
                    {
                        **vars(layer),
                        "rows": layer.rows.tolist(),
                        "expected": np.round(layer.expected, 1).tolist(),
                    }
                )
        return {
            "layers": reported,
            "layers_left_out": len(self._layers) - len(reported),
            "swaps": self._held.swaps,
            "swap_seconds": self._held.swap_seconds,
            "waited_seconds": self._held.waited_seconds,
        }


def _hosts(placement: ReplicaPlacement) -> list[list[int]]:
    return [list(placement.hosts(expert)) for expert in range(placement.experts)]
