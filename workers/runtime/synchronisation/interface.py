"""What a kind of gradient synchroniser does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
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
        """Take what the runtime plan chose. Raises KeyError and ValueError where it makes no sense."""

    @abstractmethod
    def takes(self, parts: TrainingParts, left: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Which trained parameters it takes charge of, by name, of those that nobody else has taken."""

    @abstractmethod
    def wrap(
        self,
        parts: TrainingParts,
        group: dist.ProcessGroup | None,
        parameters: Mapping[str, nn.Parameter],
    ) -> DistributedModel | None:
        """Begin to look after `parameters`, whose values the ranks need not have alike yet; all ranks of the
        group call this together.

        Returns:
            What lends the module to `train()`; None where this kind wraps nothing.
        """

    @property
    def lossless(self) -> bool:
        """Whether gradients arrive as they were computed, up to the order in which sums are rounded. Known
        after `wrap`."""
        return True

    @abstractmethod
    def begin_alike(self) -> None:
        """Give every rank the group's first rank's values. All ranks call this together where they begin from
        nothing; where they load a state, it makes them alike."""

    def begin_iteration(self, iteration: int) -> None:  # noqa: B027 - most kinds do nothing between iterations
        """Do what is due before an iteration. All ranks call this together."""

    @abstractmethod
    def after_backward(self) -> None:
        """The backward pass is over: when this returns, the gradients are the mean over the ranks."""

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Let the group's first rank run the whole model alone. All ranks call this together."""
        yield

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Let this rank run the model alone, where nothing but time and memory counts."""
        yield

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Let a state be put into a model that trains already, as into one that has just been built."""
        yield

    def measured(self) -> CommunicationMeasures | None:
        """What this rank has measured since it was asked last; None of a kind that follows no plan."""
        return None

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """What this rank keeps from one iteration to the next, such as residuals, by names of its own; empty
        where it keeps nothing."""

    @abstractmethod
    def load_state(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Take what ranks of an earlier generation kept, each of which is given to one rank. All ranks call
        this together.

        Args:
            states: on the CPU, of those ranks that are given to this one: of several where there are fewer
                ranks now, of none where there are more. A residual adds them up, so its sum over all ranks
                stays.
        """

    def close(self) -> None:  # noqa: B027 - most kinds have nothing to give back
        """The model is not trained any more: let go of its gradients, and of groups and threads. All ranks
        call this together."""
