"""Gradients that come in several pieces.

A backward pass within the backward pass brings a piece of a gradient of its own. `torch.utils.checkpoint`
with `use_reentrant=True` has one for each part that it computes again. A gradient is ready after its last
piece, and nobody knows which one that is: the pieces of one iteration are counted, and where a gradient has
several, all are averaged after the backward pass.
"""

from __future__ import annotations

from torch import Tensor
from torch.autograd.function import BackwardCFunction


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
