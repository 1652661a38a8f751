"""Synchronises gradients by a communication plan: in groups, each encoded and sent by an option.

`communication/hooks/` exchanges the groups. DDP synchronises only the buffers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from communication.hooks.codecs.names import codec_named
from communication.hooks.feedback import ErrorFeedback
from communication.hooks.fusion import FusedGradients
from communication.hooks.groups import PlacementGroups, steps_of
from communication.hooks.measures import CommunicationMeasures
from communication.hooks.plan_messages import orders_of
from punctual.protocol.limits import PLAN_REFUSED
from workers.runtime import own_groups
from workers.runtime.failures import WorkerFailureError
from workers.runtime.function.parts import TrainingParts
from workers.runtime.synchronisation.dense import DenseSynchroniser
from workers.runtime.synchronisation.interface import GradientSynchroniser
from workers.runtime.synchronisation.model import DistributedModel


class CompressedSynchroniser(GradientSynchroniser):
    """Takes the gradients that its plan was made for; averages them during and after the backward pass.

    Choices: `plan`, the message of a fusion plan, an Espresso plan, or one that combines them; `gradients`,
    the names of its gradients in order of readiness; `momentum`, which DGC applies in the optimizer's place,
    0 for none.
    """

    def __init__(self, choices: Mapping[str, Any]) -> None:
        self._message, names = choices["plan"], choices["gradients"]
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise ValueError("the gradients of a plan are a list of names")
        self._names: list[str] = list(names)
        self._momentum = float(choices["momentum"])
        # Gradients are views of DDP's buckets, which are not sent.
        self._dense = DenseSynchroniser({"gradients_in_buckets": True})
        self._model: DistributedModel | None = None
        self._fused: FusedGradients | None = None
        self._groups: PlacementGroups | None = None
        self._lossless = False

    def takes(self, parts: TrainingParts, left: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return the plan's parameters, in their order, and parameters without elements.

        Raises:
            WorkerFailureError: the model's gradients differ from the plan's.
        """
        travelling = {name for name, each in left.items() if each.numel()}
        if set(self._names) != travelling:
            odd = min(set(self._names) ^ travelling)
            raise _refused(f"it was not made for these gradients: {odd} is on one side alone")
        return {name: left[name] for name in [*self._names, *(left.keys() - travelling)]}

    def wrap(
        self,
        parts: TrainingParts,
        group: dist.ProcessGroup | None,
        parameters: Mapping[str, nn.Parameter],
    ) -> DistributedModel:
        """Return the model under a DDP that synchronises no gradient.

        Raises:
            WorkerFailureError: the plan is not for these gradients or ranks; DDP cannot train this model.
        """
        self._model = model = self._dense.wrap(parts, group, parameters)
        model.register_comm_hook(None, lambda _state, bucket: _done(bucket.buffer()))
        parameters = {name: parameters[name] for name in self._names}
        try:
            orders = orders_of(
                self._message, list(parameters), [each.numel() for each in parameters.values()]
            )
            codec = codec_named(orders.codec)
            self._lossless = codec.exact or not orders.compresses
            steps = steps_of(orders.options, orders.placement)
            self._groups = PlacementGroups.open(orders.placement, group, steps)
            own_groups.own(*self._groups.by_step.values())
            self._fused = FusedGradients(
                parameters,
                orders.boundaries,
                orders.options,
                ErrorFeedback(codec, self._momentum),
                self._groups,
                plan_digest=orders.digest,
                active=lambda: model.averages,
            )
        except ValueError as error:
            raise _refused(str(error)) from error
        return model

    @property
    def lossless(self) -> bool:
        """Whether nothing is encoded, or only by exact codecs."""
        return self._lossless

    def begin_alike(self) -> None:
        """Give every rank the first one's parameters and buffers."""
        self._dense.begin_alike()

    def after_backward(self) -> None:
        """Wait for the groups in flight and store their results."""
        assert self._fused is not None
        assert self._model is not None
        self._fused.after_backward(late=self._model.is_late)

    def take_back(self, parameters: Collection[nn.Parameter]) -> None:
        """Keep what was sent of these parameters for their next gradients."""
        assert self._fused is not None
        self._fused.take_back(parameters)

    def measured(self) -> CommunicationMeasures:
        """Return seconds, bytes and residuals of the groups."""
        assert self._fused is not None
        return self._fused.measured()

    def state(self) -> dict[str, Tensor]:
        """Return the error-feedback state of this rank."""
        assert self._fused is not None
        return self._fused.state()

    def load_state(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Load error-feedback states: unchanged if every rank has its own again, else with the same sum."""
        assert self._fused is not None
        self._fused.load_state(states)

    def close(self) -> None:
        """Remove the hooks; destroy the groups."""
        if self._fused is not None:
            self._fused.close()
        if self._groups is not None:
            own_groups.disown(*self._groups.by_step.values())
            self._groups.close()


def _done(buffer: Tensor) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(buffer)
    return future


def _refused(problem: str) -> WorkerFailureError:
    return WorkerFailureError(PLAN_REFUSED, f"the communication plan cannot be followed: {problem}")
