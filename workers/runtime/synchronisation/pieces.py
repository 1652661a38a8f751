"""Gradients that come in several pieces.

A backward pass within the backward pass brings a piece of a gradient of its own. `torch.utils.checkpoint`
with `use_reentrant=True` has one for each part that it computes again. A gradient is ready after its last
piece, and nobody knows which one that is: the pieces of one iteration are counted, and where a gradient has
several, all are averaged after the backward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction


class PieceCount:
    """Counts the pieces of gradients until its end."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._pieces: Counter[int] = Counter()
        self._hooks = [each.register_post_accumulate_grad_hook(self._count) for each in parameters]

    def end(self) -> bool:
        """Stop; returns whether a gradient came in several pieces."""
        for hook in self._hooks:
            hook.remove()
        return max(self._pieces.values(), default=0) > 1

    def _count(self, parameter: Tensor) -> None:
        self._pieces[id(parameter)] += 1


def has_functions_in_python(loss: Tensor) -> bool:
    """Whether the backward pass of the loss calls functions that are written in Python. Only these begin
    backward passes of their own."""
    nodes = [loss.grad_fn]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if isinstance(node, BackwardCFunction):
            return True
        following = [] if node is None else [each for each, _ in node.next_functions]
        new = {each for each in following if each not in seen}
        seen |= new
        nodes += new
    return False
