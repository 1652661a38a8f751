"""Synchronises dense gradients by DDP's all-reduces, which overlap with the backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from workers.runtime.failures import blaming_the_function
from workers.runtime.function.parts import TrainingParts
from workers.runtime.synchronisation.interface import GradientSynchroniser
from workers.runtime.synchronisation.model import DistributedModel
from workers.runtime.synchronisation.words import in_our_words


class DenseSynchroniser(GradientSynchroniser):
    """Takes all parameters that are left; averages during the backward pass.

    Choices: `gradients_in_buckets`, whether gradients are views of the buckets that are sent.
    """

    def __init__(self, choices: Mapping[str, Any], *, bucket_mebibytes: float | None = None) -> None:
        """Read the choices.

        Args:
            bucket_mebibytes: size of the buckets in which gradients are sent; None: DDP's default.
        """
        self._bucket_mebibytes = bucket_mebibytes
        self._gradients_in_buckets = bool(choices["gradients_in_buckets"])
        self._model: DistributedModel | None = None

    def takes(self, parts: TrainingParts, left: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return all parameters that are left."""
        return dict(left)

    def wrap(
        self,
        parts: TrainingParts,
        group: dist.ProcessGroup | None,
        parameters: Mapping[str, nn.Parameter],
    ) -> DistributedModel:
        """Return the model under DDP, still with each rank's own values.

        Raises:
            WorkerFailureError: DDP cannot train this model.
        """
        mine = {id(parameter) for parameter in parameters.values()}
        # Include duplicate names: DDP checks every name.
        others = [
            name
            for name, parameter in parts.module.named_parameters(remove_duplicate=False)
            if parameter.requires_grad and id(parameter) not in mine
        ]
        DistributedModel._set_params_and_buffers_to_ignore_for_model(parts.module, others)
        with blaming_the_function("the model"), in_our_words():
            self._model = DistributedModel(
                parts.module,
                device_ids=[parts.device.index] if parts.device.type == "cuda" else None,
                process_group=group,
                bucket_cap_mb=self._bucket_mebibytes,
                gradient_as_bucket_view=self._gradients_in_buckets,
                # It would send the whole model, which a loaded state overwrites.
                init_sync=False,
            )
        return self._model

    def begin_alike(self) -> None:
        """Give every rank the first one's parameters and buffers.

        Raises:
            WorkerFailureError: their shapes differ between ranks.
        """
        assert self._model is not None
        with blaming_the_function("the model"), in_our_words():
            self._model.begin_alike()

    def after_backward(self) -> None:
        """Do nothing: DDP waits for its all-reduces at the end of the backward pass."""

    def state(self) -> dict[str, Tensor]:
        """Return {}: this kind has no state."""
        return {}

    def load_state(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Do nothing: this kind has no state."""
