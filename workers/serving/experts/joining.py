"""Joins a serving worker to its group, by its assignment."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn

from moe.lina.expert_paths import PathProfile
from punctual.moe import MoELayer, moe_layers
from punctual.moe.expert_paths import FILE_NAME, ExpertPaths, read_expert_paths
from punctual.moe.gates import TopK
from workers.runtime.failures import WorkerFailureError
from workers.serving.assignment import GroupPlace, ServingAssignment
from workers.serving.experts.group import ExpertGroup
from workers.serving.experts.meeting import meet
from workers.serving.experts.plans import ExpertPlanner, profile_of

_log = logging.getLogger(__name__)

#: Time-out of a collective beyond the maximum time of a call of `predict` on another rank.
_PATIENCE_SECONDS = 30.0

Predict = Callable[[list[Any]], Any]


class ServingGroup:
    """This replica's membership in the group of servers that spread the experts of its model."""

    def __init__(
        self,
        assignment: ServingAssignment,
        place: GroupPlace,
        module: nn.Module,
        device: torch.device,
        box: Path,
    ) -> None:
        """Join the group.

        Raises:
            WorkerFailureError: the model has no experts, or other servers do not join.
        """
        layers = moe_layers(module)
        if not layers:
            raise WorkerFailureError(
                "function_load_error",
                "its model has no punctual.moe.MoELayer, so there are no experts to spread; deploy it "
                "without experts=spread",
            )
        profile, order = self._read_profile(layers, box)
        layers = {name: layers[name] for name in order}
        patience = assignment.limits.predict_seconds + _PATIENCE_SECONDS
        self._place, self._wants_to_leave = place, False
        self._bell = meet(place, assignment.generation, device, assignment.address, patience)
        planner = ExpertPlanner(
            [len(layer.experts) for layer in layers.values()],
            place.size,
            profile,
            experts_per_token=max(_experts_per_token(layer) for layer in layers.values()),
        )
        self._group = ExpertGroup(layers, planner, device, self._bell)
        _log.info("experts of %d layers are spread over %d servers", len(layers), place.size)

    def together(self, predict: Predict) -> Predict:
        """Return `predict` with its experts computed by all servers of the group."""

        @wraps(predict)
        def predicted(batch: list[Any]) -> Any:
            with self._group.batch():
                return predict(batch)

        return predicted

    def check(self) -> None:
        """Return if the group is complete. Raise WorkerFailureError otherwise."""
        if self._group.failure:
            raise WorkerFailureError("peer_lost", self._group.failure)

    def report(self) -> dict[str, Any] | None:
        """Return the counts of experts on rank 0: all ranks have the same."""
        return None if self._place.rank else self._group.counts.report()

    def may_leave(self) -> bool:
        """Return whether all servers of the group want to end, this one included; it takes part until then.

        If the store is gone, another server has already got this answer and ended.
        """
        try:
            left = self._bell.want_to_leave(0 if self._wants_to_leave else 1)
        except RuntimeError:
            return True
        self._wants_to_leave = True
        return left >= self._place.size

    def close(self) -> None:
        """Leave the group. Further calls of `predict` fail."""
        self._group.close()

    @staticmethod
    def _read_profile(layers: dict[str, MoELayer], box: Path) -> tuple[PathProfile | None, list[str]]:
        """Return the profile of the job's paths, and the layers in their order.

        Without usable paths experts are placed evenly, which is logged.
        """
        path = box / "in" / FILE_NAME
        sizes = {name: len(layer.experts) for name, layer in layers.items()}
        try:
            paths: ExpertPaths | None = read_expert_paths(path) if path.exists() else None
            profile = profile_of(paths, sizes)
        except (OSError, ValueError) as error:
            _log.warning("experts have their even places, as the job's paths cannot be used: %s", error)
            return None, list(layers)
        if profile is None or paths is None:
            _log.info("experts have their even places, as no paths of training are known")
            return None, list(layers)
        return profile, list(paths.layers)


def _experts_per_token(layer: MoELayer) -> int:
    gate = layer.evaluation_gate
    return min(gate.k if isinstance(gate, TopK) else 2, len(layer.experts))
