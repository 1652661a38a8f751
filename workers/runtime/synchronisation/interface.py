"""The interface of a kind of gradient synchroniser."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from communication.hooks.measures import CommunicationMeasures
from workers.runtime.function.parts import TrainingParts
from workers.runtime.synchronisation.model import DistributedModel


class GradientSynchroniser(ABC):
    """Brings some of a model's gradients to their mean over the ranks of a group.

    A new kind is a file with such a class and a line in `kinds.py`.

    Attributes:
        spreads_experts: whether it takes this rank's experts to the device.
    """

    spreads_experts = False

    @abstractmethod
    def __init__(self, choices: Mapping[str, Any]) -> None:
        """Read the runtime plan's choices. Raise KeyError or ValueError if they are invalid."""

    @abstractmethod
    def takes(self, parts: TrainingParts, left: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return, by name, the trained parameters that this kind synchronises.

        Args:
            left: the parameters that no earlier kind of the plan has taken.
        """

    @abstractmethod
    def wrap(
        self,
        parts: TrainingParts,
        group: dist.ProcessGroup | None,
        parameters: Mapping[str, nn.Parameter],
    ) -> DistributedModel | None:
        """Begin to synchronise `parameters`, whose values may still differ between ranks; all ranks of the
        group call this together.

        Returns:
            The wrapper that lends the module to `train()`; None if this kind wraps nothing.
        """

    @property
    def lossless(self) -> bool:
        """Whether gradients arrive as computed, up to the rounding order of sums. Valid after `wrap`."""
        return True

    @abstractmethod
    def begin_alike(self) -> None:
        """Give every rank the values of the group's first rank. All ranks call this together when they start
        without a state; a loaded state makes them equal without it."""

    def begin_iteration(self, iteration: int) -> None:  # noqa: B027 - most kinds do nothing here
        """Prepare an iteration. All ranks call this together."""

    @abstractmethod
    def after_backward(self) -> None:
        """Make the gradients the mean over the ranks, after the backward pass."""

    def take_back(self, parameters: Collection[nn.Parameter]) -> None:  # noqa: B027 - most kinds keep nothing
        """Keep what was sent of parameters that no rank used: their gradients are removed, not applied."""

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Let the group's first rank run the whole model alone. All ranks call this together."""
        yield

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Let this rank run the model alone, to measure only time and memory."""
        yield

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Let a state be loaded into a model that already trains, as into a newly built one."""
        yield

    def measured(self) -> CommunicationMeasures | None:
        """Return this rank's measurements since the last call; None for a kind without a plan."""
        return None

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return the tensors that this rank keeps between iterations, such as residuals, by own names; {} if
        none."""

    @abstractmethod
    def load_state(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Load states of ranks of an earlier generation. All ranks call this together.

        Args:
            states: on the CPU, the states assigned to this rank: each earlier rank's goes to one rank, so
                several if there are fewer ranks now, or none if there are more. Residuals are added up, so
                their sum over all ranks is preserved.
        """

    def close(self) -> None:  # noqa: B027 - most kinds hold no resources
        """Release hooks, groups and threads; training is over. All ranks call this together."""
