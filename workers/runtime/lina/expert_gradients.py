"""Gradients of experts with several hosts, summed over these by the scheduler (Lina 4.4).

All ranks process layers in one order: the model's, from its end. A layer whose gradients are ready early
waits for its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

#: Name, gradient and group of an all-reduce.
Reduce = Callable[[str, Tensor, "dist.ProcessGroup | None"], None]


@dataclass(frozen=True)
class SharedParameter:
    """A parameter of an expert of this rank that other ranks host too.

    Attributes:
        name: name in the model.
        key: name that is the same on all ranks, even if they host different experts in this place.
        group: the hosts.
    """

    name: str
    key: str
    parameter: nn.Parameter
    group: dist.ProcessGroup | None


class SharedGradients:
    """Submits the gradients of shared experts when they are ready and it is their turn."""

    def __init__(
        self,
        layers: Mapping[str, list[SharedParameter]],
        reduce: Reduce,
        is_active: Callable[[], bool],
    ) -> None:
        """Watch the parameters of layers.

        Args:
            layers: parameters by layer, in the order of the model, the same keys on all ranks.
            reduce: submits an all-reduce in place.
            is_active: whether the gradients of this backward pass are averaged while it runs.
        """
        self._layers = dict(reversed(list(layers.items())))
        self._reduce, self._is_active = reduce, is_active
        self._hooks: list[Any] = [
            shared.parameter.register_post_accumulate_grad_hook(partial(self._note, name))
            for name, parameters in self._layers.items()
            for shared in parameters
        ]
        self._begin()

    def _begin(self) -> None:
        self._lacking = {name: len(parameters) for name, parameters in self._layers.items()}
        self._turns = iter(self._layers)
        self._next = next(self._turns, None)

    def _note(self, layer: str, _parameter: Tensor) -> None:
        if not self._is_active():
            return
        self._lacking[layer] -= 1
        while self._next is not None and self._lacking[self._next] <= 0:
            self._submit(self._next)
            self._next = next(self._turns, None)

    def submit_rest(self) -> None:
        """Submit the remaining gradients after the backward pass."""
        while self._next is not None:
            self._submit(self._next)
            self._next = next(self._turns, None)
        self._begin()

    def _submit(self, layer: str) -> None:
        parameters = self._layers[layer]
        if all(shared.parameter.grad is None for shared in parameters):
            # The layer did not run on any rank.
            return
        for shared in parameters:
            if shared.parameter.grad is None:
                shared.parameter.grad = torch.zeros_like(shared.parameter)
            self._reduce(shared.key, shared.parameter.grad, shared.group)

    @property
    def names(self) -> set[str]:
        """Names of the parameters whose gradients are summed here."""
        return {shared.name for parameters in self._layers.values() for shared in parameters}

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
