"""What a kind of gradient synchroniser does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import nn

from workers.runtime.parts import TrainingParts
from workers.runtime.synchronisation.model import DistributedModel


class GradientSynchroniser(ABC):
    """Brings some of a model's gradients to their mean over the ranks of a group.

    A new kind is a file with such a class and a line in `kinds.py`.
    """

    @abstractmethod
    def __init__(self, choices: Mapping[str, Any]) -> None:
        """Take what the runtime plan chose. Raises KeyError and ValueError where it makes no sense."""

    @abstractmethod
    def takes(self, module: nn.Module, left: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Which trained parameters it takes charge of, by name, of those that nobody else has taken."""

    @abstractmethod
    def wrap(
        self,
        parts: TrainingParts,
        group: dist.ProcessGroup | None,
        parameters: Mapping[str, nn.Parameter],
    ) -> DistributedModel | None:
        """Begin to look after `parameters`; all ranks of the group call this together.

        Returns:
            What `train()` calls in the model's place; None where this kind needs nothing there.
        """

    @abstractmethod
    def after_backward(self) -> None:
        """The backward pass is over: when this returns, the gradients are the mean over the ranks."""
