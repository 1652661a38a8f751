"""Synchronises gradients that are mostly zeros, such as those of embedding tables, by Zen's plan.

The exchanges are in `communication/hooks/zen/`. DDP ignores these parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from communication.espresso.options import Level
from communication.hooks.groups import LevelStep, PlacementGroups
from communication.hooks.measures import CommunicationMeasures
from communication.hooks.zen.gradients import SparseGradients
from communication.hooks.zen.orders import zen_orders_from_message
from punctual.protocol.limits import PLAN_REFUSED
from workers.runtime import own_groups
from workers.runtime.failures import WorkerFailureError
from workers.runtime.function.parts import TrainingParts
from workers.runtime.synchronisation.interface import GradientSynchroniser
from workers.runtime.synchronisation.sparse import first_ones_values, tables_of_rows

_STEPS: tuple[LevelStep, ...] = (
    (Level.FLAT, False), (Level.INTER, False), (Level.INTRA, False), (Level.INTRA, True),
)  # fmt: skip


class ZenSynchroniser(GradientSynchroniser):
    """Takes the tensors of its plan; averages them after the backward pass.

    Choices: `plan`, the message of Zen's plan.
    """

    def __init__(self, choices: Mapping[str, Any]) -> None:
        self._orders = zen_orders_from_message(choices["plan"])
        self._parameters: list[nn.Parameter] = []
        self._rows: frozenset[str] = frozenset()
        self._group: dist.ProcessGroup | None = None
        self._groups: PlacementGroups | None = None
        self._gradients: SparseGradients | None = None

    @property
    def gradients(self) -> SparseGradients:
        """The synchronised gradients; valid after `wrap`."""
        assert self._gradients is not None
        return self._gradients

    def takes(self, parts: TrainingParts, left: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return the plan's parameters.

        Raises:
            WorkerFailureError: the model lacks one of them.
        """
        names = [each.name for each in self._orders.tensors]
        lacking = sorted(set(names) - set(left))
        if lacking:
            raise _refused(f"the model has no gradient {lacking[0]!r}")
        tables = tables_of_rows(parts.module)
        self._rows = frozenset(name for name in names if id(left[name]) in tables)
        return {name: left[name] for name in names}

    def wrap(
        self,
        parts: TrainingParts,
        group: dist.ProcessGroup | None,
        parameters: Mapping[str, nn.Parameter],
    ) -> None:
        """Open the plan's groups; wrap nothing.

        Raises:
            WorkerFailureError: the plan is not for these gradients or ranks.
        """
        self._parameters, self._group = list(parameters.values()), group
        try:
            self._groups = PlacementGroups.open(self._orders.placement, group, _STEPS)
            own_groups.own(*self._groups.by_step.values())
            self._gradients = SparseGradients(
                parameters,
                self._orders,
                self._groups,
                sparse=self._rows,
            )
        except ValueError as error:
            raise _refused(str(error)) from error

    def begin_alike(self) -> None:
        """Give every rank the group's first rank's values."""
        first_ones_values(self._parameters, self._group)

    def after_backward(self) -> None:
        """Replace each gradient by the mean over ranks."""
        self.gradients.after_backward()

    def measured(self) -> CommunicationMeasures:
        """Return seconds, bytes, densities and imbalance since the last call."""
        return self.gradients.measures.told()

    def state(self) -> dict[str, Tensor]:
        """Return {}: this kind has no state."""
        return {}

    def load_state(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Do nothing: this kind has no state."""

    def close(self) -> None:
        """Destroy its groups."""
        if self._groups is not None:
            own_groups.disown(*self._groups.by_step.values())
            self._groups.close()


def _refused(problem: str) -> WorkerFailureError:
    return WorkerFailureError(PLAN_REFUSED, f"Zen's plan cannot be followed: {problem}")
