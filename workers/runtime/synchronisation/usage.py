"""Which trained parameters got a gradient in an iteration: a parameter that no rank used keeps none.

An optimizer skips a parameter without a gradient; with a gradient of zeros, weight decay and momentum would
change it. A rank contributes zeros for parameters that its part of the batch did not use, so that the others
need not wait. Parameters that no rank used are found in the exchange that ends every iteration.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

#: Bits of each count of ranks, and counts packed into one float64 (53 bits).
_BITS, _TOGETHER = 13, 4


class GradientUsage:
    """The parameters of a model that got a gradient."""

    def __init__(self, module: nn.Module, *, without: Collection[int] = ()) -> None:
        """Collect the trained parameters.

        Args:
            without: ids of parameters that not all ranks have.
        """
        self._parameters = [
            parameter
            for parameter in module.parameters()
            if parameter.requires_grad and id(parameter) not in without
        ]
        self._weights = torch.tensor([2.0 ** (_BITS * place) for place in range(_TOGETHER)]).double()
        self._missing: list[int] = []
        self._all = self._packed([])

    def note(self) -> None:
        """Note the parameters without a gradient, after the backward pass and before gradients are exchanged.

        A rank without samples computes one of another rank's, so it uses no further parameters.
        """
        self._missing = [place for place, each in enumerate(self._parameters) if each.grad is None]

    @property
    def has_gradients(self) -> bool:
        """Whether any parameter has a gradient now."""
        return any(each.grad is not None for each in self._parameters)

    @property
    def is_partial(self) -> bool:
        """Whether this rank used only some of the parameters."""
        return bool(self._missing)

    @property
    def flags(self) -> Tensor:
        """This rank's packed flags, which the ranks sum up."""
        return self._packed(self._missing) if self._missing else self._all

    def unused(self, sums: Tensor) -> list[nn.Parameter]:
        """Return the parameters that no rank used.

        Args:
            sums: the sums of all ranks' flags.
        """
        counts = (sums[:, None] / self._weights).floor().remainder(2.0**_BITS).view(-1).tolist()
        return [self._parameters[place] for place in self._missing if not counts[place]]

    def _packed(self, missing: list[int]) -> Tensor:
        flags = torch.zeros(-(-len(self._parameters) // _TOGETHER) * _TOGETHER, dtype=torch.float64)
        flags[: len(self._parameters)] = 1.0
        flags[missing] = 0.0
        return (flags.view(-1, _TOGETHER) * self._weights).sum(1)
